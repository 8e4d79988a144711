"""Values of captured tensors as safetensors, written as they come and read in place.

The format (github.com/huggingface/safetensors): eight bytes of header length, a JSON header with type, shape and
place of each tensor, then the bytes. The header stands in front, so the bytes are collected in a temporary file first.
Files are input like any other: lengths and places are checked before anything is read.
"""

import json
import math
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch

from numerics.errors import CaptureError

_CODES: Final = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.bfloat16: "BF16",
    torch.float16: "F16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
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
_MOST_HEADER: Final = 256 << 20


class ValuesWriter:
    """Collects values of one rank; each key once. `close` makes the file appear whole."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._data = path.with_name(f".{path.name}.data.tmp")
        self._file = self._data.open("wb")
        self._header: dict[str, Any] = {}
        self._at = 0

    def add(self, key: str, flat: torch.Tensor) -> None:
        """Append a flat tensor on the CPU under `key`, unless the key is known."""
        if key in self._header:
            return
        code = _CODES.get(flat.dtype)
        if code is None:
            raise CaptureError(
                f"values of type {flat.dtype} cannot be stored; leave {key!r} out of the names"
            )
        raw = flat.contiguous().view(torch.uint8).numpy()
        raw.tofile(self._file)
        end = self._at + raw.nbytes
        self._header[key] = {"dtype": code, "shape": [flat.numel()], "data_offsets": [self._at, end]}
        self._at = end

    def close(self) -> None:
        """Write header and bytes under a temporary name and rename; no file where nothing was added."""
        self._file.close()
        if self._header:
            text = json.dumps(self._header).encode()
            text += b" " * (-len(text) % 8)
            temporary = self.path.with_name(f".{self.path.name}.tmp")
            with temporary.open("wb") as out, self._data.open("rb") as data:
                out.write(len(text).to_bytes(8, "little"))
                out.write(text)
                shutil.copyfileobj(data, out, 1 << 22)
            temporary.replace(self.path)
        self._data.unlink()


def _placed(entry: Mapping[str, Any]) -> bool:
    """Whether a header's entry says where its bytes lie."""
    place = entry.get("data_offsets")
    return isinstance(place, list) and len(place) == 2 and all(isinstance(v, int) for v in place)


class ValuesFile:
    """Values of one rank, read in place. CaptureError where the file is damaged."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            size = path.stat().st_size
            with path.open("rb") as file:
                length = int.from_bytes(file.read(8), "little")
                if not 2 <= length <= min(size - 8, _MOST_HEADER):
                    raise CaptureError(f"{path}: no safetensors file, or cut short; capture the run again")
                header = json.loads(file.read(length))
        except (OSError, ValueError, RecursionError) as error:
            raise CaptureError(
                f"{path}: its values are unreadable ({error}); capture the run again"
            ) from error
        if not isinstance(header, dict):
            raise CaptureError(f"{path}: its header is no table; capture the run again")
        ends = [
            entry["data_offsets"][1]
            for entry in header.values()
            if isinstance(entry, dict) and _placed(entry)
        ]
        if max(ends, default=0) > size - 8 - length:
            raise CaptureError(f"{path}: its values are cut short; capture the run again")
        self._start = 8 + length
        self._size = size
        self._header = header

    def read(self, key: str) -> np.ndarray:
        """Return the flat values under `key` as a read-only memory map; bfloat16 as its bits, uint16."""
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
        return np.memmap(self.path, name, "r", self._start + begin, (count,))

    def is_bfloat16(self, key: str) -> bool:
        """Whether `read` returns bits of bfloat16 numbers."""
        entry = self._header.get(key)
        return isinstance(entry, dict) and entry.get("dtype") == "BF16"
