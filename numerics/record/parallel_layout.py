"""The data-parallel rank and coordinates of a wrapped model, from DDP's group or the meshes of DTensors."""

from collections.abc import Iterator
from typing import Any, Final

import torch.distributed as dist
from torch import nn

from tracekit.axes import AXES

DATA: Final = ("dp", "fsdp", "data", "batch", "replicate", "shard")
"""How the names of data-parallel dimensions of a mesh begin."""


def layout_of(model: nn.Module) -> tuple[tuple[int, int], dict[str, int]]:
    """Return (data-parallel index, number of data-parallel ranks) and this rank's coordinates on the mesh's axes.

    Without DDP and DTensors, or without torch.distributed, a model is taken to be one data-parallel rank.
    """
    if not (dist.is_available() and dist.is_initialized()):
        return (0, 1), {}
    wrapper = next((m for m in model.modules() if isinstance(m, nn.parallel.DistributedDataParallel)), None)
    if wrapper is not None:  # perhaps within a compiled module
        group = wrapper.process_group
        dp = dist.get_rank(group), dist.get_world_size(group)
        return dp, {"dp": dp[0]}
    mesh = max(_meshes(model), key=lambda m: m.ndim, default=None)
    if mesh is None or mesh.get_coordinate() is None:
        return (0, 1), {}
    index, size, coords = 0, 1, {}
    for dim, at in enumerate(mesh.get_coordinate()):
        name = mesh.mesh_dim_names[dim] if mesh.mesh_dim_names else "dp" if mesh.ndim == 1 else ""
        if name.startswith(DATA):
            index, size = index * mesh.size(dim) + at, size * mesh.size(dim)
        elif name in AXES:
            coords[name] = at
    return (index, size), {**coords, "dp": index}


def _meshes(model: nn.Module) -> Iterator[Any]:
    """Yield the meshes of the parameters that are DTensors."""
    for parameter in model.parameters():
        mesh = getattr(parameter, "device_mesh", None)
        if mesh is not None:
            yield mesh
