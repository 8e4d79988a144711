"""Decodes one dump, pickle or JSON, into builtin containers and scalars.

`tracekit.plain_pickle` refuses every pickle that asks for code. A pickle can still waste memory and time: a huge memo
index, nested containers hashed as dictionary keys, cheap opcodes that allocate. To scan the opcodes first would cost
more than to load them, so `workers` decodes in a process with memory and time bounded by the kernel. Used by `load`.
"""

import json
import pickle
from typing import Any

from tracekit.errors import InputError
from tracekit.plain_pickle import RefusedError, loads_plain

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
