"""Whether the compiled scanner is used, decided once a process: from what is installed, kept on disk, and to be read.

Code kept on disk loads in milliseconds. To compile takes seconds, once a machine, so it waits for an input that is
worth it. Where numba or a safe folder is missing, or anything goes wrong, the general reader serves.
"""

import hashlib
import importlib.util
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Final

from tracekit.ingest.kineto.compiled import code_store
from tracekit.thresholds import ingest
from tracekit.thresholds.ingest import BUILD_SECONDS, WORTH_COMPILING, WORTH_LOADING

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
    """Load the compiled scanner if `size` bytes of JSON justify it; compile it first if they justify that too.

    The callback gets a sentence before a step that takes seconds.
    """
    if _loaded or size < WORTH_LOADING or not sys.executable or not _installed("llvmlite"):
        return
    folder = code_store.folder()
    compiles = may_compile and size >= WORTH_COMPILING
    if folder is None or not (compiles or any(folder.glob("scanner-*.o"))):
        return
    try:
        from tracekit.ingest.kineto.compiled import machine

        path = folder / f"scanner-{_version(machine.processor())}.o"
        code = code_store.read(path)
        if code is None and compiles and _installed("numba"):
            tell(SAID)
            code = _compiled()
            code_store.write(path, code)
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
    """Compile the scanner in a process of its own; with `-P` it imports nothing from the user's current folder."""
    with tempfile.TemporaryDirectory(prefix="tracekit-compile-") as name:
        out = Path(name, "scanner.o")
        command = [sys.executable, "-P", "-m", BUILD, str(out)]
        subprocess.run(command, check=True, capture_output=True, timeout=BUILD_SECONDS)  # noqa: S603 (our own module)
        return out.read_bytes()
