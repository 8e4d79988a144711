"""Reads values of captured tensors from safetensors files, in place.

The format (github.com/huggingface/safetensors): eight bytes of header length, a JSON header with type, shape and
place of each tensor, then the bytes. Files are untrusted: lengths and places are checked before anything is read.
"""

import json
import math
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import numpy as np

from numerics.errors import CaptureError
from numerics.thresholds.reading import MAX_HEADER_BYTES
from tracekit.small_files import check_regular

LENGTH_BYTES: Final = 8
"""Bytes at the start of a file that hold the header's length, little-endian."""

_TYPES: Final[Mapping[str, tuple[str, int]]] = {
    "F64": ("<f8", 8),
    "F32": ("<f4", 4),
    "BF16": ("<u2", 2),
    "F16": ("<f2", 2),
    "I64": ("<i8", 8),
    "I32": ("<i4", 4),
    "I16": ("<i2", 2),
    "I8": ("<i1", 1),
    "U8": ("<u1", 1),
    "BOOL": ("<u1", 1),
}


def _placed(entry: Mapping[str, Any]) -> bool:
    """Return whether a header's entry says where its bytes lie."""
    place = entry.get("data_offsets")
    return isinstance(place, list) and len(place) == 2 and all(isinstance(v, int) for v in place)


def _header(path: Path) -> tuple[dict[str, Any], int, int]:
    """Return a file's header, the header's length and the file's size, in bytes."""
    try:
        check_regular(path)
        size = path.stat().st_size
        with path.open("rb") as file:
            length = int.from_bytes(file.read(LENGTH_BYTES), "little")
            if not 2 <= length <= min(size - LENGTH_BYTES, MAX_HEADER_BYTES):
                raise CaptureError(f"{path}: no safetensors file, or cut short; capture the run again")
            header = json.loads(file.read(length))
    except (OSError, ValueError, RecursionError) as error:
        raise CaptureError(f"{path}: its values are unreadable ({error}); capture the run again") from error
    if not isinstance(header, dict):
        raise CaptureError(f"{path}: its header is not a table; capture the run again")
    return header, length, size


class ValuesFile:
    """The values file of one rank, read in place. CaptureError where the file is damaged."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._header, length, self._size = _header(path)
        ends = [
            entry["data_offsets"][1]
            for entry in self._header.values()
            if isinstance(entry, dict) and _placed(entry)
        ]
        if max(ends, default=0) > self._size - LENGTH_BYTES - length:
            raise CaptureError(f"{path}: its values are cut short; capture the run again")
        self._start = LENGTH_BYTES + length

    @cached_property
    def _mapped(self) -> np.ndarray:
        """Return the bytes of the file as one memory map: a map of each tensor costs more than most tensors hold.

        CaptureError where the file has been cut short since its header was read.
        """
        found = np.memmap(self.path, np.uint8, "r")
        if found.size < self._size:
            raise CaptureError(f"{self.path}: its values are cut short; capture the run again")
        return found.view(np.ndarray)

    @property
    def origin(self) -> dict[str, str]:
        """Return `run` and `rank` of the values, as far as the file gives them."""
        found = self._header.get("__metadata__")
        return {str(k): str(v) for k, v in found.items()} if isinstance(found, dict) else {}

    def read(self, key: str) -> np.ndarray:
        """Return the flat values under `key` as a read-only memory map; bfloat16 as its bits (uint16).

        CaptureError where the key is unknown or its bytes are cut short.
        """
        try:
            entry = self._header[key]
            name, width = _TYPES[entry["dtype"]]
            begin, end = (int(v) for v in entry["data_offsets"])
            count = math.prod([int(v) for v in entry["shape"]])
        except (KeyError, TypeError, ValueError) as error:
            raise CaptureError(f"{self.path}: no values under {key[:80]!r}; capture the run again") from error
        if begin < 0 or end - begin != count * width or self._start + end > self._size:
            raise CaptureError(f"{self.path}: values of {key[:80]!r} are cut short; capture the run again")
        if not count:
            return np.zeros(0, name)
        return self._mapped[self._start + begin : self._start + end].view(name)

    def is_bfloat16(self, key: str) -> bool:
        """Return whether `read` returns the bits of bfloat16 numbers."""
        entry = self._header.get(key)
        return isinstance(entry, dict) and entry.get("dtype") == "BF16"
