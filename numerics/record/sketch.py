"""The sketch of a tensor: projections on random signs, which show how two tensors relate without their values.

Each of the SKETCH projections uses products of one sign for each dimension (a tensor sketch; Pham and Pagh 2013).
A sketch is linear, so a factor, a missing or doubled addend and the size of a difference show in it, and it is
additive over the parts of a global tensor.
"""

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import torch

from numerics.keys import splitmix
from numerics.schema import SKETCH, Box
from numerics.thresholds.recording import HASH_CHUNK


@lru_cache(maxsize=512)
def _signs(dim: int, size: int, device: torch.device) -> torch.Tensor:
    """Return random signs for the coordinates 0 to `size` of dimension `dim`, (size, SKETCH) int8."""
    keys = splitmix(np.arange(size, dtype=np.uint64) + np.uint64((dim + 1) << 48))
    bits = (keys[:, None] >> np.arange(17, 17 + SKETCH, dtype=np.uint64)) & np.uint64(1)
    return torch.from_numpy(bits.astype(np.int8) * np.int8(2) - np.int8(1)).to(device)


@lru_cache(maxsize=512)
def _block_signs(
    dims: tuple[tuple[int, int, int, int], ...], device: torch.device, dtype: torch.dtype
) -> torch.Tensor:
    """Return products of the signs of several dimensions, (elements, SKETCH).

    `dims` gives each dimension as (number, size of the global tensor, offset, size of the box).
    """
    found = torch.ones(1, SKETCH, dtype=dtype, device=device)
    for dim, whole_size, offset, size in dims:
        own = _signs(dim, whole_size, device)[offset : offset + size].to(dtype)
        found = (found[:, None] * own[None]).reshape(-1, SKETCH)
    return found


def project(piece: torch.Tensor, shape: Sequence[int], box: Box) -> torch.Tensor:
    """Return the sketch of a float32 or float64 tensor that lies in `box` of a tensor of `shape`: (SKETCH,) float64.

    The dimensions are split into two groups, so that most of the work is one matrix product with few rows.
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
    """Return the sketch of a part of a vector, chunk by chunk: signs take eight times the vector's memory."""
    number, whole_size, offset, _ = dim
    signs = _signs(number, whole_size, flat.device)
    total = torch.zeros(SKETCH, dtype=torch.float64, device=flat.device)
    for start in range(0, len(flat), HASH_CHUNK):
        part = flat[start : start + HASH_CHUNK]
        own = signs[offset + start : offset + start + len(part)].to(flat.dtype)
        total += (part @ own).to(torch.float64)
    return total


def in_sketch_format(flat: torch.Tensor, wide: torch.Tensor) -> torch.Tensor:
    """Return `wide` (float64) in the format of the projections: FP32 for 16-bit numbers, wide enough and quicker."""
    return flat.to(torch.float32) if flat.is_floating_point() and flat.element_size() == 2 else wide
