"""The positional fingerprint of a tensor's bits.

H(T) = Σ key(i)·mix(bits(T_i)) mod 2^64, where i is the row-major index in the *global* tensor and key(i) is the
splitmix64 output for i (Steele, Lea, Flood 2014, "Fast splittable pseudorandom number generators"). Multiplying by
random keys is a universal hash family (Dietzfelbinger 1996): another value, another place or a swap changes H but
for a chance of about 2^-48. `mix` is a bijection that carries high bits into low ones, so that a sign alone counts.

H is additive over the parts of a global tensor: every rank computes it from its own shard, without communication.
"""

import threading
from collections import OrderedDict
from collections.abc import Sequence
from functools import cache
from typing import Any, Final

import numpy as np
import torch

from numerics.keys import splitmix
from numerics.schema import Box, linear_index
from numerics.thresholds.recording import KEY_CACHE_BYTES

MASK: Final = (1 << 64) - 1
"""Fingerprints are sums modulo 2^64."""

_BITS: Final = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""Integer type by bytes of an element."""

_INT32_BYTES: Final = 4
_INT64_BYTES: Final = 8
_MINUS_ZERO_BYTE: Final = 0x80
"""-0.0 in a format of one byte."""


class _Keys:
    """Keys of boxes. The same boxes come again every step, so keys are kept, the least used dropped first."""

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[object, ...], torch.Tensor] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()

    def of(self, shape: tuple[int, ...], box: Box, device: torch.device) -> torch.Tensor:
        """Return the keys of the box's elements, (numel,) int64."""
        name = (shape, box, device)
        with self._lock:
            found = self._kept.get(name)
            if found is not None:
                self._kept.move_to_end(name)
                return found
        keys = torch.from_numpy(splitmix(linear_index(shape, box)).view(np.int64)).to(device)
        size = keys.numel() * _INT64_BYTES
        if size <= KEY_CACHE_BYTES:
            with self._lock:
                self._kept[name] = keys
                self._bytes += size
                while self._bytes > KEY_CACHE_BYTES:
                    self._bytes -= self._kept.popitem(last=False)[1].numel() * _INT64_BYTES
        return keys


KEYS: Final = _Keys()
"""Keys of all boxes that this process records."""


def _mixed(bits: Any) -> Any:
    """Return bit patterns, an array or a tensor of integers, mixed by a bijection that carries high bits into low."""
    if bits.itemsize == _INT32_BYTES:
        return (bits >> 16) ^ bits
    if bits.itemsize == _INT64_BYTES:
        bits = (bits ^ ((bits >> 30) & 0x3FFFFFFFF)) * -4658895280553007687
        return bits ^ ((bits >> 27) & 0x1FFFFFFFFF)
    return bits


def bits_of(flat: torch.Tensor) -> torch.Tensor:
    """Return a tensor's elements as integers of the same size."""
    return flat.view(_BITS[flat.element_size()])


def digests(flat: torch.Tensor, keys: torch.Tensor) -> tuple[int, int]:
    """Return H of a flat tensor, and H with -0.0 taken as +0.0; `keys` are those of its elements, both (numel,)."""
    if flat.device.type == "cpu":
        return digests_of_rows(flat[None], [keys])[0]
    bits = bits_of(flat)
    found = int((_mixed(bits).to(torch.int64) * keys).sum())
    return _both(found, bits, keys, number=flat.is_floating_point())


def digests_of_rows(rows: torch.Tensor, keys: Sequence[torch.Tensor]) -> list[tuple[int, int]]:
    """Return `digests` of each row of a tensor on a CPU: by NumPy, which takes two thirds of torch's time."""
    bits = bits_of(rows).numpy()
    mixed = _mixed(bits).astype(np.int64)
    number = rows.is_floating_point()
    return [
        _both(int(np.einsum("i,i->", mixed[row], own)), bits[row], own, number=number)
        for row, own in enumerate(key.numpy() for key in keys)
    ]


def _both(found: int, bits: Any, keys: Any, *, number: bool) -> tuple[int, int]:
    """Return H, and H with -0.0 taken as +0.0 where the bits are those of floating-point numbers."""
    zeros = _keys_of_minus_zeros(bits, keys) if number else 0
    return found & MASK, (found - _minus_zero(bits.itemsize) * zeros) & MASK


def _keys_of_minus_zeros(bits: Any, keys: Any) -> int:
    """Return the sum of the keys at which a number is -0.0: of all patterns, the least as a signed integer."""
    if bits.itemsize > 1:
        least = -(1 << (8 * bits.itemsize - 1))
        return int(keys[bits == least].sum()) if int(bits.min()) == least else 0
    return int(keys[bits == _MINUS_ZERO_BYTE].sum())


@cache
def _minus_zero(width: int) -> int:
    """Return the mixed bits of -0.0 in a format of `width` bytes; those of +0.0 are 0."""
    bits = (
        np.array([_MINUS_ZERO_BYTE], np.uint8)
        if width == 1
        else np.array([-(1 << (8 * width - 1))], f"i{width}")
    )
    return int(_mixed(bits)[0])
