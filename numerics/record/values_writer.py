"""Writes values of captured tensors as safetensors, one tensor at a time.

The format puts the header in front (see `numerics.values_file`), so the bytes are collected in a temporary file first.
"""

import json
import shutil
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import torch

from numerics.errors import CaptureError
from numerics.values_file import LENGTH_BYTES

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
_COPY_BYTES: Final = 1 << 22
"""Bytes copied at a time."""


def stores(value: torch.Tensor) -> bool:
    """Return whether values of a tensor can be stored: plain numbers of a known type."""
    return value.dtype in _CODES and value.layout == torch.strided and value.device.type != "meta"


class ValuesWriter:
    """Collects values of one rank, each key once; the file appears whole at `close`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._data = path.with_name(f".{path.name}.data.tmp")
        self._file = self._data.open("wb")
        self._header: dict[str, Any] = {}
        self._at = 0

    def add(self, key: str, flat: torch.Tensor) -> None:
        """Append a flat tensor on the CPU under `key`, unless the key is known. CaptureError for unknown types."""
        if key in self._header:
            return
        code = _CODES.get(flat.dtype)
        if code is None:
            raise CaptureError(
                f"values of type {flat.dtype} cannot be stored; leave {key!r} out of the names"
            )
        raw = flat.contiguous().view(torch.uint8).numpy()
        self._file.write(raw.data)
        end = self._at + raw.nbytes
        self._header[key] = {"dtype": code, "shape": [flat.numel()], "data_offsets": [self._at, end]}
        self._at = end

    def close(self, origin: Mapping[str, str] | None = None) -> None:
        """Write header and bytes under a temporary name and rename; leave no file where nothing was added.

        `origin` says which run and rank the values are of.
        """
        self._file.close()
        if self._header:
            text = json.dumps({"__metadata__": dict(origin or {}), **self._header}).encode()
            text += b" " * (-len(text) % LENGTH_BYTES)
            temporary = self.path.with_name(f".{self.path.name}.tmp")
            with temporary.open("wb") as out, self._data.open("rb") as data:
                out.write(len(text).to_bytes(LENGTH_BYTES, "little"))
                out.write(text)
                shutil.copyfileobj(data, out, _COPY_BYTES)
            temporary.replace(self.path)
        self._data.unlink()

    def abandon(self) -> None:
        """Remove what was collected, which nothing reads without its header; the disk may be full of it."""
        with suppress(OSError):
            self._file.close()
        for left in (self._data, self.path.with_name(f".{self.path.name}.tmp")):
            left.unlink(missing_ok=True)
