"""The rank grid of a simulated job and its process groups, named as real launchers name them."""

from dataclasses import dataclass, field
from itertools import product
from math import prod

from tracekit.axes import AXES

MEGATRON = {
    "tp": "TENSOR_MODEL_PARALLEL_GROUP",
    "cp": "CONTEXT_PARALLEL_GROUP",
    "pp": "PIPELINE_MODEL_PARALLEL_GROUP",
    "dp": "DATA_PARALLEL_GROUP",
    "dp_cp": "DATA_PARALLEL_GROUP_WITH_CP",
    "tp_cp": "TENSOR_AND_CONTEXT_PARALLEL_GROUP",
    "mp": "MODEL_PARALLEL_GROUP",
    "embd": "EMBEDDING_GROUP",
    "world": "default_pg",
}
TORCHTITAN = {
    "tp": "mesh_tp",
    "cp": "mesh_cp",
    "pp": "mesh_pp",
    "dp": "mesh_dp_shard",
    "dp_cp": "mesh_dp_shard_cp",
    "tp_cp": "mesh_tp_cp",
    "mp": "mesh_pp_tp",
    "embd": "undefined",
    "world": "default_pg",
}
SPANS = {
    "tp": ("tp",),
    "cp": ("cp",),
    "pp": ("pp",),
    "dp": ("dp",),
    "dp_cp": ("dp", "cp"),
    "tp_cp": ("tp", "cp"),
    "mp": ("tp", "pp"),
    "world": AXES,
}


@dataclass(frozen=True)
class Mesh:
    """Axis sizes and their order from inner to outer."""

    order: tuple[str, ...]
    sizes: dict[str, int]

    @property
    def world(self) -> int:
        return prod(self.sizes.values())

    def coords(self, rank: int) -> dict[str, int]:
        out = {}
        for axis in self.order:
            rank, out[axis] = divmod(rank, self.sizes[axis])
        return out

    def rank(self, coords: dict[str, int]) -> int:
        out, stride = 0, 1
        for axis in self.order:
            out += coords[axis] * stride
            stride *= self.sizes[axis]
        return out

    def partition(self, axes: tuple[str, ...]) -> list[tuple[int, ...]]:
        """All groups whose members differ only along `axes`, members ascending."""
        fixed = [axis for axis in reversed(self.order) if axis not in axes]
        groups = []
        for values in product(*(range(self.sizes[axis]) for axis in fixed)):
            base = dict(zip(fixed, values, strict=True))
            inner = [
                self.rank(base | dict(zip(axes, v, strict=True)))
                for v in product(*(range(self.sizes[axis]) for axis in axes))
            ]
            groups.append(tuple(sorted(inner)))
        return groups


@dataclass
class Group:
    """One process group: `kind` is the simulator's alone; traces show `name`, `desc` and the members."""

    index: int
    kind: str
    ranks: tuple[int, ...]
    name: str = ""
    desc: str = ""


@dataclass
class Groups:
    """Every process group of a job, and which of them a rank belongs to, by kind."""

    all: list[Group] = field(default_factory=list)
    of: list[dict[str, Group]] = field(default_factory=list)


def make_groups(mesh: Mesh, kinds: tuple[str, ...], style: str, naming: str) -> Groups:
    """Build the groups of `kinds`. `style`: megatron, torchtitan, undefined, empty; `naming`: global, local.

    Local naming restarts the counter on every rank, so that one name stands for other members elsewhere.
    """
    groups = Groups(of=[{} for _ in range(mesh.world)])
    descs = {"megatron": MEGATRON, "torchtitan": TORCHTITAN}.get(style)
    for kind in ("world", *kinds):
        if kind == "embd":
            first_last = [(g[0], g[-1]) for g in mesh.partition(("pp",))]
            members = [tuple(sorted(set(pair))) for pair in first_last]
        else:
            members = mesh.partition(SPANS[kind])
        for ranks in members:
            group = Group(len(groups.all), kind, ranks)
            local = len(groups.of[ranks[0]])
            group.name = str(local if naming == "local" else group.index)
            group.desc = descs[kind] if descs else ("undefined" if style == "undefined" else "")
            if kind == "world" and style != "empty":
                group.desc = "default_pg"
            groups.all.append(group)
            for rank in ranks:
                groups.of[rank][kind] = group
    return groups
