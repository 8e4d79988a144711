"""Bytes of one input file, local or behind an fsspec URL, decompressed in blocks of bounded size.

The first bytes of a file show how it is compressed, its extension is never used. A damaged archive yields what arrived
whole; `ByteStream.damage` says what is wrong with it. First stage of ingest: discover → **source** → readers.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast

import zstandard
from isal import isal_zlib

from tracekit.thresholds.ingest import (
    BLOCK,
    HEAD,
    JSON_PER_GZIP,
    LARGEST_EXPANDED,
    LEAST_EXPANDED,
    MAX_WINDOW,
    MOST_EXPANSION,
    READ,
    SIP,
)

GZIP_MAGIC = b"\x1f\x8b"
COMPRESSIONS = {GZIP_MAGIC: "gzip", b"\x28\xb5\x2f\xfd": "zstd"}
"""Name of a compression by the bytes that a compressed file begins with."""
GZIP_ERROR = cast("type[Exception]", isal_zlib.error)


@dataclass(frozen=True)
class Source:
    """One input file: `uri` opens it, `label` is how the user named it."""

    uri: str
    label: str
    size: int

    @property
    def name(self) -> str:
        """Last component of the path."""
        return self.uri.replace("\\", "/").rsplit("/", 1)[-1]

    @property
    def folders(self) -> tuple[str, ...]:
        """The components before the last one, the innermost first."""
        return tuple(reversed(self.uri.replace("\\", "/").split("/")[:-1]))

    @property
    def json_size(self) -> int:
        """The approximate number of bytes of JSON in it, by its name and size."""
        packed = self.name.lower().endswith((".gz", ".zst", ".zstd"))
        return self.size * (JSON_PER_GZIP if packed else 1)

    def open(self) -> BinaryIO:
        """Open for reading bytes; OSError and whatever the fsspec backend raises pass through."""
        if "://" in self.uri:
            import fsspec  # what reads local files need not wait for it

            return cast("BinaryIO", fsspec.open(self.uri, "rb").open())
        return Path(self.uri).open("rb")


def opening(source: Source) -> bytes:
    """Return the first decompressed block of a file, b"" for an empty one; OSError where it cannot be read."""
    with source.open() as raw:
        return next(ByteStream(raw).blocks(), b"")


def compression_of(head: bytes) -> str | None:
    """Return "gzip", "zstd" or None by the first bytes of a file."""
    return next((name for magic, name in COMPRESSIONS.items() if head.startswith(magic)), None)


class ByteStream:
    """Decompressed blocks of a file; hashes and counts the raw bytes on the way.

    compression: "gzip", "zstd" or None. damage: what is wrong with the compressed data, once a block hit it.
    trailing: whether bytes that are no gzip member follow the last one. raw_bytes: bytes read so far.
    """

    def __init__(self, raw: BinaryIO) -> None:
        self._raw = raw
        self._hash = hashlib.sha256()
        self.raw_bytes = 0
        self.damage: str | None = None
        self.trailing = False
        self._head = self._read()
        while 0 < len(self._head) < HEAD and (more := self._read()):
            self._head += more
        self.compression = compression_of(self._head)

    @property
    def sha256(self) -> str:
        """SHA-256 of the raw file in hexadecimal; reads to its end first."""
        while self._read():
            pass
        return self._hash.hexdigest()

    def _read(self, size: int = READ) -> bytes:
        data = self._raw.read(size)
        self._hash.update(data)
        self.raw_bytes += len(data)
        return data

    def read(self, size: int = -1) -> bytes:
        """Return raw bytes, as the zstd reader asks for them."""
        if self._head:
            data, self._head = self._head, b""
            return data
        return self._read(size if size > 0 else READ)

    def blocks(self, most_expansion: int = MOST_EXPANSION) -> Iterator[bytes]:
        """Yield blocks of at most about `BLOCK` decompressed bytes, to the end or to the damage.

        Raises OSError once they expand more than `most_expansion` times; a recording never does by default.
        """
        if self.compression is not None:
            blocks = self._gzip() if self.compression == "gzip" else self._zstd()
            yield from self._bounded(blocks, most_expansion)
        else:
            head, self._head = self._head, b""
            yield head
            while data := self._read(BLOCK):
                yield data

    def _bounded(self, blocks: Iterator[bytes], most_expansion: int) -> Iterator[bytes]:
        """Yield decompressed blocks while their sum stays within bounds."""
        total = 0
        for block in blocks:
            total += len(block)
            if total > LEAST_EXPANDED and total > most_expansion * self.raw_bytes:
                raise OSError(
                    0, f"it expands to more than {most_expansion} times its size, as no recording does"
                )
            if total > LARGEST_EXPANDED:
                raise OSError(0, f"it expands to more than {LARGEST_EXPANDED >> 30} GiB; record fewer steps")
            yield block

    def _gzip(self) -> Iterator[bytes]:
        """Decompress one gzip member after another; small pieces are joined to blocks."""
        data, self._head = self._head, b""
        while data.startswith(GZIP_MAGIC):  # one turn a member
            member: Any = isal_zlib.decompressobj(31)
            pieces, held = [], 0
            while not member.eof and self.damage is None:
                data = data or self._read()
                try:
                    piece = member.decompress(data[:SIP], BLOCK)
                except GZIP_ERROR as error:
                    self.damage = f"corrupt gzip data ({error})"
                    break
                if not data and not piece:
                    self.damage = "gzip data end before their end mark"
                data = member.unconsumed_tail + data[SIP:]
                pieces.append(piece)
                held += len(piece)
                if held >= BLOCK // 2:
                    yield b"".join(pieces)
                    pieces, held = [], 0
            yield b"".join(pieces)
            if self.damage is not None:
                return
            data = member.unused_data + data
            while len(data) < 2 and (more := self._read()):
                data += more
        self.trailing = bool(data.strip(b"\0"))

    def _zstd(self) -> Iterator[bytes]:
        decoder = zstandard.ZstdDecompressor(max_window_size=MAX_WINDOW)
        reader = decoder.stream_reader(cast("Any", self), read_size=READ, read_across_frames=True)
        try:
            while data := reader.read(BLOCK):
                yield data
        except zstandard.ZstdError as error:
            self.damage = f"corrupt zstd data ({error})"
