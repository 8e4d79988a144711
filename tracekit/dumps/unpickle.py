"""Decodes one dump, pickle or JSON, into builtin containers and scalars.

`tracekit.plain_pickle` refuses every pickle that asks for code. A pickle can still waste memory and time: a huge memo
index, nested containers hashed as dictionary keys, cheap opcodes that allocate. To scan the opcodes first would cost
more than to load them, so `workers` decodes in a process with memory and time bounded by the kernel. Used by `load`.

torch 2.1 and 2.2 dump a bare list of calls, which is made into the mapping that later versions write. Such a dump names
neither its rank (the file's name does), nor the members of its groups, nor types. The first group that a process makes
is that of all ranks, and has number 0. Each process numbers the others for itself, so that one number may be of several
groups: their members stay unknown. Source of the fields: torch/csrc/distributed/c10d/TraceUtils.h of these versions.
"""

import io
import json
import pickle
import re
import struct
from typing import Any, Final, cast

from tracekit.dumps.fields import integer, text_of
from tracekit.errors import InputError
from tracekit.plain_pickle import RefusedError, Refusing, loads_plain
from tracekit.thresholds.dumps import MAX_GROUP_NAME, MAX_JSON_DEPTH
from tracekit.units import NS_PER_US

_DAMAGED = (
    pickle.UnpicklingError,
    EOFError,
    ValueError,
    TypeError,
    KeyError,
    IndexError,
    AttributeError,
    OverflowError,
    UnicodeError,
    RecursionError,
    AssertionError,
    BufferError,
    ImportError,
)


class DamagedError(InputError):
    """The file ends too early, or is no valid pickle or JSON."""


def loads(data: bytes) -> Any:
    """Return the object that one dump, pickle or JSON, holds.

    Raises RefusedError (the pickle asks for code), DamagedError, or InputError (empty); no message names the file.
    The caller contains a crash in C and a waste of memory or time: see `workers`.
    """
    head = data[:64].lstrip()
    if not head:
        raise InputError("the file is empty")
    try:
        if head[:1] in b"{[":
            return json.loads(data)
        return loads_plain(data)
    except RefusedError:
        raise
    except _DAMAGED as error:
        raise DamagedError(f"damaged or cut off ({type(error).__name__}: {str(error)[:120]})") from None


# Recovers a dump that ends too early: everything before the cut, except the item that was cut.
#
# The C unpickler gives up all it has read; Python's own keeps its stack, which holds the unfinished
# containers and the items that were not put into them yet. It runs behind the same shut doors
# (`plain_pickle`), in the same bounded worker, and only for files that the C code found cut off. In JSON the
# containers that are open after the last whole item are closed, and the text is read again.

_JSON = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|["\[\]{},]', re.DOTALL)
"""Strings and brackets; a quote alone opens a string that does not end."""
_CUT = (pickle.UnpicklingError, EOFError, IndexError, struct.error, ValueError, UnicodeError)
_Base = cast("type[pickle.Unpickler]", pickle._Unpickler)  # noqa: SLF001 (no public name)


class _Unpickler(Refusing, _Base):  # type: ignore[misc, valid-type]
    """Python's unpickler with both doors to code shut."""


def salvage(data: bytes) -> dict[Any, Any] | None:
    """Give the mapping in a cut pickle, as far as it goes; None where it is not cut but damaged, or holds no mapping.

    Raises RefusedError where it asks for something other than builtin containers and scalars.
    """
    raw = io.BytesIO(data)
    reader: Any = _Unpickler(raw)
    try:
        reader.load()
    except RefusedError:
        raise
    except _CUT:
        if raw.tell() < len(data):
            return None
    except (TypeError, KeyError, AttributeError, RecursionError, OverflowError, AssertionError):
        return None
    else:
        return None
    levels: list[list[Any]] = [*reader.metastack, reader.stack]
    root = levels[0][0] if levels[0] else None
    if not isinstance(root, dict) or len(levels) < 2:
        return None
    try:
        _close(levels)
    except TypeError:  # an unhashable key
        return None
    return root


def salvage_json(data: bytes) -> dict[Any, Any] | None:
    """Give the mapping in cut JSON, as far as it goes; None where it is not cut but damaged, or holds no mapping."""
    closers = bytearray()
    whole: tuple[int, bytes] | None = None  # where the last whole item ends, and the brackets open there
    for token in _JSON.finditer(data):
        mark = token[0]
        if mark == b'"':
            break
        if mark in b"{[":
            closers += b"}" if mark == b"{" else b"]"
            if len(closers) > MAX_JSON_DEPTH:
                return None
        elif mark in b"}]":
            if not closers or closers.pop() != mark[0] or not closers:
                return None
            if len(closers) <= 2:
                whole = token.end(), bytes(closers)
        elif mark == b"," and 0 < len(closers) <= 2:
            whole = token.start(), bytes(closers)
    if whole is None or whole[1][0] != b"}"[0]:
        return None
    try:
        found = json.loads(data[: whole[0]] + whole[1][::-1])
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _close(levels: list[list[Any]]) -> None:
    """Put the items on the stack into the containers below them, innermost first."""
    if levels[-1]:
        levels[-1].pop()  # its text or number may be short of the part that was cut off
    for depth in range(len(levels) - 1, 0, -1):
        items, below = levels[depth], levels[depth - 1]
        target = below[-1] if below else None
        if isinstance(target, list):
            target.extend(items)
        elif isinstance(target, dict):
            inside_list = depth >= 2 and levels[depth - 2] and isinstance(levels[depth - 2][-1], list)
            if inside_list:
                below.pop()  # an entry that lacks a field is no entry
            else:
                target.update(zip(items[::2], items[1::2], strict=False))
        elif below and depth > 1:
            below.pop()  # the key of a value that was cut


BARE_VERSION: Final = "1"
"""The version of these dumps, which do not name one; later ones begin with 2.0."""
_FIELDS = {"profiling_name", "seq_id", "pg_id"}


def is_bare(decoded: Any) -> bool:
    """Return whether this is a list of calls, as torch 2.1 and 2.2 dump them; false for an empty list."""
    return (
        isinstance(decoded, (list, tuple))
        and bool(decoded)
        and all(isinstance(entry, dict) and entry.keys() >= _FIELDS for entry in (decoded[0], decoded[-1]))
    )


def with_groups(entries: Any) -> dict[str, Any]:
    """Give such a dump as a mapping: the group of all ranks has its name, and times of issue are in ns."""
    return {"version": BARE_VERSION, "entries": [_entry(entry) for entry in entries]}


def _entry(entry: Any) -> Any:
    """Give a call with its group and its time; anything else as it is, to be counted as damaged."""
    if not isinstance(entry, dict):
        return entry
    number, issued = entry.get("pg_id"), integer(entry.get("time_created_us"))
    desc = "default_pg" if number == 0 else ""
    return {
        **entry,
        "process_group": (text_of(number, MAX_GROUP_NAME), desc),
        "time_created_ns": None if issued is None else issued * NS_PER_US,
    }
