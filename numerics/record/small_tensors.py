"""Fingerprints of many small tensors at once: a call on some thousand elements costs more than the elements.

What `fingerprint` computes of one tensor is computed here of all tensors of one size and format, one row each.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from numerics.record.digest import KEYS, bits_of, digests_of_rows
from numerics.record.fingerprint import LOW_BITS, Fingerprint, fingerprint, refusal
from numerics.record.pieces import pieces
from numerics.record.sketch import projection, sketch_format
from numerics.schema import Box
from numerics.thresholds.recording import SMALL_TENSOR


@dataclass(frozen=True)
class Small:
    """A copy of a small tensor on the CPU, flat, that fills one box of a global tensor of `shape`."""

    flat: torch.Tensor
    shape: tuple[int, ...]
    box: Box


def small_one(value: torch.Tensor, shape: tuple[int, ...], boxes: Sequence[Box]) -> Small | None:
    """Return a copy of a small tensor on the CPU that fills one box, None for every other.

    CaptureError where tensor and box do not fit together.
    """
    fits = value.device.type == "cpu" and len(boxes) == 1 and 0 < boxes[0].numel <= SMALL_TENSOR
    if not fits or refusal(value):
        return None
    return Small(pieces(value, boxes)[0].flatten().clone(), shape, boxes[0])


def fingerprints(tensors: Sequence[Small]) -> list[Fingerprint]:
    """Return the fingerprint of each tensor."""
    found: dict[int, Fingerprint] = {}
    alike: dict[tuple[torch.dtype, tuple[int, ...]], list[int]] = defaultdict(list)
    for number, one in enumerate(tensors):
        alike[one.flat.dtype, one.box.sizes].append(number)
    for numbers in alike.values():
        found.update(zip(numbers, _of_one_size([tensors[n] for n in numbers]), strict=True))
    return [found[number] for number in range(len(tensors))]


@torch.no_grad()
def _of_one_size(tensors: Sequence[Small]) -> list[Fingerprint]:
    """Return the fingerprints of tensors of one format and one size of box."""
    rows = torch.stack([one.flat for one in tensors])
    wide = rows.double().numpy()  # (tensors, elements)
    with np.errstate(over="ignore"):  # of numbers near FP64's largest the sum is infinite, and so recorded
        low, high, total = wide.min(1), wide.max(1), wide.sum(1)
    squares = np.einsum("kn,kn->k", wide, wide)
    keys = [KEYS.of(one.shape, one.box, one.flat.device) for one in tensors]
    digest = digests_of_rows(rows, keys)
    lowbits = _bfloat16_rows(rows)
    sketch = _sketches(rows, tensors)
    return [
        Fingerprint(
            *digest[k],
            numel=rows.shape[1],
            sum=float(total[k]),
            sum_squares=float(squares[k]),
            abs_max=max(abs(float(low[k])), abs(float(high[k]))),
            min=float(low[k]),
            max=float(high[k]),
            non_finite=0,
            lowbits=bool(lowbits[k]),
            sketch=tuple(sketch[k]),
        )
        if np.isfinite(low[k]) and np.isfinite(high[k])
        else fingerprint(one.flat, one.shape, [one.box])
        for k, one in enumerate(tensors)
    ]


def _bfloat16_rows(rows: torch.Tensor) -> np.ndarray:
    """Return for each row whether all its values are bfloat16 numbers, (rows,) bool."""
    if rows.dtype == torch.float32:
        together = np.bitwise_or.reduce(bits_of(rows).numpy(), 1)
        return np.asarray(together & LOW_BITS == 0)
    if not rows.is_floating_point():
        return np.zeros(len(rows), bool)
    return (rows.to(torch.bfloat16).to(rows.dtype) == rows).all(1).numpy()


def _sketches(rows: torch.Tensor, tensors: Sequence[Small]) -> list[list[float]]:
    """Return the sketch of each row, (rows, SKETCH)."""
    form = sketch_format(rows.dtype)
    how = [projection(one.shape, one.box, rows.device, form) for one in tensors]
    outer = torch.stack([one.outer for one in how]).to(form)
    sums = (outer @ rows.to(form).view(len(rows), outer.shape[2], -1)).double()
    return (sums * torch.stack([one.inner for one in how])).sum(2).tolist()
