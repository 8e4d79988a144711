"""What stays of a tensor at capture level `digest`: a positional fingerprint, exact extremes, sums, a sketch.

All of it is additive over the parts of a global tensor: every rank computes it from its own shard, without
communication, and the parts of any sharding add up to the same whole.

Fingerprint: H(T) = Σ key(i)·mix(bits(T_i)) mod 2^64 with i the row-major index in the *global* tensor and key(i) the
splitmix64 output for i (Steele, Lea, Flood 2014, "Fast splittable pseudorandom number generators"). Multiplying by
random keys is a universal hash family (Dietzfelbinger 1996): another value, another place or a swap changes H but
for a chance of about 2^-48. `mix` is a bijection that brings high bits low, so that a sign alone is not lost.

Sketch: 8 projections on random signs that are products of one sign a dimension (a tensor sketch; Pham and Pagh 2013).
Linear, so a factor, a missing or doubled addend and the size of a difference show without the values.
"""

import math
import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np
import torch

from numerics.errors import CaptureError
from numerics.schema import SKETCH, Box

_MASK: Final = (1 << 64) - 1
_KEY_CACHE_BYTES: Final = (
    256 << 20
)  # what a run of preset small meets every step; less would make them anew each time
_CHUNK: Final = 1 << 18
_SAMPLE: Final = 1024
_BITS: Final = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@dataclass(frozen=True)
class Fingerprint:
    """Digest and statistics of one rank's part of a tensor; the fields are the columns of `schema.ROWS`."""

    digest: int
    digest_nz: int
    numel: int
    sum: float
    sum_squares: float
    abs_max: float | None
    min: float | None
    max: float | None
    non_finite: int
    lowbits: bool
    sketch: tuple[float, ...]


def splitmix(index: np.ndarray) -> np.ndarray:
    """splitmix64 output for every index: uint64 to uint64."""
    z = (index.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    z ^= z >> np.uint64(30)
    z *= np.uint64(0xBF58476D1CE4E5B9)
    z ^= z >> np.uint64(27)
    z *= np.uint64(0x94D049BB133111EB)
    z ^= z >> np.uint64(31)
    return z


def linear_index(shape: Sequence[int], box: Box) -> np.ndarray:
    """Row-major indices in the global tensor of the box's elements, (numel,) int64."""
    index = np.zeros((), np.int64)
    for size, offset, extent in zip(shape, box.offsets, box.sizes, strict=True):
        index = index[..., None] * size + np.arange(offset, offset + extent, dtype=np.int64)
    return np.ascontiguousarray(index.reshape(-1))


class _Keys:
    """Keys of boxes, kept as long as they fit: the same boxes come again every step."""

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[object, ...], torch.Tensor] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()

    def of(self, shape: tuple[int, ...], box: Box, device: torch.device) -> torch.Tensor:
        """Keys of the box's elements, (numel,) int64."""
        name = (shape, box, device)
        with self._lock:
            found = self._kept.get(name)
            if found is not None:
                self._kept.move_to_end(name)
                return found
        keys = torch.from_numpy(splitmix(linear_index(shape, box)).view(np.int64)).to(device)
        size = keys.numel() * 8
        if size <= _KEY_CACHE_BYTES:
            with self._lock:
                self._kept[name] = keys
                self._bytes += size
                while self._bytes > _KEY_CACHE_BYTES:
                    self._bytes -= self._kept.popitem(last=False)[1].numel() * 8
        return keys


_KEYS = _Keys()


@lru_cache(maxsize=512)
def _signs(dim: int, size: int, device: torch.device) -> torch.Tensor:
    """Random signs of the coordinates 0 to `size` of dimension `dim`, (size, SKETCH) int8."""
    keys = splitmix(np.arange(size, dtype=np.uint64) + np.uint64((dim + 1) << 48))
    bits = (keys[:, None] >> np.arange(17, 17 + SKETCH, dtype=np.uint64)) & np.uint64(1)
    return torch.from_numpy(bits.astype(np.int8) * np.int8(2) - np.int8(1)).to(device)


@lru_cache(maxsize=512)
def _block_signs(
    dims: tuple[tuple[int, int, int, int], ...], device: torch.device, dtype: torch.dtype
) -> torch.Tensor:
    """Products of the signs of several dimensions (number, whole size, offset, size), (elements, SKETCH)."""
    found = torch.ones(1, SKETCH, dtype=dtype, device=device)
    for dim, whole_size, offset, size in dims:
        own = _signs(dim, whole_size, device)[offset : offset + size].to(dtype)
        found = (found[:, None] * own[None]).reshape(-1, SKETCH)
    return found


