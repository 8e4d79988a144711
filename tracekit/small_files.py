"""Files whose place is named by a user or a folder: regular ones, and the small ones read whole within a bound."""

import os
import stat
from pathlib import Path


def check_regular(path: Path) -> None:
    """Raise OSError where a path is a device, a pipe or a folder, or is not there; nothing is opened."""
    if not stat.S_ISREG(path.stat().st_mode):
        raise OSError(0, "is no regular file", str(path))


def read_small(path: Path, most: int) -> bytes:
    """Return the bytes of a regular file of at most `most` bytes.

    Raises OSError, before anything is read, where it is a device, a pipe or a folder, or larger. A pipe is opened
    without waiting for its writer.
    """
    number = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    with open(number, "rb") as file:  # noqa: PTH123 - a descriptor
        found = os.fstat(number)
        if not stat.S_ISREG(found.st_mode):
            raise OSError(0, "is not a regular file", str(path))
        data = file.read(most + 1)
    if len(data) > most:
        raise OSError(0, f"is larger than {most} bytes", str(path))
    return data
