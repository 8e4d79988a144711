"""The standard streams as a program finds them: closed, full or left by its reader, none ends a command in a fault.

Talk on stderr is dropped where it cannot be written, for it is no answer. An answer that stdout refuses is an
OutputError, but for a reader that left (ReaderLeftError), as `head` does.
"""

import io
import os
import sys
from typing import Any

from tracekit.errors import OutputError

_OUT, _ERR = 1, 2


class ReaderLeftError(Exception):
    """The program that read stdout has ended. A name of our own, for click ends with 1 for a broken pipe."""


class _Stream(io.FileIO):
    """A standard stream that says once that it cannot be written, and drops what follows; `absent`: it was closed."""

    def __init__(self, number: int, *, answers: bool, absent: bool = False) -> None:
        super().__init__(number, "w", closefd=False)
        self._answers, self.absent, self._gone = answers, absent, False

    def write(self, data: Any) -> int:
        """Write what fits; raises OutputError or ReaderLeftError, the first time, where the stream holds answers."""
        if self._gone:
            return len(data)
        try:
            return super().write(data) or 0
        except OSError as error:
            self._gone = True
            if not self._answers:
                return len(data)
            if isinstance(error, BrokenPipeError):
                raise ReaderLeftError from error
            why = "it is closed" if self.absent else error.strerror
            raise OutputError(
                f"standard output cannot be written ({why}); redirect it to a file, or name one by --json FILE"
            ) from error


def prepare() -> None:
    """Replace the standard streams of this process, unless others did, so that writing to them fails politely.

    /dev/null takes the numbers of closed streams, so that no file opened later receives output for a terminal.
    """
    for number in (0, _OUT, _ERR):
        try:
            os.fstat(number)
        except OSError:
            os.dup2(os.open(os.devnull, os.O_RDONLY if number == _OUT else os.O_RDWR), number)
    if sys.stdout is None or sys.stdout is sys.__stdout__:
        sys.stdout = _text(_Stream(_OUT, answers=True, absent=sys.stdout is None), sys.stdout, "strict")
    if sys.stderr is None or sys.stderr is sys.__stderr__:
        sys.stderr = _text(_Stream(_ERR, answers=False), sys.stderr, "backslashreplace")


def is_closed() -> bool:
    """Return whether this process was started without standard output."""
    raw = getattr(getattr(sys.stdout, "buffer", None), "raw", None)
    return isinstance(raw, _Stream) and raw.absent


def _text(raw: _Stream, before: Any, errors: str) -> io.TextIOWrapper:
    """A text stream on `raw`, in the encoding of the one `before` it."""
    return io.TextIOWrapper(
        io.BufferedWriter(raw),
        encoding=getattr(before, "encoding", None) or "utf-8",
        errors=getattr(before, "errors", None) or errors,
        line_buffering=raw.fileno() == _ERR or raw.isatty(),
    )