def project(piece: torch.Tensor, shape: Sequence[int], box: Box) -> torch.Tensor:
    """Sketch of a float32 or float64 tensor that lies in `box` of a tensor of `shape`: (SKETCH,) float64.

    The dimensions are cut in two, so that most of the work is one matrix product with few rows.
    """
    if not shape:
        return piece.reshape(1).expand(SKETCH).to(torch.float64)
    dims = tuple((d, n, o, m) for d, (n, o, m) in enumerate(zip(shape, box.offsets, box.sizes, strict=True)))
    if len(dims) == 1:
        return _project_line(piece.reshape(-1), dims[0])
    cut = min(range(1, len(dims)), key=lambda d: math.prod(box.sizes[:d]) + math.prod(box.sizes[d:]))
    left = _block_signs(dims[:cut], piece.device, piece.dtype)
    right = _block_signs(dims[cut:], piece.device, torch.float64)
    rows = left.T @ piece.reshape(len(left), -1)  # (SKETCH, elements of the other dimensions)
    return (rows.to(torch.float64) * right.T).sum(1)


def _project_line(flat: torch.Tensor, dim: tuple[int, int, int, int]) -> torch.Tensor:
    """Sketch of a part of a vector, piece by piece: the signs of a long one are as large as eight of it."""
    number, whole_size, offset, _ = dim
    signs = _signs(number, whole_size, flat.device)
    total = torch.zeros(SKETCH, dtype=torch.float64, device=flat.device)
    for start in range(0, len(flat), _CHUNK):
        part = flat[start : start + _CHUNK]
        own = signs[offset + start : offset + start + len(part)].to(flat.dtype)
        total += (part @ own).to(torch.float64)
    return total


def _integers(flat: torch.Tensor) -> torch.Tensor:
    """Bit patterns as int64, mixed by a bijection that lets high bits reach low ones."""
    width = flat.element_size()
    bits = flat.view(_BITS[width]).to(torch.int64)
    if width == 4:
        bits = bits ^ (bits >> 16)
    elif width == 8:
        bits = (bits ^ ((bits >> 30) & 0x3FFFFFFFF)) * -4658895280553007687
        bits = bits ^ ((bits >> 27) & 0x1FFFFFFFFF)
    return bits


def _hash(flat: torch.Tensor, keys: torch.Tensor) -> int:
    total = 0
    for start in range(0, flat.numel(), _CHUNK):
        bits = _integers(flat[start : start + _CHUNK])
        part = keys[start : start + _CHUNK]
        chunk = torch.dot(bits, part) if bits.device.type == "cpu" else (bits * part).sum()
        total += int(chunk)
    return total & _MASK


def _signless(flat: torch.Tensor, digest: int, keys: torch.Tensor) -> int:
    """Digest with -0.0 taken as +0.0."""
    if not flat.is_floating_point():
        return digest
    bits = flat.view(_BITS[flat.element_size()])
    lowest = torch.iinfo(bits.dtype).min if bits.dtype != torch.uint8 else 0x80
    if bits.device.type == "cpu":  # numpy finds them several times as fast
        places = np.flatnonzero(bits.numpy() == lowest)
        if not len(places):
            return digest
        where = torch.from_numpy(places)
    else:
        where = (bits == lowest).nonzero().reshape(-1)
        if not len(where):
            return digest
    zeros = torch.zeros(len(where), dtype=flat.dtype, device=flat.device)
    return (digest - _hash(flat[where], keys[where]) + _hash(zeros, keys[where])) & _MASK


def _is_bfloat16(flat: torch.Tensor) -> bool:
    if flat.dtype == torch.bfloat16:
        return True
    if flat.dtype == torch.float32:
        start = flat[:_SAMPLE].view(torch.int32) & 0xFFFF  # nearly always enough to say no
        return not bool(start.any()) and not bool((flat.view(torch.int32) & 0xFFFF).any())
    if flat.dtype in {torch.float64, torch.float16}:
        return bool((flat.to(torch.bfloat16).to(flat.dtype) == flat).all())
    return False


