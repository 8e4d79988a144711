"""Bytes of one input file, local or behind an fsspec URL, decompressed in blocks of bounded size.

What a file is, is told by its first bytes, never by its extension. A damaged archive yields what arrived; the
damage is noted in `ByteStream.damage`. First stage of ingest: discover → **source** → layout → scan → write.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast

import fsspec
import zstandard
from isal import isal_zlib

READ = 1 << 18  # compressed bytes a read
SIP = 1 << 12  # compressed bytes handed to gunzip at a time: what an error in them can cost
BLOCK = 1 << 22  # most bytes a block; big enough that per-block costs vanish, small enough to stay in cache
GZIP_ERROR = cast("type[Exception]", isal_zlib.error)
MAX_WINDOW = 1 << 27  # of zstd: what `--long` uses by default; more is an attack on memory


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
    def parent(self) -> str:
        """Last component but one, or nothing."""
        parts = self.uri.replace("\\", "/").rsplit("/", 2)
        return parts[-2] if len(parts) > 2 else ""

    def open(self) -> BinaryIO:
        """Open for reading bytes; OSError and whatever the fsspec backend raises pass through."""
        if "://" in self.uri:
            return cast("BinaryIO", fsspec.open(self.uri, "rb").open())
        return Path(self.uri).open("rb")


def sniff(head: bytes) -> str:
    """Tell what the first bytes are: gzip, zstd, parquet, pickle, zip, xz, bzip2, html, json, blank."""
    for magic, kind in (
        (b"\x1f\x8b", "gzip"),
        (b"\x28\xb5\x2f\xfd", "zstd"),
        (b"PAR1", "parquet"),
        (b"PK\x03\x04", "zip"),
        (b"\xfd7zXZ", "xz"),
        (b"BZh", "bzip2"),
        (b"(dp", "pickle"),
    ):
        if head.startswith(magic):
            return kind
    if head[:1] == b"\x80" and head[1:2] in b"\x02\x03\x04\x05":
        return "pickle"
    text = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    if not text:
        return "blank" if head else "empty"
    if text[:1] in b"{[":
        return "json"
    return "html" if text[:1] == b"<" else "other"


class ByteStream:
    """Decompressed blocks of a file; hashes and counts the raw bytes on the way."""

    def __init__(self, raw: BinaryIO) -> None:
        self._raw = raw
        self._hash = hashlib.sha256()
        self.raw_bytes = 0
        self.damage: str | None = None
        self.trailing = False  # bytes behind the last gzip member that are no gzip member
        self._head = self._read()
        while 0 < len(self._head) < 16 and (more := self._read()):
            self._head += more
        self.kind = sniff(self._head)

    @property
    def sha256(self) -> str:
        """Hash of the raw file; reads to its end first."""
        while self._read():
            pass
        return self._hash.hexdigest()

    @property
    def head(self) -> bytes:
        """First raw bytes of the file, as read at the start."""
        return self._head

    def _read(self, size: int = READ) -> bytes:
        data = self._raw.read(size)
        self._hash.update(data)
        self.raw_bytes += len(data)
        return data

    def read(self, size: int = -1) -> bytes:
        """File-like face for the zstd reader."""
        if self._head:
            data, self._head = self._head, b""
            return data
        return self._read(size if size > 0 else READ)

    def blocks(self) -> Iterator[bytes]:
        """Blocks of at most about `BLOCK` decompressed bytes, to the end or to the damage."""
        if self.kind == "gzip":
            yield from self._gzip()
        elif self.kind == "zstd":
            yield from self._zstd()
        else:
            head, self._head = self._head, b""
            yield head
            while data := self._read(BLOCK):
                yield data

    def _gzip(self) -> Iterator[bytes]:
        data, self._head = self._head, b""
        while data.startswith(b"\x1f\x8b"):  # one turn a member
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
