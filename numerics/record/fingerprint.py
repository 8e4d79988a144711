"""What a capture keeps of a tensor at level `digest`: fingerprint, extremes, sums and a sketch.

All of it is additive over the parts of a global tensor: every rank computes it from its own shard, without
communication, and the parts of any sharding add up to the same whole.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch

from numerics.errors import CaptureError
from numerics.record.digest import KEYS, MASK, digests
from numerics.record.pieces import pieces
from numerics.record.sketch import projection, sketch_format
from numerics.schema import SKETCH, Box
from numerics.thresholds.recording import HASH_CHUNK, HOST_CHUNK, LOW_BITS_SAMPLE

LOW_BITS: Final = 0xFFFF
"""Bits of a float32 number that a bfloat16 number lacks."""


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


class _Sums:
    """Digest and statistics of a flat tensor, added up chunk by chunk, so that each is read from memory once."""

    def __init__(self) -> None:
        self.digest = self.digest_nz = self.bad = 0
        self.low, self.high = math.inf, -math.inf
        self.total = self.squares = 0.0
        self.sketch = np.zeros(SKETCH)
        self.lowbits = True

    def add(self, flat: torch.Tensor, shape: tuple[int, ...], box: Box) -> None:
        """Add a flat piece that fills a box."""
        keys = KEYS.of(shape, box, flat.device)
        form = sketch_format(flat.dtype)
        how = projection(shape, box, flat.device, form)
        chunk = HOST_CHUNK if flat.device.type == "cpu" else HASH_CHUNK
        size = max(chunk // how.columns, 1) * how.columns
        sums: torch.Tensor | None = None
        for start in range(0, flat.numel(), size):
            part, own = flat, keys
            if flat.numel() > size:
                part, own = flat[start : start + size], keys[start : start + size]
            found, found_nz = digests(part, own)
            self.digest += found
            self.digest_nz += found_nz
            self.lowbits = self.lowbits and _is_bfloat16(part)
            wide = self._finite(part)
            self.total += float(wide.sum())
            self.squares += float(torch.dot(wide, wide))
            sums = how.add(sums, wide if form == torch.float64 else part.to(form), start)
        if sums is not None:
            self.sketch += how.sketch(sums).cpu().numpy()

    def _finite(self, part: torch.Tensor) -> torch.Tensor:
        """Return a chunk in float64 with 0 for what is not finite, and take its extremes."""
        wide = part.double()
        least, greatest = _extremes(part)
        if not (math.isfinite(least) and math.isfinite(greatest)):
            finite = wide.isfinite()
            kept = wide[finite]
            self.bad += int((~finite).sum())
            wide = wide.where(finite, 0.0)
            least, greatest = (float(kept.min()), float(kept.max())) if len(kept) else (math.inf, -math.inf)
        self.low, self.high = min(self.low, least), max(self.high, greatest)
        return wide


_WITH_EXTREMES: Final = {
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64),
    *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
}
"""Formats with extremes in torch: 8-bit floats and the wider unsigned integers have none."""


def _extremes(part: torch.Tensor) -> tuple[float, float]:
    """Return the least and the greatest element; NaN where there is one."""
    if part.device.type == "cpu" and part.dtype in {torch.float32, torch.float64}:
        values = part.numpy()  # half of torch's time
        return float(np.minimum.reduce(values)), float(np.maximum.reduce(values))
    least, greatest = torch.aminmax(part if part.dtype in _WITH_EXTREMES else part.double())
    return float(least), float(greatest)


def _is_bfloat16(flat: torch.Tensor) -> bool:
    """Return whether every value is a bfloat16 number."""
    if flat.dtype == torch.bfloat16:
        return True
    if flat.dtype == torch.float32:
        bits = flat.view(torch.int32)
        if flat.device.type != "cpu":
            return not bool((bits & LOW_BITS).any())
        start = np.bitwise_or.reduce(bits.numpy()[:LOW_BITS_SAMPLE])
        return not start & LOW_BITS and not np.bitwise_or.reduce(bits.numpy()) & LOW_BITS
    if flat.dtype in {torch.float64, torch.float16}:
        return bool((flat.to(torch.bfloat16).to(flat.dtype) == flat).all())
    return False


def refusal(value: torch.Tensor) -> str:
    """Return why a tensor has no fingerprint; empty where it has one."""
    if value.dtype.is_complex or value.is_quantized or value.layout != torch.strided:
        return f"a tensor of type {value.dtype}, layout {value.layout} has no fingerprint"
    return ""


@torch.no_grad()
def fingerprint(value: torch.Tensor, shape: Sequence[int], boxes: Sequence[Box]) -> Fingerprint:
    """Return the fingerprint of a rank's tensor that fills `boxes` of a global tensor of `shape`.

    CaptureError where the tensor is complex, sparse or quantised, or does not fill the boxes.
    """
    if refused := refusal(value):
        raise CaptureError(refused)
    made, count = _Sums(), 0
    for piece, box in zip(pieces(value.detach(), boxes), boxes, strict=True):
        if not piece.numel():
            continue
        flat = piece.reshape(-1)
        made.add(flat, tuple(shape), box)
        count += flat.numel()
    some = made.low <= made.high
    return Fingerprint(
        digest=made.digest & MASK,
        digest_nz=made.digest_nz & MASK,
        numel=count,
        sum=made.total,
        sum_squares=made.squares,
        abs_max=max(abs(made.low), abs(made.high)) if some else None,
        min=made.low if some else None,
        max=made.high if some else None,
        non_finite=made.bad,
        lowbits=made.lowbits and value.is_floating_point(),
        sketch=tuple(made.sketch.tolist()),
    )
