"""Whether the compiled scanner is used, decided once a process: from what is installed, kept on disk, and to be read.

Code kept on disk loads in milliseconds. To compile takes seconds, once a machine, so it waits for an input that is
worth it. Where numba or a safe folder is missing, or anything goes wrong, the general reader serves. Code from disk is
run, so it is kept only in a folder that no one but its owner and the administrator can change.
"""

import hashlib
import importlib.util
import os
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from tracekit.thresholds import ingest
from tracekit.thresholds.ingest import BUILD_SECONDS, MAX_CODE, WORTH_COMPILING, WORTH_LOADING

Scan = Callable[[int], int]
"""Reads events by the state at an address (layout.At), and returns a layout.Ending."""
SAID: Final = "compiling the scanner, once on this machine"
BUILD: Final = "tracekit.ingest.kineto.compiled.build"
_SOURCES: Final = (*sorted(Path(__file__).parent.glob("*.py")), Path(__file__).parents[1] / "event_fields.py")
_loaded: list[Scan] = []


def scanner() -> Scan | None:
    """Return the compiled scanner if `prepare` loaded it, in this process or in the one it was forked from."""
    return _loaded[0] if _loaded else None


def prepare(size: int, tell: Callable[[str], None] = lambda _: None, *, may_compile: bool = True) -> None:
    """Load the compiled scanner if `size` bytes of JSON are worth it; compile it first if they are worth that.

    tell: called with a sentence before work that takes seconds.
    """
    if _loaded or size < WORTH_LOADING or not sys.executable or not _installed("llvmlite"):
        return
    folder = code_folder()
    compiles = may_compile and size >= WORTH_COMPILING
    if folder is None or not (compiles or any(folder.glob("scanner-*.o"))):
        return
    try:
        from tracekit.ingest.kineto.compiled import machine

        path = folder / f"scanner-{_version(machine.processor())}.o"
        code = read_code(path)
        if code is None and compiles and _installed("numba"):
            tell(SAID)
            code = _compiled()
            write_code(path, code)
        if code is not None:
            _loaded.append(machine.loaded(code))
    except (ImportError, OSError, RuntimeError, subprocess.SubprocessError):
        return  # the general reader needs none of it


def _installed(name: str) -> bool:
    return importlib.util.find_spec(name) is not None


def _version(processor: str) -> str:
    """A name for the code of these sources, with these bounds, on this processor."""
    files = [*_SOURCES, Path(str(ingest.__file__))]
    digest = hashlib.sha256(processor.encode())
    for path in files:
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()[:32]


def _compiled() -> bytes:
    """Compile the scanner in a process of its own; `-P`: nothing is imported from the user's current folder."""
    with tempfile.TemporaryDirectory(prefix="tracekit-compile-") as name:
        out = Path(name, "scanner.o")
        command = [sys.executable, "-P", "-m", BUILD, str(out)]
        subprocess.run(command, check=True, capture_output=True, timeout=BUILD_SECONDS)  # noqa: S603 (our own module)
        return out.read_bytes()


SHARED: Final = stat.S_IWGRP | stat.S_IWOTH
_DIGEST: Final = hashlib.sha256().digest_size


def code_folder() -> Path | None:
    """Return the folder for compiled code of this user, made where it is missing; None where there is no safe one."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    path = (Path(base) if base.startswith("/") else Path.home() / ".cache") / "tracekit"
    with suppress(OSError, RuntimeError):
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        return path if _safe(path.resolve()) else None
    return None


def _safe(path: Path) -> bool:
    """Return whether no other user can change the folder, or replace it."""
    own = path.lstat()
    if not stat.S_ISDIR(own.st_mode) or own.st_uid != os.geteuid() or own.st_mode & SHARED:
        return False
    return all(_kept(parent.lstat()) for parent in path.parents)


def _kept(parent: os.stat_result) -> bool:
    """Whether only the user and the administrator can rename what the folder holds."""
    trusted = parent.st_uid in {0, os.geteuid()}
    return trusted and (not parent.st_mode & SHARED or bool(parent.st_mode & stat.S_ISVTX))


def read_code(path: Path) -> bytes | None:
    """Return the code that `write_code` kept in a file; None if missing, damaged, or possibly made by another user."""
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


def write_code(path: Path, code: bytes) -> None:
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
