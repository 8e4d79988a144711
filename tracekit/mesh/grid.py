"""A mesh as data: axes from inner to outer, sizes, and the coordinates of every rank.

Coordinates are held explicitly, not derived from strides, so that any numbering of ranks can be described.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product

from tracekit.axes import DATA, DESCENT, PIPELINE, ROLES


@dataclass(frozen=True)
class Mesh:
    """Axes `order` (inner to outer), `sizes` of every axis, and per rank its index on each axis of `order`."""

    order: tuple[str, ...]
    sizes: dict[str, int]
    coordinates: dict[int, tuple[int, ...]]

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return len(self.coordinates)

    def coords(self, rank: int) -> dict[str, int]:
        """Index of `rank` on every axis, in descent order (DP, PP, CP, TP, then others); KeyError for no rank of it."""
        index = dict(zip(self.order, self.coordinates[rank], strict=True))
        descent = [d for d in DESCENT if d in index]
        return {d: index[d] for d in [*descent, *(d for d in self.order if d not in descent)]}

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
        columns = list(zip(*(self.coordinates[r] for r in ranks), strict=True))
        dims = tuple(d for d, values in zip(self.order, columns, strict=True) if len(set(values)) > 1)
        return dims if set(self.line(ranks[0], dims)) == set(members) else None


def from_sizes(sizes: dict[str, int], order: Sequence[str]) -> Mesh:
    """Return the mesh whose rank numbers count up along `order`, inner axis first; `sizes` holds every axis of it."""
    full = tuple(order)
    ranges = [range(sizes[d]) for d in reversed(full)]
    coordinates = {r: tuple(reversed(c)) for r, c in enumerate(product(*ranges))}
    return Mesh(full, {d: sizes[d] for d in full}, coordinates)
