"""Who sits where: ranks, axes and groups of a made-up job.

Data parallelism has two parts: `dpi` (inner: the FSDP shard, or the experts' group) and `dpo` (outer: replicas). Their
product is dp; a job without experts and without HSDP has dpo = 1.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product


@dataclass(frozen=True)
class Layout:
    """Sizes of the axes, inner to outer."""

    sizes: tuple[tuple[str, int], ...]

    @property
    def world(self) -> int:
        """Number of ranks."""
        total = 1
        for _, size in self.sizes:
            total *= size
        return total

    def size(self, *axes: str) -> int:
        """Product of the sizes of these axes."""
        known, total = dict(self.sizes), 1
        for axis in axes:
            total *= known[axis]
        return total

    def coords(self, rank: int) -> dict[str, int]:
        """Coordinates of a rank."""
        found = {}
        for axis, size in self.sizes:
            found[axis] = rank % size
            rank //= size
        return found

    def rank(self, coords: dict[str, int]) -> int:
        """The rank at these coordinates."""
        found, stride = 0, 1
        for axis, size in self.sizes:
            found += coords[axis] * stride
            stride *= size
        return found

    def group(self, rank: int, axes: Sequence[str]) -> tuple[int, ...]:
        """Ranks that share all other coordinates with `rank`, ascending."""
        here = self.coords(rank)
        spans = [range(size) if axis in axes else (here[axis],) for axis, size in self.sizes]
        names = [axis for axis, _ in self.sizes]
        return tuple(sorted(self.rank(dict(zip(names, place, strict=True))) for place in product(*spans)))

    def groups(self, axes: Sequence[str]) -> list[tuple[int, ...]]:
        """All groups along these axes, in order of their first ranks."""
        return sorted({self.group(rank, axes) for rank in range(self.world)})

    def public(self) -> tuple[tuple[str, int], ...]:
        """Axes as a user writes them for `--mesh`, with dp in one."""
        merged: list[tuple[str, int]] = []
        for axis, size in self.sizes:
            name = "dp" if axis in {"dpi", "dpo"} else axis
            if merged and merged[-1][0] == name:
                merged[-1] = (name, merged[-1][1] * size)
            else:
                merged.append((name, size))
        return tuple(merged)
