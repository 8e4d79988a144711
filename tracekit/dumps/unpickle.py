"""Reads pickles that nobody vouches for: builtin containers and scalars come out, or an error does.

A flight-recorder dump is a pickle, and a pickle is a program. Its only doors to code are the opcodes that
look a global up (GLOBAL, STACK_GLOBAL, INST, the EXT codes), which all end in `find_class`, and persistent
ids: both refuse here, so no callable ever reaches the unpickler's stack and REDUCE, NEWOBJ, OBJ and BUILD
have nothing to call. What is left is waste of memory and time: a huge memo index, nests hashed as
dictionary keys, cheap opcodes that allocate. Scanning opcodes first would cost more than loading; instead
`flight_pool` loads in a process whose memory and time the kernel bounds. First stage of `flight`: bytes →
objects.
"""

import io
import json
import pickle
from typing import Any, NoReturn

from tracekit.errors import InputError

MAX_BYTES = 1 << 28
"""Largest dump read: 256 MiB. 2 000 entries with stacks are about 2 MB, 20 000 about 20 MB."""

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


class RefusedError(InputError):
    """The pickle asks for something other than builtin containers and scalars."""


class DamagedError(InputError):
    """The file ends too early, or is no valid pickle or JSON."""


class Unpickler(pickle.Unpickler):
    """The C unpickler with both doors to code shut."""

    def find_class(self, module: str, name: str) -> NoReturn:
        """Refuse every global."""
        refuse_global(module, name)

    def persistent_load(self, _pid: Any) -> NoReturn:
        """Refuse persistent ids."""
        refuse_persistent()


def refuse_global(module: str, name: str) -> NoReturn:
    """Refuse a global, by name so that a reader sees what the file wanted."""
    raise RefusedError(f"pickle refused: it asks for {module[:60]}.{name[:60]}; a dump holds plain data only")


def refuse_persistent() -> NoReturn:
    """Refuse an external object."""
    raise RefusedError("pickle refused: it asks for an external object; a dump holds plain data only")


def loads(data: bytes) -> Any:
    """Decode one dump, pickle or JSON. Raises RefusedError, DamagedError or InputError, without the path.

    A C-level crash, or more memory or time than allowed, is the caller's to contain: see `flight_pool`.
    """
    head = data[:64].lstrip()
    if not head:
        raise InputError("the file is empty")
    try:
        if head[:1] in b"{[":
            return json.loads(data)
        # a buffered reader lets the C code peek ahead; plain BytesIO makes it call back for every operand
        return Unpickler(io.BufferedReader(io.BytesIO(data), 1 << 16)).load()  # type: ignore[type-var,arg-type,unused-ignore]
    except RefusedError:
        raise
    except _DAMAGED as error:
        raise DamagedError(f"damaged or cut off ({type(error).__name__}: {str(error)[:120]})") from None
