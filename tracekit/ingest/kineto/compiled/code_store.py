"""Machine code kept on disk, only in a folder that no other user than its owner and the administrator can change.

Code from there is run, so a folder or file that others may write to is never used.
"""

import hashlib
import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import Final

from tracekit.thresholds.ingest import MAX_CODE

SHARED: Final = stat.S_IWGRP | stat.S_IWOTH
_DIGEST: Final = hashlib.sha256().digest_size


def folder() -> Path | None:
    """Return the folder for compiled code of this user, made where it is missing; None where there is no safe one."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    path = (Path(base) if base.startswith("/") else Path.home() / ".cache") / "tracekit"
    with suppress(OSError, RuntimeError):
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        return path if _safe(path.resolve()) else None
    return None


def _safe(path: Path) -> bool:
    """Whether no other user can change the folder, or put another in its place."""
    own = path.lstat()
    if not stat.S_ISDIR(own.st_mode) or own.st_uid != os.geteuid() or own.st_mode & SHARED:
        return False
    return all(_kept(parent.lstat()) for parent in path.parents)


def _kept(parent: os.stat_result) -> bool:
    """Whether only the user and the administrator can rename what the folder holds."""
    trusted = parent.st_uid in {0, os.geteuid()}
    return trusted and (not parent.st_mode & SHARED or bool(parent.st_mode & stat.S_ISVTX))


def read(path: Path) -> bytes | None:
    """Return the code of a file that `write` made; None where it is missing, damaged, or another could have made it."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    with os.fdopen(handle, "rb") as file:
        found = os.fstat(handle)
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & SHARED:
            return None
        data = file.read(MAX_CODE)
    digest, code = data[:_DIGEST], data[_DIGEST:]
    return code if code and hashlib.sha256(code).digest() == digest else None


def write(path: Path, code: bytes) -> None:
    """Keep code in a file, whole or not at all; OSError where it cannot be written."""
    part = path.with_name(f".{path.name}.{os.getpid()}")
    handle = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(hashlib.sha256(code).digest() + code)
        part.replace(path)
    except OSError:
        part.unlink(missing_ok=True)
        raise