def pieces(value: torch.Tensor, boxes: Sequence[Box]) -> list[torch.Tensor]:
    """Cut a rank's tensor into the pieces that fill the boxes, dropping padding.

    A tensor of the boxes' number of dimensions holds them one behind another along the dimension in which they
    differ; a flat one holds them one behind another row-major. CaptureError where that does not come out.
    """
    rank = len(boxes[0].sizes) if boxes else 0
    if value.dim() == rank and len(boxes) == 1:
        _check_fits(value.shape, boxes[0].sizes, value)
        return [value[tuple(slice(0, n) for n in boxes[0].sizes)]]
    if value.dim() == 1:
        ends = np.cumsum([box.numel for box in boxes]).tolist()
        if (ends[-1] if ends else 0) > value.numel():
            raise CaptureError(f"boxes of {ends[-1]} elements for a flat tensor of {value.numel()}")
        return [value[end - box.numel : end].reshape(box.sizes) for box, end in zip(boxes, ends, strict=True)]
    if value.dim() != rank:
        raise CaptureError(f"a tensor of shape {tuple(value.shape)} for boxes of {rank} dimensions")
    dim = next(
        (d for d in range(rank) if any(box.offsets[d] != boxes[0].offsets[d] for box in boxes)),
        max(rank - 1, 0),
    )
    found, start = [], 0
    for box in boxes:
        cut = value.narrow(dim, start, box.sizes[dim]) if start + box.sizes[dim] <= value.shape[dim] else None
        if cut is None:
            raise CaptureError(f"boxes reach beyond a tensor of shape {tuple(value.shape)}")
        _check_fits(cut.shape, box.sizes, value)
        found.append(cut[tuple(slice(0, n) for n in box.sizes)])
        start += box.sizes[dim]
    return found


def _check_fits(shape: Sequence[int], sizes: Sequence[int], value: torch.Tensor) -> None:
    if any(n > have for n, have in zip(sizes, shape, strict=True)):
        raise CaptureError(f"a box of {tuple(sizes)} for a tensor of shape {tuple(value.shape)}")


def _for_sketch(flat: torch.Tensor, wide: torch.Tensor) -> torch.Tensor:
    """Format of the projections: FP32 is wide enough for sums of 16-bit numbers, and quicker."""
    return wide.to(torch.float32) if flat.is_floating_point() and flat.element_size() == 2 else wide


@torch.no_grad()
def fingerprint(value: torch.Tensor, shape: Sequence[int], boxes: Sequence[Box]) -> Fingerprint:
    """Fingerprint of a rank's tensor whose elements fill `boxes` of a global tensor of `shape`.

    CaptureError where the tensor is complex, sparse or quantised, or does not fill the boxes.
    """
    if value.is_complex() or value.is_sparse or value.is_quantized or value.layout != torch.strided:
        raise CaptureError(f"a tensor of type {value.dtype}, layout {value.layout} has no fingerprint")
    digest = digest_nz = count = bad = 0
    total = squares = 0.0
    low, high = np.inf, -np.inf
    sketch = torch.zeros(SKETCH, dtype=torch.float64)
    lowbits = True
    for piece, box in zip(pieces(value.detach(), boxes), boxes, strict=True):
        if not piece.numel():
            continue
        flat = piece.reshape(-1)
        keys = _KEYS.of(tuple(shape), box, flat.device)
        part = _hash(flat, keys)
        digest += part
        digest_nz += _signless(flat, part, keys)
        count += flat.numel()
        lowbits = lowbits and _is_bfloat16(flat)
        wide = flat.to(torch.float64)
        least, greatest = (float(v) for v in torch.stack(torch.aminmax(flat)).tolist())
        if not (np.isfinite(least) and np.isfinite(greatest)):
            finite = wide.isfinite()
            bad += int((~finite).sum())
            wide = wide.where(finite, 0.0)
            kept = wide[finite]
            least, greatest = (float(kept.min()), float(kept.max())) if len(kept) else (np.inf, -np.inf)
        low, high = min(low, least), max(high, greatest)
        sums = torch.cat(
            [
                wide.sum().reshape(1),
                torch.dot(wide, wide).reshape(1),
                project(_for_sketch(flat, wide), shape, box),
            ]
        ).cpu()
        total += float(sums[0])
        squares += float(sums[1])
        sketch += sums[2:]
    some = low <= high
    return Fingerprint(
        digest=digest & _MASK,
        digest_nz=digest_nz & _MASK,
        numel=count,
        sum=total,
        sum_squares=squares,
        abs_max=max(abs(low), abs(high)) if some else None,
        min=low if some else None,
        max=high if some else None,
        non_finite=bad,
        lowbits=lowbits and value.is_floating_point(),
        sketch=tuple(sketch.tolist()),
    )
