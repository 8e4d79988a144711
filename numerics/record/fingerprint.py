"""What a capture keeps of a tensor at level `digest`: fingerprint, extremes, sums and a sketch.

All of it is additive over the parts of a global tensor: every rank computes it from its own shard, without
communication, and the parts of any sharding add up to the same whole.
"""

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
import torch

from numerics.errors import CaptureError
from numerics.record.digest import KEYS, MASK, digest, digest_unsigned_zero
from numerics.record.pieces import pieces
from numerics.record.sketch import in_sketch_format, project
from numerics.schema import SKETCH, Box
from numerics.thresholds.recording import LOW_BITS_SAMPLE, SCRATCH_ELEMENTS


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


class _Finite(NamedTuple):
    """A flat tensor in float64 with 0 for what is not finite, and its least and greatest finite number."""

    wide: torch.Tensor
    non_finite: int
    least: float
    greatest: float


class _Scratch(threading.local):
    """Memory of each thread for the float64 copy of a tensor: fresh pages would cost more than the copy itself."""

    def __init__(self) -> None:
        self._held = torch.empty(0, dtype=torch.float64)

    def wide(self, flat: torch.Tensor) -> torch.Tensor:
        """Return a tensor in float64, which the next call overwrites; a new one on a device or where it is large."""
        if flat.device.type != "cpu" or flat.numel() > SCRATCH_ELEMENTS:
            return flat.to(torch.float64)
        if len(self._held) < flat.numel():
            self._held = torch.empty(flat.numel(), dtype=torch.float64)
        return self._held[: flat.numel()].copy_(flat)


_SCRATCH: Final = _Scratch()


def _finite(flat: torch.Tensor) -> _Finite:
    wide = _SCRATCH.wide(flat)
    least, greatest = (float(v) for v in torch.stack(torch.aminmax(flat)).tolist())
    if np.isfinite(least) and np.isfinite(greatest):
        return _Finite(wide, 0, least, greatest)
    finite = wide.isfinite()
    kept = wide[finite]
    least, greatest = (float(kept.min()), float(kept.max())) if len(kept) else (np.inf, -np.inf)
    return _Finite(wide.where(finite, 0.0), int((~finite).sum()), least, greatest)


def _is_bfloat16(flat: torch.Tensor) -> bool:
    """Return whether every value is a bfloat16 number."""
    if flat.dtype == torch.bfloat16:
        return True
    if flat.dtype == torch.float32:
        start = flat[:LOW_BITS_SAMPLE].view(torch.int32) & 0xFFFF
        return not bool(start.any()) and not bool((flat.view(torch.int32) & 0xFFFF).any())
    if flat.dtype in {torch.float64, torch.float16}:
        return bool((flat.to(torch.bfloat16).to(flat.dtype) == flat).all())
    return False


def _sums(flat: torch.Tensor, wide: torch.Tensor, shape: Sequence[int], box: Box) -> torch.Tensor:
    """Return sum, sum of squares and sketch on the CPU, (2 + SKETCH,) float64, in one transfer from a device."""
    total, squares = wide.sum().reshape(1), torch.dot(wide, wide).reshape(1)
    return torch.cat([total, squares, project(in_sketch_format(flat, wide), shape, box)]).cpu()


@torch.no_grad()
def fingerprint(value: torch.Tensor, shape: Sequence[int], boxes: Sequence[Box]) -> Fingerprint:
    """Return the fingerprint of a rank's tensor whose elements fill `boxes` of a global tensor of `shape`.

    CaptureError where the tensor is complex, sparse or quantised, or does not fill the boxes.
    """
    if value.is_complex() or value.is_sparse or value.is_quantized or value.layout != torch.strided:
        raise CaptureError(f"a tensor of type {value.dtype}, layout {value.layout} has no fingerprint")
    found = found_nz = count = bad = 0
    low, high, lowbits = np.inf, -np.inf, True
    sums = torch.zeros(2 + SKETCH, dtype=torch.float64)
    for piece, box in zip(pieces(value.detach(), boxes), boxes, strict=True):
        if not piece.numel():
            continue
        flat = piece.reshape(-1)
        keys = KEYS.of(tuple(shape), box, flat.device)
        part = digest(flat, keys)
        found += part
        found_nz += digest_unsigned_zero(flat, part, keys)
        count += flat.numel()
        lowbits = lowbits and _is_bfloat16(flat)
        finite = _finite(flat)
        bad += finite.non_finite
        low, high = min(low, finite.least), max(high, finite.greatest)
        sums += _sums(flat, finite.wide, shape, box)
    some, (total, squares, *sketch) = low <= high, sums.tolist()
    return Fingerprint(
        digest=found & MASK,
        digest_nz=found_nz & MASK,
        numel=count,
        sum=total,
        sum_squares=squares,
        abs_max=max(abs(low), abs(high)) if some else None,
        min=low if some else None,
        max=high if some else None,
        non_finite=bad,
        lowbits=lowbits and value.is_floating_point(),
        sketch=tuple(sketch),
    )
