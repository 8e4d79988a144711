"""Temporary folders that end with their process: each is locked by the process that uses it.

A lock distinguishes a folder in use from one that a killed process left, and the next call removes the latter.
"""

import fcntl
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

LOCK: Final = ".lock"


@contextmanager
def temporary(prefix: str) -> Iterator[Path]:
    """Lend a temporary folder, removed at the end; also removes folders with this prefix that killed processes left."""
    sweep(Path(tempfile.gettempdir()), prefix)
    with tempfile.TemporaryDirectory(prefix=prefix) as name:
        lock = locked(Path(name))
        try:
            yield Path(name)
        finally:
            if lock is not None:
                os.close(lock)


def locked(folder: Path) -> int | None:
    """Hold the lock of a new folder for as long as this process lives; None where the file system has no locks.

    The lock gets its name when it is held, so that no other process takes the folder for one that was left.
    """
    unnamed = folder / f"{LOCK}.new"
    lock, held = os.open(unnamed, os.O_CREAT | os.O_RDWR, 0o600), True
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        held = False
    unnamed.rename(folder / LOCK)
    return lock if held else None


def sweep(parent: Path, prefix: str) -> None:
    """Remove what killed processes left in `parent`: our folders there with a lock that no process holds."""
    with suppress(OSError):
        for folder in parent.glob(f"{literal(prefix)}*"):
            if folder.is_symlink() or not (folder / LOCK).is_file() or folder.stat().st_uid != os.getuid():
                continue
            with suppress(OSError):
                _remove_unlocked(folder)


def _remove_unlocked(folder: Path) -> None:
    lock = os.open(folder / LOCK, os.O_RDWR | os.O_NOFOLLOW)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(folder, ignore_errors=True)
    finally:
        os.close(lock)


def literal(name: str) -> str:
    """Return `name` as a glob that matches nothing else."""
    return re.sub(r"([*?\[])", r"[\1]", name)
