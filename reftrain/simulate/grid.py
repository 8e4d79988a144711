"""The rank grid of a simulated job as arrays, and its process groups.

All ranks of one pipeline coordinate run the same program, so the engine computes them together: an array of shape
(dp, cp, tp), flattened, holds one number for each. Groups have the numbers and descriptions that torch's DeviceMesh
gives them in real traces.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
import numpy.typing as npt

from reftrain.cost import links
from tracekit.axes import AXES

I64 = npt.NDArray[np.int64]
F64 = npt.NDArray[np.float64]

ARRAY_AXES: Final = ("dp", "cp", "tp")
"""Axes of an array of one pipeline rank, outer to inner."""
DEALT: Final = "ep"
"""Kind of group of neighbours on dp that share out experts; in a folded array dp is (dp/ep, ep)."""
SPANS: Final[Mapping[str, tuple[str, ...]]] = {**links.SPANS, "own": ()}
"""Axes along which the members of each kind of process group differ; a rank is alone in its `own` group."""
REPLICAS: Final = "replicas_"
"""Prefix of the kind of group that joins the owners of a stage; the number of the stage follows."""


def spanned(kind: str) -> tuple[str, ...]:
    """Return the axes along which the members of a kind of group differ."""
    return () if kind.startswith(REPLICAS) else SPANS[kind]


@dataclass(frozen=True)
class Group:
    """One process group. `ranks` are global ranks in ascending order."""

    name: str
    desc: str
    kind: str
    ranks: tuple[int, ...]

    @property
    def stride(self) -> int:
        """Distance between neighbouring members where it is uniform, else 0."""
        steps = {b - a for a, b in zip(self.ranks, self.ranks[1:], strict=False)}
        return steps.pop() if len(steps) == 1 else 0


class Grid:
    """Sizes and order of the axes, and the arithmetic between ranks, coordinates and arrays.

    `order` names the axes from inner (neighbouring ranks) to outer; `ep` divides dp. A host holds `node_size` ranks.
    """

    def __init__(
        self, sizes: Mapping[str, int], order: Sequence[str], ep: int = 1, node_size: int = 1
    ) -> None:
        self.ep, self.node_size = ep, node_size
        self.sizes = {axis: int(sizes[axis]) for axis in AXES}
        self.order = tuple(order)
        self.strides: dict[str, int] = {}
        stride = 1
        for axis in self.order:
            self.strides[axis] = stride
            stride *= self.sizes[axis]
        self.world = stride
        self._groups: dict[tuple[str, int], Group] = {}
        self.joints: list[tuple[str, tuple[int, ...]]] = []  # groups that join pipeline ranks: (kind, those)

    def join(self, kind: str, stages: tuple[int, ...]) -> None:
        """Register groups that join the groups of a kind over several pipeline ranks: replicas of a stage."""
        if (kind, stages) not in self.joints:
            self.joints.append((kind, stages))
            self.joints.sort()

    @property
    def stages(self) -> int:
        """Pipeline ranks."""
        return self.sizes["pp"]

    @property
    def width(self) -> int:
        """Ranks of one pipeline rank: dp · cp · tp."""
        return self.world // self.stages

    @property
    def shape(self) -> tuple[int, int, int]:
        """Shape of an array of one pipeline rank: (dp, cp, tp)."""
        return self.sizes["dp"], self.sizes["cp"], self.sizes["tp"]

    @property
    def folded(self) -> tuple[int, int, int, int]:
        """Shape of the same array with dp in two: (dp/ep, ep, cp, tp)."""
        dp, cp, tp = self.shape
        return dp // self.ep, self.ep, cp, tp

    @cached_property
    def offsets(self) -> I64:
        """Global rank less its pipeline part, by place in the array; (width,)."""
        index = np.indices(self.shape)
        parts = [index[i] * self.strides[axis] for i, axis in enumerate(ARRAY_AXES)]
        return np.asarray(sum(parts), np.int64).reshape(-1)

    def ranks(self, stage: int) -> I64:
        """Return the global ranks of a pipeline rank, in array order; (width,)."""
        return self.offsets + stage * self.strides["pp"]

    def nodes(self, stage: int) -> I64:
        """Return the numbers of the hosts of a pipeline rank's ranks, in array order; (width,)."""
        return self.ranks(stage) // self.node_size

    def coords(self, rank: int) -> dict[str, int]:
        """Return the coordinates of a rank."""
        return {axis: rank // self.strides[axis] % self.sizes[axis] for axis in self.order}

    def place(self, rank: int) -> tuple[int, int]:
        """Return the pipeline rank of a rank and its place in the array."""
        at = self.coords(rank)
        _, cp, tp = self.shape
        return at["pp"], (at["dp"] * cp + at["cp"]) * tp + at["tp"]

    def size(self, kind: str) -> int:
        """Return the number of members of a group of this kind."""
        return math.prod(self.along(kind, axis) for axis in self.order)

    def along(self, kind: str, axis: str) -> int:
        """Return how many members of a group of this kind differ along an axis."""
        if axis not in spanned(kind):
            return 1
        return self.ep if kind == DEALT else self.sizes[axis]

    def over(self, kind: str) -> tuple[int, ...]:
        """Return the dimensions of a folded array of one pipeline rank over which a group of this kind spans."""
        if kind == DEALT:
            return (1,)
        outer = (0,) if "dp" in spanned(kind) else ()
        return outer + tuple(i + 1 for i, axis in enumerate(ARRAY_AXES) if axis in spanned(kind))

    @cached_property
    def kinds(self) -> tuple[str, ...]:
        """Kinds of groups that exist, in the order in which they are made."""
        kinds = ["world", *(axis for axis in self.order if self.sizes[axis] > 1)]
        if self.sizes["dp"] > 1 and self.sizes["cp"] > 1:
            kinds.append("dp_cp")
        if self.ep > 1:
            kinds.append(DEALT)
        return tuple(kinds)

    def group(self, kind: str, rank: int) -> Group:
        """Return the group of this kind that a rank belongs to."""
        at = self.coords(rank)
        first = rank - sum(at[axis] % self.along(kind, axis) * self.strides[axis] for axis in self.order)
        known = self._groups.get((kind, first))
        if known is None:
            known = self._groups[kind, first] = self._make(kind, first)
        return known

    def group_over(self, kind: str, stages: tuple[int, ...], rank: int) -> Group:
        """Return the group that joins a rank's groups of a kind over several pipeline ranks, its own over none."""
        if not stages:
            return self.group(kind, rank)
        offset = rank - self.coords(rank)["pp"] * self.strides["pp"]
        parts = [self.group(kind, offset + stage * self.strides["pp"]) for stage in stages]
        before = 1 + sum(self.world // self.size(other) for other in self.kinds[1:])
        place = self.joints.index((kind, stages)) * self.world + parts[0].ranks[0]
        ranks = tuple(sorted(r for part in parts for r in part.ranks))
        return Group(str(before + place), f"mesh_{kind}", "replicas", ranks)

    def groups_of(self, rank: int) -> list[Group]:
        """Return all groups that a rank belongs to."""
        stage = self.coords(rank)["pp"]
        own = [self.group(kind, rank) for kind in self.kinds]
        return own + [self.group_over(kind, s, rank) for kind, s in self.joints if stage in s]

    def _make(self, kind: str, first: int) -> Group:
        members = np.array([first], np.int64)
        for axis in spanned(kind):
            steps = np.arange(self.along(kind, axis)) * self.strides[axis]
            members = (members[:, None] + steps[None, :]).reshape(-1)
        ranks = tuple(sorted(members.tolist()))
        if kind == "world":
            return Group("0", "default_pg", kind, ranks)
        return Group(str(self._number(kind, first)), f"mesh_{kind}", kind, ranks)

    def _number(self, kind: str, first: int) -> int:
        """Return the number of a group: 0 is the world, then all groups of one kind follow those of another."""
        before = 1
        for other in self.kinds[1:]:
            if other == kind:
                break
            before += self.world // self.size(other)
        at = self.coords(first)
        place, stride = 0, 1
        for axis in self.order:
            members = self.along(kind, axis)
            place += at[axis] // members * stride
            stride *= self.sizes[axis] // members
        return before + place
