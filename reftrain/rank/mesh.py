"""The rank grid: the coordinates of every rank, and the process groups of every axis.

Ranks are numbered with the first axis of `mesh.order` innermost (neighbouring ranks). Groups are made by
torch's DeviceMesh, so that their descriptions read `mesh_tp`, `mesh_cp`, `mesh_pp`, `mesh_dp`, `mesh_dp_cp`
as torchtitan's do. Context parallelism is an extension of data parallelism for parameters: both together
are the axis `dp_cp`, over which FSDP2 shards and gradients are summed.
"""

import datetime as dt
import math
from collections.abc import Mapping, Sequence
from functools import cached_property

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from reftrain.config.run import MeshConfig
from reftrain.rank.comm import Axis
from reftrain.rank.events import CallListener


def coordinates(rank: int, sizes: Mapping[str, int], order: Sequence[str]) -> dict[str, int]:
    """Coordinates of a rank, `order` naming the axes from inner to outer."""
    coords: dict[str, int] = {}
    for axis in order:
        rank, coords[axis] = divmod(rank, sizes[axis])
    return coords


def rank_at(coords: Mapping[str, int], sizes: Mapping[str, int], order: Sequence[str]) -> int:
    """Rank with these coordinates; the inverse of `coordinates`."""
    rank = 0
    for axis in reversed(order):
        rank = rank * sizes[axis] + coords[axis]
    return rank


