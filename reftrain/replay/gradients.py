"""From micro-batch gradients to the step's gradient: accumulation, reduction over data, last partial sums, norm.

Gradients are summed, never averaged. Everything is kept for every virtual rank on its own shard, because the
norm and the optimiser see shards.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from reftrain.config.run import RunConfig
from reftrain.layout.declaration import Declaration, Parameter
from reftrain.layout.grid import EVERYWHERE, Grid, Seat
from reftrain.replay.formats import Formats
from reftrain.replay.observer import Observer
from reftrain.replay.ring import ring_sum
from tracekit.axes import DESCENT

Shards = dict[Seat, dict[str, Tensor]]
MIB = 1 << 20


@dataclass
class StepResult:
    """Loss in nats per token, count of valid targets, gradient norm (1,), every rank's shards of gradients."""

    loss: float
    valid: int
    norm: Tensor
    gradients: Shards


class Accumulator:
    """One rank's gradients of one virtual stage, added micro-batch by micro-batch as FSDP2 does."""

    def __init__(self, formats: Formats) -> None:
        self.formats = formats
        self.sums: dict[str, Tensor] = {}

    def add(self, grads: Mapping[str, Tensor]) -> None:
        """Add one micro-batch; the first is the sum's first value."""
        for name, grad in grads.items():
            if name in self.sums:
                self.sums[name] = (self.sums[name] + grad).to(self.formats.accumulate)
            else:
                self.sums[name] = grad.to(self.formats.accumulate, copy=True)

    def take(self) -> dict[str, Tensor]:
        """Hand out the sums and start again."""
        sums, self.sums = self.sums, {}
        return sums


