"""The mesh of a job and its process groups."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import product
from math import prod


@dataclass(frozen=True)
class Group:
    """A process group: its name and description, its members in order, and when it was made."""

    name: str
    desc: str
    ranks: tuple[int, ...]
    number: int


@dataclass(frozen=True)
class Mesh:
    """Axes from inner to outer with their sizes."""

    axes: tuple[tuple[str, int], ...]

    @property
    def world(self) -> int:
        """How many ranks there are."""
        return prod(size for _, size in self.axes)

    def coords(self, rank: int) -> dict[str, int]:
        """Where a rank stands on each axis."""
        found = {}
        for name, size in self.axes:
            rank, found[name] = divmod(rank, size)
        return found

    def size(self, axis: str) -> int:
        """The size of an axis, 1 if there is none."""
        return dict(self.axes).get(axis, 1)

    def rank(self, coords: dict[str, int]) -> int:
        """The rank that stands there."""
        found, stride = 0, 1
        for name, size in self.axes:
            found += coords[name] * stride
            stride *= size
        return found

    def partition(self, axes: tuple[str, ...]) -> list[tuple[int, ...]]:
        """Ranks that differ on these axes alone, for all places on the others."""
        others = [name for name, _ in self.axes if name not in axes]
        places = product(*(range(self.size(name)) for name in reversed(others)))
        kept = [dict(zip(reversed(others), place, strict=True)) for place in places]
        everybody = [(rank, self.coords(rank)) for rank in range(self.world)]
        by: dict[tuple[int, ...], list[int]] = {tuple(keep[name] for name in others): [] for keep in kept}
        for rank, coords in everybody:
            by[tuple(coords[name] for name in others)].append(rank)
        return [tuple(ranks) for ranks in by.values()]


@dataclass
class Groups:
    """All groups of a job, made in one order on all ranks; `hashed` names them as meshes do that split a group."""

    mesh: Mesh
    hashed: bool = False
    made: list[Group] = field(default_factory=list)
    of: dict[tuple[str, int], Group] = field(default_factory=dict)

    def add(self, role: str, desc: str, axes: tuple[str, ...]) -> None:
        """Make the groups of some axes, known by a role."""
        self.add_ranks(role, desc, self.mesh.partition(axes))

    def add_ranks(self, role: str, desc: str, parts: Sequence[tuple[int, ...]]) -> None:
        """Make groups of these ranks."""
        for ranks in parts:
            number = len(self.made)
            name = str(number)
            if self.hashed and number:
                name = hashlib.sha1(f"{desc}{ranks}".encode(), usedforsecurity=False).hexdigest()
            group = Group(name, desc, ranks, number)
            self.made.append(group)
            for rank in ranks:
                self.of[role, rank] = group

    def get(self, role: str, rank: int) -> Group | None:
        """A rank's group of a role, where it has one of at least two ranks."""
        group = self.of.get((role, rank))
        return group if group and len(group.ranks) > 1 else None
