"""Reads Megatron's indexed data sets: NAME.idx lists sequences and documents, NAME.bin holds their tokens.

The index, little-endian: nine bytes of magic, a version (u64, 1), a code of the token type (u8), the number of
sequences (u64) and of document bounds (u64); then the length of each sequence in tokens (i32), its offset in NAME.bin
in bytes (i64), and the document bounds as numbers of sequences (i64, the first 0). Multimodal data sets add a byte a
sequence.
Both files are untrusted: every number is checked against the sizes of the files before anything is read with it.
"""

import mmap
import struct
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from reftrain.errors import ConfigError

MAGIC: Final = b"MMIDIDX\x00\x00"
_HEAD: Final = struct.Struct("<9sQBQQ")
_TYPES: Final = {1: np.uint8, 2: np.int8, 3: np.int16, 4: np.int32, 5: np.int64, 8: np.uint16}
"""Types of tokens by code; 6 and 7 are floating-point numbers, which are no tokens."""
_VERSION: Final = 1

Integers = npt.NDArray[np.int64]


class MegatronFile:
    """The documents of a pair NAME.idx and NAME.bin, memory-mapped. Raises `ConfigError` for what is no such pair."""

    def __init__(self, path: Path) -> None:
        self.path = path
        index, data = path.with_suffix(".idx"), path.with_suffix(".bin")
        self._bytes = _mapped(data)
        raw = _mapped(index)
        head = _HEAD.unpack(raw[: _HEAD.size]) if len(raw) >= _HEAD.size else (b"",) * 5
        magic, version, code, count, bounds = head
        if magic != MAGIC or version != _VERSION:
            raise _refused(index, "is not a Megatron index of version 1")
        if code not in _TYPES:
            raise _refused(index, f"has tokens of type {code}, which is not a whole number")
        self._type = np.dtype(_TYPES[code]).newbyteorder("<")
        size = _HEAD.size + count * 12 + bounds * 8
        if len(raw) not in {size, size + count}:
            raise _refused(
                index, f"has {len(raw)} bytes, but {count} sequences and {bounds} bounds take {size}"
            )
        self._index = raw
        at = _HEAD.size
        self._tokens: npt.NDArray[np.int32] = np.frombuffer(raw, "<i4", count, at)
        self._offsets: Integers = np.frombuffer(raw, "<i8", count, at + count * 4)
        self._bounds: Integers = np.frombuffer(raw, "<i8", bounds, at + count * 12)
        self._check(index)
        ends = np.concatenate([[0], np.cumsum(self._tokens, dtype=np.int64)])
        self.lengths: Integers = np.diff(ends[self._bounds])

    def _check(self, index: Path) -> None:
        """Refuse sequences outside the data, and bounds that are no partition of the sequences."""
        count, bounds, width = len(self._tokens), self._bounds, self._type.itemsize
        if len(bounds) == 0 or bounds[0] != 0 or bounds[-1] != count or (np.diff(bounds) < 0).any():
            raise _refused(index, f"has document bounds that do not cut its {count} sequences")
        room = len(self._bytes) // width
        if count and (self._tokens.min() < 0 or self._tokens.max() > room):
            raise _refused(index, f"has a sequence that is longer than the {room} tokens of its .bin")
        last = len(self._bytes) - self._tokens.astype(np.int64) * width
        if (self._offsets < 0).any() or (self._offsets > last).any():
            raise _refused(index, "has a sequence outside its .bin")

    def document(self, number: int) -> Integers:
        """Return the tokens of a document."""
        first, end = int(self._bounds[number]), int(self._bounds[number + 1])
        pieces = [
            np.frombuffer(self._bytes, self._type, int(self._tokens[at]), int(self._offsets[at]))
            for at in range(first, end)
        ]
        return np.concatenate([np.empty(0, np.int64), *pieces]).astype(np.int64)


def _mapped(path: Path) -> mmap.mmap | bytes:
    """Map a file into memory; an empty one is no bytes."""
    try:
        with path.open("rb") as file:
            if not path.is_file():
                raise _refused(path, "is not a regular file")
            size = file.seek(0, 2)
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if size else b""
    except OSError as error:
        raise _refused(path, (error.strerror or str(error)).lower()) from error


def _refused(path: Path, problem: str) -> ConfigError:
    return ConfigError("data.files", f"{path} {problem}", "name NAME.bin beside its NAME.idx")