class Mesh:
    """Axes, coordinates and process groups of this rank. Constructed on every rank at the same time."""

    def __init__(
        self, config: MeshConfig, device: torch.device, hooks: CallListener, timeout_s: float
    ) -> None:
        self.config = config
        self.rank = dist.get_rank()
        self.sizes = config.sizes
        self.coords = coordinates(self.rank, self.sizes, config.order)
        self._hooks = hooks
        self._flat: dict[str, DeviceMesh] = {}
        self._timeout = dt.timedelta(seconds=timeout_s)
        self.device_mesh = self._device_mesh(device.type)
        self.fsdp_mesh = self._fsdp_mesh()
        self.tp = self._axis(("tp",))
        self.cp = self._axis(("cp",))
        self.pp = self._axis(("pp",))
        self.dp = self._axis(("dp",))
        self.dp_cp = self._axis(("dp", "cp"))
        self.ep, self.edp = self._expert_axes()

    def coords_of(self, rank: int) -> dict[str, int]:
        """Coordinates of any rank."""
        return coordinates(rank, self.sizes, self.config.order)

    @property
    def shard_size(self) -> int:
        """Ranks among which FSDP2 shards each parameter."""
        return self.fsdp_mesh.size(self.fsdp_mesh.ndim - 1)

    @property
    def shard_index(self) -> int:
        """This rank's place among the ranks that shard."""
        return self.fsdp_mesh.get_local_rank(self.fsdp_mesh.ndim - 1)

    def shard_of(self, *, dealt: bool) -> tuple[int, int]:
        """Number of ranks that shard a parameter, and this rank's place; `dealt` for an expert's over `ep`."""
        return (self.edp.size, self.edp.index) if dealt else (self.shard_size, self.shard_index)

    @cached_property
    def expert_mesh(self) -> DeviceMesh | None:
        """Ranks that hold the same experts, as FSDP2 takes them; None where `ep` deals none out."""
        if self.ep.size == 1 or self.edp.group is None:
            return None
        return DeviceMesh.from_group(self.edp.group, self.device_mesh.device_type, mesh_dim_names=("edp",))

    def _expert_axes(self) -> tuple[Axis, Axis]:
        """Return two axes: of the ranks that share out the experts, and of the ranks that hold the same experts.

        `ep` neighbours on dp share the experts of one copy of the model; dp = edp · ep, and context ranks hold
        copies as they do of everything else.
        """
        size = self.config.ep
        if size == 1:
            alone = Axis("ep", 0, [self.rank], None, self._hooks)
            return alone, self.dp_cp
        first = self.dp.index // size * size
        same = [r for r in self.dp_cp.ranks if self.coords_of(r)["dp"] % size == self.dp.index % size]
        return self.subgroup("ep", self.dp.ranks[first : first + size]), self.subgroup("edp", sorted(same))

    @property
    def replica_index(self) -> int:
        """This rank's place among the ranks that hold the same shard."""
        return self.fsdp_mesh.get_local_rank(0) if self.fsdp_mesh.ndim == 2 else 0

    def _split_dp(self) -> tuple[int, int]:
        """Sizes of dp_replicate and dp_shard; (1, dp) without HSDP, (dp, 1) for ZeRO-0."""
        dp = self.config.dp
        shard = 1 if self.config.replicates else (self.config.dp_shard or dp)
        return dp // shard, shard

    @property
    def _hybrid(self) -> bool:
        return self.config.replicates or self._split_dp()[0] > 1

    def _dimensions(self) -> dict[str, int]:
        """DeviceMesh dimensions from outer to inner; axes of size 1 are left out unless FSDP2 needs them."""
        replicate, shard = self._split_dp()
        dims: dict[str, int] = {}
        for axis in reversed(self.config.order):
            if axis == "dp" and self._hybrid:
                dims |= {"dp_replicate": replicate, "dp_shard": shard}
            elif self.sizes[axis] > 1 or (axis == "dp" and self.sizes["cp"] == 1):
                dims[axis] = self.sizes[axis]
        return dims

    def _device_mesh(self, device_type: str) -> DeviceMesh:
        dims = self._dimensions()
        return init_device_mesh(device_type, tuple(dims.values()), mesh_dim_names=tuple(dims))

    def _submesh(self, names: tuple[str, ...], flat: str) -> DeviceMesh:
        """One-dimensional mesh that joins several dimensions under a new name; a single one stays as it is."""
        if len(names) == 1:
            return self.device_mesh[names[0]]
        if flat not in self._flat:
            self._flat[flat] = self.device_mesh[names]._flatten(flat)  # noqa: SLF001 - it has no public name
        return self._flat[flat]

    def _present(self, *names: str) -> tuple[str, ...]:
        dims = self.device_mesh.mesh_dim_names or ()
        return tuple(name for name in dims if name in names)

    def _fsdp_mesh(self) -> DeviceMesh:
        if not self._hybrid:
            return self._submesh(self._present("dp", "cp"), "dp_cp")
        if self.config.replicates:
            replicate = self._submesh(self._present("dp_replicate", "cp"), "dp_cp")
            shard = self.device_mesh["dp_shard"]
        else:
            replicate = self.device_mesh["dp_replicate"]
            shard = self._submesh(self._present("dp_shard", "cp"), "dp_shard_cp")
        return DeviceMesh._concatenate([replicate, shard])  # noqa: SLF001 - flattened dimensions need it

    def _axis(self, axes: tuple[str, ...]) -> Axis:
        """Build the axis over all ranks that differ from this one in the given coordinates only."""
        order = [axis for axis in self.config.order if axis in axes]
        sizes = [self.sizes[axis] for axis in order]
        ranks, index = [], 0
        for number in range(math.prod(sizes)):
            coords = coordinates(number, self.sizes, order)
            member = rank_at({**self.coords, **coords}, self.sizes, self.config.order)
            if member == self.rank:
                index = number
            ranks.append(member)
        name = "_".join(axes)
        return Axis(name, index, ranks, self._group(axes, name) if len(ranks) > 1 else None, self._hooks)

    def _group(self, axes: tuple[str, ...], name: str) -> dist.ProcessGroup:
        wanted = [
            f"{a}{part}" for a in axes for part in (("", "_replicate", "_shard") if a == "dp" else ("",))
        ]
        dims = tuple(n for n in self._present(*wanted) if self.device_mesh[n].size() > 1)
        group = self._submesh(dims, name).get_group()
        dist.distributed_c10d._set_pg_timeout(self._timeout, group)  # noqa: SLF001 - DeviceMesh takes no timeout
        return group

    def subgroup(self, name: str, ranks: Sequence[int]) -> Axis:
        """Make an extra axis over `ranks`; to be called by these ranks only, in the same order on each."""
        group = dist.new_group(
            list(ranks), timeout=self._timeout, use_local_synchronization=True, group_desc=f"mesh_{name}"
        )
        return Axis(name, list(ranks).index(self.rank), ranks, group, self._hooks)
