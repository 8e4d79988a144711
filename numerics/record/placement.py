"""Which part of a global tensor a DTensor's local tensor is: boxes, copies and partial sums from its placements.

Placements are applied from the outermost mesh dimension inwards, as DTensor defines them: `Shard` cuts into even
chunks (the last ones smaller or empty), `_StridedShard` cuts each of `split_factor` pieces (FSDP over tensor
parallelism), `Replicate` copies, `Partial` leaves one addend of a sum.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise, product
from typing import Any

import torch

from numerics.errors import CaptureError
from numerics.schema import Box, whole


@dataclass(frozen=True)
class Placed:
    """A rank's part: the local tensor, the global shape, its boxes, number of the copy, name of the addend."""

    local: torch.Tensor
    shape: tuple[int, ...]
    boxes: tuple[Box, ...]
    replica: int = 0
    partial: str | None = None


def placed(tensor: torch.Tensor) -> Placed:
    """Where a tensor's local part lies; a plain tensor is its own whole. CaptureError for placements unknown here."""
    from torch.distributed.tensor import DTensor

    if not isinstance(tensor, DTensor):
        return Placed(tensor, tuple(tensor.shape), whole(tensor.shape))
    mesh, coordinate = tensor.device_mesh, tensor.device_mesh.get_coordinate()
    names = mesh.mesh_dim_names or tuple(f"mesh{d}" for d in range(mesh.ndim))
    shape = tuple(tensor.shape)
    local = tensor._local_tensor.detach()  # noqa: SLF001 - to_local() would go through autograd
    if coordinate is None:
        return Placed(local, shape, ())
    kept = [torch.arange(size) for size in shape]
    replica, addend = 0, []
    for dim, placement in enumerate(tensor.placements):
        at, size = coordinate[dim], mesh.size(dim)
        if placement.is_replicate():
            replica = replica * size + at
        elif placement.is_partial():
            addend.append(f"{names[dim]}={at}")
        else:
            cut = _cut_dimension(placement, len(shape))
            kept[cut] = _chunk(kept[cut], size, at, int(getattr(placement, "split_factor", 1)))
    return Placed(local, shape, boxes_of(kept), replica, ",".join(addend) or None)


def _cut_dimension(placement: Any, dims: int) -> int:
    cut = getattr(placement, "dim", None)
    if not isinstance(cut, int) or not -dims <= cut < dims:
        raise CaptureError(f"placement {placement} is unknown; declare the boxes with Recorder.record")
    return cut % dims


def _chunk(indices: torch.Tensor, size: int, at: int, split: int) -> torch.Tensor:
    """Part `at` of `size` even chunks, of each of `split` pieces."""
    parts = []
    for piece in torch.chunk(indices, split) if split > 1 else (indices,):
        chunks = torch.chunk(piece, size)
        parts.append(chunks[at] if at < len(chunks) else piece[:0])
    return torch.cat(parts)


def boxes_of(kept: Sequence[torch.Tensor]) -> tuple[Box, ...]:
    """Boxes of the product of index sets, one set a dimension, in the order of the local tensor.

    Only one dimension may consist of several runs: then the boxes stand one behind another along it.
    """
    runs = [_runs(indices) for indices in kept]
    if sum(len(r) > 1 for r in runs) > 1:
        raise CaptureError(
            "a tensor cut with strides in two dimensions; declare its boxes with Recorder.record"
        )
    return tuple(Box(tuple(o for o, _ in corner), tuple(n for _, n in corner)) for corner in product(*runs))


def _runs(indices: torch.Tensor) -> list[tuple[int, int]]:
    """Consecutive stretches as (first, length)."""
    if not len(indices):
        return [(0, 0)]
    breaks = (torch.diff(indices) != 1).nonzero().reshape(-1) + 1
    edges = [0, *breaks.tolist(), len(indices)]
    return [(int(indices[s]), e - s) for s, e in pairwise(edges)]
