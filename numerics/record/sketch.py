"""The sketch of a tensor: projections on random signs, which show how two tensors relate without their values.

Each of the SKETCH projections uses products of one sign for each dimension (a tensor sketch; Pham and Pagh 2013).
A sketch is linear, so a factor, a missing or doubled addend and the size of a difference show in it, and it is
additive over the parts of a global tensor.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch

from numerics.keys import random_signs
from numerics.schema import SKETCH, Box
from numerics.thresholds.recording import HASH_CHUNK


@lru_cache(maxsize=512)
def _signs(dim: int, size: int, device: torch.device) -> torch.Tensor:
    """Return random signs for the coordinates 0 to `size` of dimension `dim`, (size, SKETCH) int8."""
    return torch.from_numpy(random_signs(dim, size, SKETCH)).to(device)


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


@dataclass(frozen=True)
class Projection:
    """How a box of a global tensor is sketched: signs of its outer and of its inner dimensions.

    The dimensions are split into two groups, so that most of the work is one matrix product with few rows. `outer` is
    (SKETCH, rows), `inner` (SKETCH, columns) float64; a vector or a scalar has one column.
    """

    outer: torch.Tensor
    inner: torch.Tensor

    @property
    def columns(self) -> int:
        """Elements of a row: chunks of a tensor are whole rows."""
        return self.inner.shape[1]

    def add(self, sums: torch.Tensor | None, chunk: torch.Tensor, start: int) -> torch.Tensor:
        """Return sums, (SKETCH, columns), with the elements from `start` on added."""
        rows = chunk.view(-1, self.columns)
        first = start // self.columns
        signs = self.outer[:, first : first + len(rows)].to(chunk.dtype)
        return signs @ rows if sums is None else torch.addmm(sums, signs, rows, out=sums)

    def sketch(self, sums: torch.Tensor) -> torch.Tensor:
        """Return the sketch, (SKETCH,) float64, from the sums of all elements."""
        return (sums.to(torch.float64) * self.inner).sum(1)


@lru_cache(maxsize=2048)
def projection(shape: tuple[int, ...], box: Box, device: torch.device, dtype: torch.dtype) -> Projection:
    """Return how tensors of a format that lie in `box` of a global tensor of `shape` are sketched."""
    dims = tuple((d, n, o, m) for d, (n, o, m) in enumerate(zip(shape, box.offsets, box.sizes, strict=True)))
    if len(dims) == 1:  # as bytes: signs of a long vector in its own format would take eight times its memory
        number, whole_size, offset, size = dims[0]
        outer = _signs(number, whole_size, device)[offset : offset + size]
        return Projection(outer.T, _block_signs((), device, torch.float64).T)
    cuts = range(1, len(dims))
    cut = min(cuts, key=lambda d: math.prod(box.sizes[:d]) + math.prod(box.sizes[d:]), default=0)
    outer, inner = _block_signs(dims[:cut], device, dtype), _block_signs(dims[cut:], device, torch.float64)
    return Projection(outer.T.contiguous(), inner.T.contiguous())


def project(piece: torch.Tensor, shape: Sequence[int], box: Box) -> torch.Tensor:
    """Return the sketch of a float32 or float64 tensor that lies in `box` of a tensor of `shape`: (SKETCH,) float64."""
    how = projection(tuple(shape), box, piece.device, piece.dtype)
    flat = piece.reshape(-1)
    size = max(HASH_CHUNK // how.columns, 1) * how.columns
    sums: torch.Tensor | None = None
    for start in range(0, len(flat), size):
        sums = how.add(sums, flat[start : start + size], start)
    return torch.zeros(SKETCH, dtype=torch.float64) if sums is None else how.sketch(sums)


def sketch_format(dtype: torch.dtype) -> torch.dtype:
    """Return the format in which a tensor is projected: FP32 for 16-bit numbers, wide enough and quicker; else FP64."""
    return torch.float32 if dtype in {torch.bfloat16, torch.float16} else torch.float64
