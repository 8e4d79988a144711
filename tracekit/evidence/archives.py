"""Archives of evidence, unpacked into a temporary folder within bounds; no member is written outside it.

Only plain files are unpacked: no link, no device. An archive inside an archive stays packed. Used by `triage`.
"""

import lzma
import stat
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path, PurePosixPath
from typing import IO, Final

import zstandard

from tracekit.files.source import Source
from tracekit.findings import Rejected
from tracekit.thresholds.evidence import LEAST_UNPACKED, MAX_MEMBERS, MAX_RATIO, MAX_UNPACKED
from tracekit.thresholds.ingest import MAX_WINDOW, READ

_DAMAGED: Final = (
    tarfile.TarError,
    zipfile.BadZipFile,
    zstandard.ZstdError,
    zlib.error,
    lzma.LZMAError,
    struct.error,
    ArithmeticError,
    EOFError,
    LookupError,
    NotImplementedError,
    OSError,
    RuntimeError,
    ValueError,
)
"""What the libraries raise over damaged archives; RuntimeError over encrypted ones."""
_Member = tuple[str, bool, Callable[[], IO[bytes] | None]]
"""Name, whether it is a plain file, and how it is opened."""


def unpack(source: Source, folder: Path) -> list[Rejected]:
    """Unpack an archive into a folder; return what was left out, with the reason."""
    left = _Left(source)
    try:
        with source.open() as raw:
            if raw.read(4).startswith(b"PK"):
                _unpack(_of_zip(raw), folder, left)
            else:
                raw.seek(0)
                _unpack(_of_tar(raw), folder, left)
    except _DAMAGED as error:
        left.out(
            source.label,
            f"damaged archive ({type(error).__name__}: {str(error)[:100]}); what came before is read",
        )
    return left.rejected


class _Left:
    """What is left out of one archive, and how much of it may still be written."""

    def __init__(self, source: Source) -> None:
        self.rejected: list[Rejected] = []
        self.bytes = min(max(source.size * MAX_RATIO, LEAST_UNPACKED), MAX_UNPACKED)
        self.members = MAX_MEMBERS
        self._label = source.label

    def out(self, name: str, reason: str) -> None:
        """Note a member that is left out."""
        if len(self.rejected) < MAX_MEMBERS:
            path = name if name == self._label else f"{self._label}/{name}"
            self.rejected.append(Rejected(path[:400], reason))


def _of_zip(raw: IO[bytes]) -> Iterator[_Member]:
    with zipfile.ZipFile(raw) as archive:
        for info in archive.infolist():
            mode = info.external_attr >> 16  # of a file system of Unix; 0 where it is of another
            plain = mode == 0 or stat.S_IFMT(mode) in {0, stat.S_IFREG}
            if not info.is_dir():
                yield info.filename, plain, partial(archive.open, info)


def _of_tar(raw: IO[bytes]) -> Iterator[_Member]:
    head = raw.read(4)
    raw.seek(0)
    stream: IO[bytes] = raw
    if head == b"\x28\xb5\x2f\xfd":
        stream = zstandard.ZstdDecompressor(max_window_size=MAX_WINDOW).stream_reader(raw)
    with tarfile.open(fileobj=stream, mode="r|*") as archive:
        for info in archive:
            if not info.isdir():
                yield info.name, info.isreg(), partial(archive.extractfile, info)


def _unpack(members: Iterator[_Member], folder: Path, left: _Left) -> None:
    for name, plain, opened in members:
        if left.members == 0:
            left.out("", f"more than {MAX_MEMBERS} files; the rest is left out")
            return
        left.members -= 1
        target = _inside(name, folder)
        if not plain or target is None:
            left.out(
                name, "it is not a plain file" if target is not None else "its name leads out of the archive"
            )
            continue
        file = opened()
        if file is None or not _copied(file, target, left):
            left.out(name, "the archive unpacks to more than any evidence does; it is cut here")
            return


def _inside(name: str, folder: Path) -> Path | None:
    """Return where a member is written; None where its name leads elsewhere."""
    path = PurePosixPath(name.replace("\\", "/"))
    parts = [part for part in path.parts if part not in {"", ".", "/"}]
    if path.is_absolute() or ".." in parts or not parts or any("\0" in p or ":" in p[:2] for p in parts):
        return None
    return folder.joinpath(*parts)


def _copied(file: IO[bytes], target: Path, left: _Left) -> bool:
    """Write a member; return whether it fits within what may be written."""
    target.parent.mkdir(parents=True, exist_ok=True)
    if target.exists():
        return True
    with file, target.open("wb") as out:
        while data := file.read(READ):
            left.bytes -= len(data)
            if left.bytes < 0:
                return False
            out.write(data)
    return True
