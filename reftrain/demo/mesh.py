"""The demo's mesh: eight ranks, tensor (inner), pipeline and data parallel (outer), two ways each."""

from dataclasses import dataclass

import torch.distributed as dist

AXES = ("tp", "pp", "dp")
ORDER = ("tp", "cp", "pp", "dp")
SIZES = {"tp": 2, "cp": 1, "pp": 2, "dp": 2}
WORLD_SIZE = 8
STRIDES = {"tp": 1, "pp": 2, "dp": 4}


@dataclass(frozen=True)
class Place:
    """One rank's coordinates and its group on each axis."""

    rank: int
    coords: dict[str, int]
    groups: dict[str, dist.ProcessGroup]

    def peer(self, axis: str, index: int) -> int:
        """Global rank that differs from this one only in its coordinate on `axis`."""
        return self.rank + (index - self.coords[axis]) * STRIDES[axis]


def coordinates(rank: int) -> dict[str, int]:
    """Coordinates of `rank`, tensor parallel fastest."""
    return {axis: rank // STRIDES[axis] % SIZES[axis] for axis in AXES}


def make_place(rank: int) -> Place:
    """Make all process groups (every rank must call this) and return this rank's place among them."""
    groups: dict[str, dist.ProcessGroup] = {}
    for axis in AXES:
        for first in range(WORLD_SIZE):
            if coordinates(first)[axis]:
                continue
            members = [first + i * STRIDES[axis] for i in range(SIZES[axis])]
            group = dist.new_group(members, group_desc=f"mesh_{axis}")
            if rank in members:
                groups[axis] = group
    return Place(rank, coordinates(rank), groups)
