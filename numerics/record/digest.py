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
from typing import Final

import numpy as np
import torch

from numerics.keys import splitmix
from numerics.schema import Box
from numerics.thresholds.recording import HASH_CHUNK, KEY_CACHE_BYTES, MIX_CHUNK

MASK: Final = (1 << 64) - 1
"""Fingerprints are sums modulo 2^64."""

_BITS: Final = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""Integer type by bytes of an element."""

_INT32_BYTES: Final = 4
_INT64_BYTES: Final = 8


def linear_index(shape: Sequence[int], box: Box) -> np.ndarray:
    """Return the row-major indices of the box's elements in the global tensor, (numel,) int64."""
    index = np.zeros((), np.int64)
    for size, offset, extent in zip(shape, box.offsets, box.sizes, strict=True):
        index = index[..., None] * size + np.arange(offset, offset + extent, dtype=np.int64)
    return np.ascontiguousarray(index.reshape(-1))


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


def _mixed(flat: torch.Tensor) -> torch.Tensor:
    """Return the bit patterns as int64, mixed by a bijection that carries high bits into low ones."""
    width = flat.element_size()
    bits = flat.view(_BITS[width])
    if width == _INT32_BYTES:
        bits = (bits >> 16).bitwise_xor_(bits)  # before widening: the same bits, of half the memory
    bits = bits.to(torch.int64)
    if width == _INT64_BYTES:
        bits = (bits ^ ((bits >> 30) & 0x3FFFFFFFF)) * -4658895280553007687
        bits = bits ^ ((bits >> 27) & 0x1FFFFFFFFF)
    return bits


def digest(flat: torch.Tensor, keys: torch.Tensor) -> int:
    """Return H of a flat tensor with the keys of its elements, both (numel,)."""
    total = 0
    size = MIX_CHUNK if flat.device.type == "cpu" else HASH_CHUNK
    for start in range(0, flat.numel(), size):
        bits = _mixed(flat[start : start + size])
        part = keys[start : start + size]
        chunk = torch.dot(bits, part) if bits.device.type == "cpu" else (bits * part).sum()
        total += int(chunk)
    return total & MASK


def digest_unsigned_zero(flat: torch.Tensor, found: int, keys: torch.Tensor) -> int:
    """Return H with -0.0 taken as +0.0, from H itself (`found`)."""
    if not flat.is_floating_point():
        return found
    bits = flat.view(_BITS[flat.element_size()])
    lowest = torch.iinfo(bits.dtype).min if bits.dtype != torch.uint8 else 0x80
    if bits.device.type == "cpu":  # numpy finds them several times as fast
        places = np.flatnonzero(bits.numpy() == lowest)
        if not len(places):
            return found
        where = torch.from_numpy(places)
    else:
        where = (bits == lowest).nonzero().reshape(-1)
        if not len(where):
            return found
    zeros = torch.zeros(len(where), dtype=flat.dtype, device=flat.device)
    return (found - digest(flat[where], keys[where]) + digest(zeros, keys[where])) & MASK
