"""What a pickle that ends too early holds of a dump: everything before the cut, except the item that was cut.

The C unpickler gives up all it has read; Python's own keeps its stack, on which the unfinished containers stand
with the items that were not put into them yet. It runs behind the same shut doors (`unpickle`), in the same bounded
worker, and only for files that the C code found cut off. Second chance of `flight`.
"""

import io
import pickle
import struct
from typing import Any, NoReturn, cast

from tracekit.ingest.unpickle import RefusedError, refuse_global, refuse_persistent

_CUT = (pickle.UnpicklingError, EOFError, IndexError, struct.error, ValueError, UnicodeError)
_Base = cast("type[pickle.Unpickler]", pickle._Unpickler)  # noqa: SLF001 (no public name)


class _Unpickler(_Base):  # type: ignore[misc, valid-type]
    """Python's unpickler with both doors to code shut."""

    def find_class(self, module: str, name: str) -> NoReturn:
        refuse_global(module, name)

    def persistent_load(self, _pid: Any) -> NoReturn:
        refuse_persistent()


def salvage(data: bytes) -> dict[Any, Any] | None:
    """Give what a cut pickle of a mapping holds; None where it is not cut but damaged, or holds no mapping.

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
                below.pop()  # an entry without all of its fields is none
            else:
                target.update(zip(items[::2], items[1::2], strict=False))
        elif below and depth > 1:
            below.pop()  # the key of a value that was cut