def flat_buffer(
    tensors: Sequence[Tensor], parameters: Sequence[Parameter], ranks: int, dtype: torch.dtype
) -> Tensor:
    """Return gradients as one buffer to reduce, (ranks, n): for each destination its padded part of every parameter."""
    pieces = []
    for whole, parameter in zip(tensors, parameters, strict=True):
        tensor = torch.cat(whole.chunk(ranks, dim=1)) if parameter.data_dim == 1 else whole
        rows = -(-len(tensor) // ranks) * ranks
        rest = tensor.new_zeros((rows - len(tensor), *tensor.shape[1:]), dtype=dtype)
        pieces.append(torch.cat([tensor.to(dtype), rest]).view(ranks, -1))
    return torch.cat(pieces, dim=1)


def sharding_axis(dealt: int) -> str:
    """Return the axis over which a unit is sharded: dp_cp, or edp where ep deals it out."""
    return "dp_cp" if dealt == EVERYWHERE else "edp"


class Reducer:
    """Sums a stage's gradients over data and context parallelism into shards."""

    def __init__(
        self, config: RunConfig, grid: Grid, declared: Declaration, formats: Formats, observer: Observer
    ) -> None:
        self.config, self.grid, self.declared, self.formats = config, grid, declared, formats
        self.observer = observer
        self._replica_sums: dict[tuple[int, str, Seat], Tensor] = {}

    def reduce(
        self,
        stage: int,
        pp: int,
        tp: int,
        whole: Mapping[Seat, Mapping[str, Tensor]],
        shards: Shards,
        *,
        last: bool,
    ) -> None:
        """Reduce every unit of a stage on a pipeline rank; `whole` are each seat's accumulated gradients."""
        self._keep_whole(stage, pp, tp, whole, shards)
        for unit, parameters in self.declared.units(stage):
            dealt = parameters[0].dealt
            groups, axis = self.grid.shard_groups(pp, tp, dealt), sharding_axis(dealt)
            flats: dict[Seat, Tensor] = {}
            for group in groups:
                buffers = {
                    s: flat_buffer(
                        [whole[s][p.name] for p in parameters], parameters, len(group), self.formats.reduce
                    )
                    for s in group
                }
                inputs = {seat: buffer.view(-1) for seat, buffer in buffers.items()}
                name = (axis, "reduce_scatter", f"{unit}.grad")
                inputs = self.observer.reduction_in(*name, inputs)
                total = ring_sum([flat.view(len(group), -1) for flat in inputs.values()])
                after = {seat: total[index].clone() for index, seat in enumerate(group)}
                flats |= self.observer.reduction_out(*name, after)
            if self._is_replicated:
                flats = self._between_replicas(stage, unit, groups, flats, last=last)
                if not last:
                    continue
            for group in groups:
                for index, seat in enumerate(group):
                    self._keep(flats[seat], parameters, len(group), index, shards[seat])

    @property
    def _is_replicated(self) -> bool:
        return between_replicas(self.config) is not None

    def _between_replicas(
        self, stage: int, unit: str, groups: list[list[Seat]], flats: dict[Seat, Tensor], *, last: bool
    ) -> dict[Seat, Tensor]:
        """Add to what earlier reductions of the step left, and on the last one sum over the replicas."""
        sums: dict[Seat, Tensor] = {}
        for seat, own in flats.items():
            before = self._replica_sums.pop((stage, unit, seat), None)
            sums[seat] = own if before is None else own + before
            if not last:
                self._replica_sums[stage, unit, seat] = sums[seat]
        if not last:
            return sums
        out: dict[Seat, Tensor] = {}
        for replicas in zip(*groups, strict=True):
            name = (between_replicas(self.config) or "", "all_reduce", f"{unit}.grad")
            before_sum = self.observer.reduction_in(*name, {seat: sums[seat] for seat in replicas})
            total = ring_sum(list(before_sum.values()))
            out |= self.observer.reduction_out(*name, {seat: total.clone() for seat in replicas})
        return out

    def _keep_whole(
        self, stage: int, pp: int, tp: int, whole: Mapping[Seat, Mapping[str, Tensor]], shards: Shards
    ) -> None:
        """Keep the gradients of parameters that data parallelism leaves whole, each rank its own addend."""
        for parameter in (p for p in self.declared.trained(stage) if p.data_dim is None):
            for seat in self.grid.data_group(pp, tp):
                grad = whole[seat][parameter.name].to(self.formats.parameter)
                before = shards[seat].get(parameter.name)
                shards[seat][parameter.name] = grad if before is None else before + grad

    def _keep(
        self, flat: Tensor, parameters: list[Parameter], ranks: int, index: int, shard: dict[str, Tensor]
    ) -> None:
        """Cut a reduced buffer into the shard's gradients, adding to those of earlier reductions."""
        offset = 0
        flat = flat.to(self.formats.parameter)
        for parameter in parameters:
            dim, _, held = parameter.shard(ranks, index)
            shape = [held if d == dim else n for d, n in enumerate(parameter.local_shape)]
            grad = flat[offset : offset + math.prod(shape)].view(shape)
            offset += parameter.shard_elements(ranks)
            shard[parameter.name] = shard[parameter.name] + grad if parameter.name in shard else grad


def sum_owners(grid: Grid, declared: Declaration, shards: Shards, observer: Observer) -> None:
    """Sum a stage's gradients over the pipeline ranks that hold it, where a bidirectional schedule has several."""
    for stage in declared.numbers:
        owners = declared.pipeline.owners(stage)
        for group in seats_along(grid, "pp") if len(owners) > 1 else []:
            names = [p.name for p in declared.trained(stage, grid.place(group[0]))]
            ranks = {seat: shards[seat] for seat in group if seat.pp in owners}
            _sum_in_one_buffer(names, ranks, f"replicas_{stage}", f"stage{stage}.grad", observer)


def between_replicas(config: RunConfig) -> str | None:
    """Axis over which each unit is summed between its replicas; None where there are none, or it is done in buckets."""
    mesh = config.mesh
    if mesh.replicates:
        return None if mesh.bucket_mb else "dp_cp"
    return "dp" if 0 < mesh.dp_shard < mesh.dp else None


def bucket_names(config: RunConfig, declared: Declaration, pp: int, size: int) -> list[list[str]]:
    """Parameters of each bucket of a pipeline rank: last ones first, whole ones until a bucket is full.

    `size` is the bytes of an element. Source: Li et al. 2020, "PyTorch Distributed", section 3.2.3.
    """
    buckets: list[list[str]] = []
    held = 0
    for parameter in reversed([p for stage in declared.pipeline.held(pp) for p in declared.trained(stage)]):
        own = size * torch.Size(parameter.local_shape).numel()
        if not buckets or held + own > config.mesh.bucket_mb * MIB:
            buckets.append([])
            held = 0
        buckets[-1].append(parameter.name)
        held += own
    return buckets


def sum_buckets(
    config: RunConfig, grid: Grid, declared: Declaration, shards: Shards, observer: Observer
) -> None:
    """Sum over data and context ranks bucket by bucket, as DistributedDataParallel does."""
    for group in seats_along(grid, "dp", "cp"):
        size = next(iter(shards[group[0]].values())).element_size()
        for number, names in enumerate(bucket_names(config, declared, group[0].pp, size)):
            ranks = {seat: shards[seat] for seat in group}
            _sum_in_one_buffer(names, ranks, "dp_cp", f"bucket{number}.grad", observer)


def finish(config: RunConfig, grid: Grid, declared: Declaration, shards: Shards, observer: Observer) -> None:
    """Sum over tp, or over the copies of key/value heads, what data parallelism left partial; then tied ends."""
    if config.mesh.bucket_mb:
        sum_buckets(config, grid, declared, shards, observer)
    for axis in ("dp_cp", "kv", "tp"):
        for group in partial_groups(config, grid, axis):
            names = partial_names(declared, group[0], axis)
            if names and len(group) > 1:
                ranks = {seat: shards[seat] for seat in group}
                _sum_in_one_buffer(names, ranks, axis, f"{axis}.partial_gradients", observer)
    if config.model.tied_embeddings:
        _sum_tied(config, grid, shards, observer)


def partial_groups(config: RunConfig, grid: Grid, axis: str) -> list[list[Seat]]:
    """Ranks of an axis that sum partial gradients with each other, for every other coordinate."""
    if axis == "dp_cp":
        return seats_along(grid, "dp", "cp")
    width = config.mesh.tp if axis == "tp" else max(config.mesh.tp // config.model.kv_heads, 1)
    groups: dict[tuple[int, ...], list[Seat]] = {}
    for seat in grid.seats():
        groups.setdefault((seat.dp, seat.pp, seat.cp, seat.tp // width), []).append(seat)
    return list(groups.values())


def partial_names(declared: Declaration, seat: Seat, axis: str) -> list[str]:
    """Return the parameters of a seat with gradients that are still partial over the axis, in the buffer's order."""
    stages = declared.pipeline.held(seat.pp)
    return [p.name for stage in stages for p in declared.trained(stage) if p.summed_over(axis)]


def _sum_in_one_buffer(names: list[str], ranks: Shards, axis: str, label: str, observer: Observer) -> None:
    buffers = {seat: torch.cat([rank[name].reshape(-1) for name in names]) for seat, rank in ranks.items()}
    buffers = observer.reduction_in(axis, "all_reduce", label, buffers)
    total = ring_sum(list(buffers.values()))
    after = observer.reduction_out(axis, "all_reduce", label, dict.fromkeys(buffers, total))
    for seat, rank in ranks.items():
        pieces = torch.split(after[seat], [rank[name].numel() for name in names])
        for name, piece in zip(names, pieces, strict=True):
            rank[name] = piece.view(rank[name].shape).clone()


def _sum_tied(config: RunConfig, grid: Grid, shards: Shards, observer: Observer) -> None:
    """Both ends of a tied embedding get the sum of their gradients, over the first and last pipeline ranks."""
    first, last = "tok_embeddings.weight", "output.weight"
    for seat in grid.seats():
        if {first, last} <= shards[seat].keys():
            total = ring_sum([shards[seat][first], shards[seat][last]])
            shards[seat][first], shards[seat][last] = total, total.clone()
        if seat.pp or last in shards[seat]:
            continue
        other = Seat(seat.dp, config.mesh.pp - 1, seat.cp, seat.tp)
        name = ("embedding", "all_reduce", "tied_embedding.grad")
        ends = observer.reduction_in(*name, {seat: shards[seat][first], other: shards[other][last]})
        total = ring_sum(list(ends.values()))
        after = observer.reduction_out(*name, {seat: total, other: total.clone()})
        shards[seat][first], shards[other][last] = after[seat], after[other]


def seats_along(grid: Grid, *axes: str) -> list[list[Seat]]:
    """Groups of seats that differ in these axes only, each by global rank."""
    groups: dict[tuple[int, ...], list[Seat]] = {}
    for seat in grid.seats():
        key = tuple(getattr(seat, axis) for axis in DESCENT if axis not in axes)
        groups.setdefault(key, []).append(seat)
    return list(groups.values())
