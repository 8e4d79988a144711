"""A mesh as data: axes from inner to outer, sizes, and the coordinates of every rank.

Coordinates are held explicitly, not derived from strides, so that any numbering of ranks can be described. An axis
inside another, as that of experts, has no coordinate of its own: it cuts the ranks of a stage into groups.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product

from tracekit.axes import DATA, LEVELS, PARTS, PIPELINE, ROLES, TABLE


@dataclass(frozen=True)
class Part:
    """An axis inside another: equal groups of the ranks of each stage. `groups` holds the members in order."""

    groups: tuple[tuple[int, ...], ...]

    @property
    def size(self) -> int:
        """Ranks in a group."""
        return len(self.groups[0])

    @cached_property
    def group_of(self) -> dict[int, tuple[int, ...]]:
        """The group of each rank; the index of a rank is its place there."""
        return {rank: group for group in self.groups for rank in group}


@dataclass(frozen=True)
class Mesh:
    """Axes `order` (inner to outer), `sizes` of every axis, and per rank its index on each axis of `order`.

    parts: the axes inside others, of more than one rank, by name. programs: the meshes of the programs of a job that
    has several; their stages and replicas have indices of their own in `coordinates`.
    """

    order: tuple[str, ...]
    sizes: dict[str, int]
    coordinates: dict[int, tuple[int, ...]]
    parts: Mapping[str, Part] = field(default_factory=dict)
    programs: tuple["Mesh", ...] = ()

    def of_program(self, rank: int) -> "Mesh":
        """Return the mesh of the program of `rank`: this one, where the job has one program. KeyError as `coords`."""
        return self.programs[self.program(rank)] if self.programs else self

    def program(self, rank: int) -> int:
        """Return the number of the program of `rank`, 0 where the job has one; KeyError for no rank of the mesh."""
        return self._program_of[rank] if self.programs else 0

    @cached_property
    def _program_of(self) -> dict[int, int]:
        return {rank: number for number, mesh in enumerate(self.programs) for rank in mesh.coordinates}

    @property
    def part_sizes(self) -> dict[str, int]:
        """Sizes of the axes inside others."""
        return {axis: part.size for axis, part in self.parts.items()}

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return len(self.coordinates)

    def coords(self, rank: int) -> dict[str, int]:
        """Index of `rank` on every axis of its program, by LEVELS, then others; KeyError for no rank of the mesh."""
        if self.programs:
            return self.of_program(rank).coords(rank)
        index = dict(zip(self.order, self.coordinates[rank], strict=True))
        index |= {name: part.group_of[rank].index(rank) for name, part in self.parts.items()}
        descent = [d for d in LEVELS if d in index]
        return {d: index[d] for d in [*descent, *(d for d in self.order if d not in descent)]}

    def size(self, axis: str) -> int:
        """Return the size of an axis, inside another or not; 1 where the mesh does not have it."""
        return self.parts[axis].size if axis in self.parts else self.sizes.get(axis, 1)

    @property
    def stages(self) -> int:
        """Number of pipeline stages."""
        return self.sizes[PIPELINE]

    def stage(self, rank: int) -> int:
        """Return the pipeline stage of `rank`; KeyError for no rank of the mesh."""
        return self.coordinates[rank][self.order.index(PIPELINE)]

    def replica(self, rank: int) -> int:
        """Return the data-parallel index of `rank`: ranks that share it work on the same data. KeyError as above."""
        return self.coordinates[rank][self.order.index(DATA)]

    def counterparts(self, rank: int) -> tuple[int, ...]:
        """Return the ranks with the place of `rank` in all data-parallel replicas."""
        return self.line(rank, (DATA,))

    def pipeline(self, rank: int) -> tuple[int, ...]:
        """Return the ranks of the pipeline of `rank`, itself included, sorted."""
        return self.line(rank, (PIPELINE,))

    @property
    def roles(self) -> tuple[tuple[str, ...], ...]:
        """The choices of axes along which the first rank may work for all; none without tensor groups."""
        return tuple(axes for axes in ROLES if self.sizes[axes[0]] > 1)

    def leads(self, rank: int, axes: Iterable[str]) -> bool:
        """Return whether `rank` is the first along each of `axes`."""
        return all(self.coordinates[rank][self.order.index(axis)] == 0 for axis in axes)

    @cached_property
    def _lines(self) -> dict[tuple[str, ...], dict[tuple[int, ...], tuple[int, ...]]]:
        return {}

    def line(self, rank: int, dims: Iterable[str]) -> tuple[int, ...]:
        """Return the ranks that differ from `rank` only on the axes `dims`, itself included, sorted."""
        free = tuple(sorted(set(dims)))
        inside = [axis for axis in free if axis in self.parts]
        if inside:
            rest = [axis for axis in free if axis not in inside]
            mates = {mate for axis in inside for mate in self.parts[axis].group_of[rank]}
            return tuple(sorted({other for mate in mates for other in self.line(mate, rest)}))
        table = self._lines.get(free)
        if table is None:
            buckets: dict[tuple[int, ...], list[int]] = {}
            for r, c in self.coordinates.items():
                buckets.setdefault(self._fixed(c, free), []).append(r)
            table = self._lines[free] = {k: tuple(sorted(v)) for k, v in buckets.items()}
        return table[self._fixed(self.coordinates[rank], free)]

    def _fixed(self, coordinate: tuple[int, ...], free: Sequence[str]) -> tuple[int, ...]:
        return tuple(c for d, c in zip(self.order, coordinate, strict=True) if d not in free)

    def dims_of(self, members: Iterable[int]) -> tuple[str, ...] | None:
        """Return the axes along which a group extends; None unless it is exactly the full product of those axes."""
        ranks = [r for r in members if r in self.coordinates]
        if not ranks:
            return None
        dims, whole = self._extent(ranks), set(members)
        if set(self.line(ranks[0], dims)) == whole:
            return dims
        return next((found for part in self.parts if (found := self._inside(part, ranks[0], whole))), None)

    def copies(self, rank: int, axis: str) -> tuple[int, ...]:
        """Return the ranks that hold the same part as `rank` of what the axis inside another divides, sorted.

        Such ranks have its index, and its place on the axes that divide the model and that no group of the axis spans.
        """
        group = self.parts[axis].group_of[rank]
        spanned, dividing = self._extent(group), {row.name for row in TABLE if row.divides_model}
        free = [name for name in self.order if name in spanned or name not in dividing]
        place = group.index(rank)
        return tuple(r for r in self.line(rank, free) if self.parts[axis].group_of[r].index(r) == place)

    def _extent(self, ranks: Sequence[int]) -> tuple[str, ...]:
        """The axes of the order on which `ranks` differ."""
        columns = list(zip(*(self.coordinates[r] for r in ranks), strict=True))
        return tuple(d for d, values in zip(self.order, columns, strict=True) if len(set(values)) > 1)

    def _inside(self, axis: str, rank: int, members: set[int]) -> tuple[str, ...] | None:
        """The axes of the group `members`, of which `rank` is one, where it extends along the axis inside another."""
        group = self.parts[axis].group_of[rank]
        beyond = tuple(d for d in self._extent([*members]) if d not in self._extent(group))
        if set(self.line(rank, (*beyond, axis))) == members:
            return (*beyond, axis)
        return (PARTS[axis].copies or axis,) if set(self.copies(rank, axis)) == members else None


def from_sizes(sizes: dict[str, int], order: Sequence[str]) -> Mesh:
    """Return the mesh with ranks numbered along `order`, inner axis first; `sizes` holds every axis of it."""
    full = tuple(order)
    ranges = [range(sizes[d]) for d in reversed(full)]
    coordinates = {r: tuple(reversed(c)) for r, c in enumerate(product(*ranges))}
    return Mesh(full, {d: sizes[d] for d in full}, coordinates)
