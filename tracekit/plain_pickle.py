"""Unpicklers that return builtin containers and scalars, and never run what a pickle asks for.

A pickle is a program. Its only doors to code are the opcodes that look up a global (GLOBAL, STACK_GLOBAL, INST and
the EXT codes), which all end in `find_class`, and persistent ids. Both refuse here, so that no callable reaches the
unpickler's stack and REDUCE, NEWOBJ, OBJ and BUILD have nothing to call. Memory and time are not bounded here: a
caller that reads files of others loads them in a bounded process (`tracekit.workers`).
"""

import io
import pickle
from typing import Any, NoReturn

from tracekit.errors import InputError

_READ_AHEAD = 1 << 16


class RefusedError(InputError):
    """The pickle asks for something other than builtin containers and scalars."""


class Refusing:
    """The two methods that shut the doors; mixed into a class of unpicklers, before that class."""

    def find_class(self, module: str, name: str) -> NoReturn:
        """Refuse a global; the message names it, so that a reader sees what the file asked for."""
        raise RefusedError(
            f"pickle refused: it asks for {module[:60]}.{name[:60]}; a dump holds plain data only"
        )

    def persistent_load(self, _pid: Any) -> NoReturn:
        """Refuse a persistent id."""
        raise RefusedError("pickle refused: it asks for an external object; a dump holds plain data only")


class PlainUnpickler(Refusing, pickle.Unpickler):
    """The C unpickler with both doors shut."""


def loads_plain(data: bytes) -> Any:
    """Return the object pickled in `data`.

    Raises RefusedError where the pickle asks for code, and whatever `pickle` raises where it is damaged.
    """
    # a buffered reader lets the C code peek ahead; plain BytesIO makes it call back for every operand
    return PlainUnpickler(io.BufferedReader(io.BytesIO(data), _READ_AHEAD)).load()  # type: ignore[type-var,arg-type,unused-ignore]
