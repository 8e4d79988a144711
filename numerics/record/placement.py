"""Finds which part of a global tensor a DTensor's local tensor is: boxes, copies and partial sums.

Placements are applied from the outermost mesh dimension inwards, as DTensor defines them: `Shard` cuts into even
chunks (the last ones smaller or empty), `_StridedShard` cuts each of `split_factor` pieces (FSDP over tensor
parallelism), `Replicate` copies, `Partial` leaves one addend of a sum.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, product
from typing import Any

import torch

from numerics.errors import CaptureError
from numerics.schema import Box, whole


@dataclass(frozen=True)
class Placed:
    """A rank's part: the local tensor, the global shape, its boxes, the copy's number, the addend's name."""

    local: torch.Tensor
    shape: tuple[int, ...]
    boxes: tuple[Box, ...]
    replica: int = 0
    partial: str | None = None


def as_pairs(at: Placed) -> Placed:
    """Return a part of a complex tensor as real numbers, with real and imaginary parts in a last dimension."""
    boxes = tuple(Box((*box.offsets, 0), (*box.sizes, 2)) for box in at.boxes)
    return replace(at, local=torch.view_as_real(at.local.resolve_conj()), shape=(*at.shape, 2), boxes=boxes)


def local(tensor: torch.Tensor) -> torch.Tensor:
    """Return what this rank holds of a tensor."""
    held: torch.Tensor = getattr(tensor, "_local_tensor", tensor)
    return held.detach()


def placed(tensor: torch.Tensor) -> Placed:
    """Return where a tensor's local part lies; a plain tensor is its own whole. CaptureError for unknown placements."""
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
            local = _own_rows(placement, local)
        else:
            cut = _cut_dimension(placement, len(shape))
            kept[cut] = _chunk(kept[cut], size, at, int(getattr(placement, "split_factor", 1)))
    return Placed(local, shape, boxes_of(kept), replica, ",".join(addend) or None)


def _own_rows(placement: Any, local: torch.Tensor) -> torch.Tensor:
    """Return a rank's addend of an embedding: zero where a word is another rank's, as the sum will have it."""
    mask = getattr(getattr(placement, "mask_buffer", None), "data", None)
    if mask is None or mask.shape != local.shape[: mask.dim()]:
        return local
    return local.masked_fill(mask.reshape(*mask.shape, *[1] * (local.dim() - mask.dim())), 0)


def _cut_dimension(placement: Any, dims: int) -> int:
    cut = getattr(placement, "dim", None)
    if not isinstance(cut, int) or not -dims <= cut < dims:
        raise CaptureError(f"placement {placement} is unknown; declare the boxes with Recorder.record")
    return cut % dims


def _chunk(indices: torch.Tensor, size: int, at: int, split: int) -> torch.Tensor:
    """Return part `at` of `size` even chunks, of each of `split` pieces."""
    parts = []
    for piece in torch.chunk(indices, split) if split > 1 else (indices,):
        chunks = torch.chunk(piece, size)
        parts.append(chunks[at] if at < len(chunks) else piece[:0])
    return torch.cat(parts)


def boxes_of(kept: Sequence[torch.Tensor]) -> tuple[Box, ...]:
    """Return the boxes that a product of index sets covers, one set for each dimension, in the local tensor's order.

    Only one dimension may consist of several stretches; the boxes then follow one another along it. CaptureError
    where two do.
    """
    stretches = [_stretches(indices) for indices in kept]
    if sum(len(s) > 1 for s in stretches) > 1:
        raise CaptureError(
            "a tensor cut with strides in two dimensions; declare its boxes with Recorder.record"
        )
    return tuple(
        Box(tuple(o for o, _ in corner), tuple(n for _, n in corner)) for corner in product(*stretches)
    )


def _stretches(indices: torch.Tensor) -> list[tuple[int, int]]:
    """Return the stretches of consecutive indices as (first, length)."""
    if not len(indices):
        return [(0, 0)]
    breaks = (torch.diff(indices) != 1).nonzero().reshape(-1) + 1
    edges = [0, *breaks.tolist(), len(indices)]
    return [(int(indices[s]), e - s) for s, e in pairwise(edges)]
