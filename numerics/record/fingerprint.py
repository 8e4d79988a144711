"""What a capture keeps of a tensor at level `digest`: fingerprint, extremes, sums and a sketch.

All of it is additive over the parts of a global tensor: every rank computes it from its own shard, without
communication, and the parts of any sharding add up to the same whole.
"""

import math
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch

from numerics.errors import CaptureError
from numerics.record.digest import KEYS, MASK, digest, digest_unsigned_zero
from numerics.record.pieces import pieces
from numerics.record.sketch import projection, sketch_format
from numerics.schema import SKETCH, Box
from numerics.thresholds.recording import HASH_CHUNK, LOW_BITS_SAMPLE, PASS_CHUNK, SCRATCH_ELEMENTS


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


class _Scratch(threading.local):
    """Memory of each thread for the float64 copy of a chunk: fresh pages would cost more than the copy itself."""

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


class _Sums:
    """Digest and statistics of a flat tensor, added up chunk by chunk, so that each is read from memory once."""

    def __init__(self) -> None:
        self.digest = self.digest_nz = self.bad = 0
        self.low, self.high = math.inf, -math.inf
        self.sums = np.zeros(2 + SKETCH)

    def add(self, flat: torch.Tensor, shape: tuple[int, ...], box: Box) -> None:
        """Add a flat piece that fills a box."""
        keys = KEYS.of(shape, box, flat.device)
        form = sketch_format(flat.dtype)
        how = projection(shape, box, flat.device, form)
        chunk = PASS_CHUNK if flat.device.type == "cpu" else HASH_CHUNK
        size = max(chunk // how.columns, 1) * how.columns
        total: torch.Tensor | None = None
        for start in range(0, flat.numel(), size):
            part = flat[start : start + size]
            own = keys[start : start + size]
            found = digest(part, own)
            self.digest += found
            self.digest_nz += digest_unsigned_zero(part, found, own)
            wide = self._finite(part)
            self.sums[0] += float(wide.sum())
            self.sums[1] += float(torch.dot(wide, wide))
            made = how.part(wide if form == torch.float64 else part.to(form), start)
            total = made if total is None else total + made
        if total is not None:
            self.sums[2:] += how.sketch(total).cpu().numpy()

    def _finite(self, part: torch.Tensor) -> torch.Tensor:
        """Return a chunk in float64 with 0 for what is not finite, and take its extremes."""
        wide = _SCRATCH.wide(part)
        least, greatest = (float(value) for value in torch.aminmax(part))
        if not (math.isfinite(least) and math.isfinite(greatest)):
            finite = wide.isfinite()
            kept = wide[finite]
            self.bad += int((~finite).sum())
            wide = wide.where(finite, 0.0)
            least, greatest = (float(kept.min()), float(kept.max())) if len(kept) else (math.inf, -math.inf)
        self.low, self.high = min(self.low, least), max(self.high, greatest)
        return wide


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


@torch.no_grad()
def fingerprint(value: torch.Tensor, shape: Sequence[int], boxes: Sequence[Box]) -> Fingerprint:
    """Return the fingerprint of a rank's tensor whose elements fill `boxes` of a global tensor of `shape`.

    CaptureError where the tensor is complex, sparse or quantised, or does not fill the boxes.
    """
    if value.is_complex() or value.is_sparse or value.is_quantized or value.layout != torch.strided:
        raise CaptureError(f"a tensor of type {value.dtype}, layout {value.layout} has no fingerprint")
    made, count, lowbits = _Sums(), 0, True
    for piece, box in zip(pieces(value.detach(), boxes), boxes, strict=True):
        if not piece.numel():
            continue
        flat = piece.reshape(-1)
        made.add(flat, tuple(shape), box)
        count += flat.numel()
        lowbits = lowbits and _is_bfloat16(flat)
    some, (total, squares, *sketch) = made.low <= made.high, made.sums.tolist()
    return Fingerprint(
        digest=made.digest & MASK,
        digest_nz=made.digest_nz & MASK,
        numel=count,
        sum=total,
        sum_squares=squares,
        abs_max=max(abs(made.low), abs(made.high)) if some else None,
        min=made.low if some else None,
        max=made.high if some else None,
        non_finite=made.bad,
        lowbits=lowbits and value.is_floating_point(),
        sketch=tuple(sketch),
    )
