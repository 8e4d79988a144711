"""Cuts a rank's tensor into the pieces that fill its boxes of the global tensor."""

from collections.abc import Sequence

import numpy as np
import torch

from numerics.errors import CaptureError
from numerics.schema import Box


def pieces(value: torch.Tensor, boxes: Sequence[Box]) -> list[torch.Tensor]:
    """Return the pieces of a rank's tensor that fill the boxes, without padding.

    A tensor with as many dimensions as the boxes holds them one after another along the dimension in which their
    offsets differ. A flat tensor holds them one after another, each row-major. CaptureError where tensor and boxes do
    not fit together.
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
