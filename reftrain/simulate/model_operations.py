"""Operations of a schedule's actions for the reference model: kernels and collectives in their order.

The operations and their times are those of the cost model. Here they become programs: a gather of weights runs ahead
of its layer, a reduction of gradients beside the backward that follows, every other collective blocks. The ZeRO stages
differ in when weights are gathered (once a step, or at every use) and when gradients are reduced.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from reftrain.cost.cost_model import CostModel
from reftrain.cost.job import FP32_BYTES
from reftrain.cost.kernels import Operation
from reftrain.cost.shapes import StageShape, encoder_parameters
from reftrain.schedule.actions import ENCODER, Schedule
from reftrain.simulate.grid import REPLICAS
from reftrain.simulate.kernel_names import OPS
from reftrain.simulate.program import Builder, Parcel, sides
from reftrain.simulate.update import append_clipping, append_update
from reftrain.thresholds import NS, PREFETCHED_BATCH_NS

_SEGMENTS: Final = frozenset({"qkv", "attention", "out", "ffn", "head", "encoder"})
"""Operations that begin a compute segment of the trainer (`reftrain.rank.hooks`)."""

Unit = tuple[int, int]  # virtual stage, layer of it; -1 the embedding, number of layers the head
_IMAGES: Final[Unit] = (ENCODER, 0)
"""The image encoder, gathered and reduced as one."""


@dataclass
class _UnderWay:
    """Transfers of one pipeline rank that run beside compute."""

    gathers: dict[Unit, int] = field(default_factory=dict)
    reductions: list[int] = field(default_factory=list)
    delay_ns: float = 0.0  # by which transfers beside compute slow the next kernel down


class ModelOperations:
    """Operations of the model on every pipeline rank.

    `held` has the virtual stages of every pipeline rank, those of all replicas. `merge` writes the kernels between two
    collectives as one operation, attention apart, for jobs of thousands of ranks. `clip` adds the gradient norm;
    `host_waits` lets the host wait for every message; `fetch_ns` is the time to fetch a batch;
    `encoders` are the pipeline ranks that hold the image encoder.
    """

    def __init__(
        self,
        cost: CostModel,
        shapes: Sequence[StageShape],
        held: Sequence[Sequence[int]],
        *,
        merge: bool = False,
        clip: bool = True,
        host_waits: bool = True,
        fetch_ns: float = PREFETCHED_BATCH_NS,
        encoders: Sequence[int] = (),
    ) -> None:
        self.cost, self.shapes, self.held = cost, shapes, held
        self.merge, self.clip = merge, clip
        self.host_waits, self.fetch_ns = host_waits, fetch_ns
        self.encoders = tuple(encoders)
        mesh = cost.mesh
        self.zero = mesh.zero
        self.shard = "dp_cp" if mesh.dp > 1 and mesh.cp > 1 else "dp" if mesh.dp > 1 else "cp"
        self.sizes = {"tp": mesh.tp, "cp": mesh.cp, "ep": mesh.ep}
        self._under_way: dict[int, _UnderWay] = {}
        self._cache: dict[tuple[object, ...], tuple[Operation, ...]] = {}

    # -- a step's begin and end
    def begin(self, b: Builder) -> None:
        """Fetch the batch; with ZeRO-1 and 2 gather all weights, first used first."""
        self._under_way[b.rank] = _UnderWay()
        b.load(self.fetch_ns)
        if self.zero in {1, 2}:
            if b.rank in self.encoders:
                self._gather(b, _IMAGES)
            for stage in self.held[b.rank]:
                for unit in self._units(stage):
                    self._gather(b, unit)

    def finish(self, b: Builder, stages: tuple[int, ...]) -> None:
        """Clip by the global norm, step the optimizer, and let the host read the loss."""
        under_way = self._under_way[b.rank]
        b.wait(*under_way.reductions)
        under_way.reductions.clear()
        if stages and self.clip:
            append_clipping(b, self.cost, self._updated(stages, b.rank))
        if stages:
            append_update(b, self.cost, self._updated(stages, b.rank))
        b.sync([*b.open, *b.pending])

    def update(self, b: Builder, stage: int) -> None:
        """Step the optimizer of one stage."""
        under_way = self._under_way[b.rank]
        b.wait(*under_way.reductions)
        under_way.reductions.clear()
        append_update(b, self.cost, self._updated((stage,)))

    def _updated(self, stages: Iterable[int], rank: int = -1) -> int:
        """Parameters that the optimiser of a pipeline rank updates, those of all its shards."""
        shapes = self.cost.whole_shapes
        parameters = sum(shapes.trained_parameters(self.shapes[stage]) for stage in stages)
        if rank in self.encoders:
            parameters += self._parameters(_IMAGES)
        return parameters

    def sync_replicas(self, b: Builder, stage: int, owners: tuple[int, ...]) -> int | None:
        """Sum the shards of a stage's gradients over its replicas, beside what follows.

        Each stage's group has a stream of its own, as communicators have: ranks may start the sums in any order.
        """
        if len(owners) == 1:
            return None
        shards = self._shards() if self.zero else 1
        if stage == ENCODER:
            whole = self._parameters(_IMAGES)
            ns = self.cost.encoder_weights("replicas", len(owners)).seconds * NS
        else:
            shape = self.shapes[stage]
            whole = self.cost.shapes.trained_parameters(shape)
            ns = self.cost.sum_replicas(shape, len(owners), shards) * NS
        nelems = whole // shards
        group = f"{REPLICAS}{'encoder' if stage == ENCODER else stage}"
        return b.collective(
            group, "allreduce", ns, (nelems, nelems), wait=False,
            members=owners, dtype="Float",
        )  # fmt: skip

    def messages(self, stage: int, *, gradient: bool) -> list[Parcel]:
        """Return an activation or its gradient, (B, S/cp, D), split over tp where sequences are; then image tokens."""
        del stage
        cost = self.cost
        parcels = [Parcel(cost.message_seconds * NS, cost.local_tokens * cost.model.dim)]
        nbytes, width = cost.token_bytes(gradient=gradient), cost.token_width(gradient=gradient)
        if nbytes:
            dtype = "Float" if width == FP32_BYTES else "BFloat16"
            parcels.append(Parcel(cost.token_seconds(gradient=gradient) * NS, nbytes // width, dtype))
        return parcels

    # -- one micro-batch on one stage
    def forward(self, b: Builder, stage: int, micro_batch: int, *, again: bool) -> None:
        """Run embedding, layers and head forward."""
        del micro_batch, again
        for unit in self._units(stage):
            self._weights(b, unit, 1)
            self._operations(b, self._of(unit, "forward"))

    def backward(self, b: Builder, stage: int, micro_batch: int, *, part: str, reduce: bool) -> None:
        """Run them in reverse; with `reduce` the gradients of each part are reduced while the next part computes."""
        del micro_batch
        phase: Literal["backward", "input", "weight"] = (
            "backward" if part == "all" else "input" if part == "input" else "weight"
        )
        for unit in reversed(self._units(stage)):
            self._weights(b, unit, -1)
            self._operations(b, self._of(unit, phase))
            if reduce and self._trains(unit):
                self._reduce(b, unit)

    def _trains(self, unit: Unit) -> bool:
        inner = 0 <= unit[1] < self.shapes[unit[0]].layers
        return not self.cost.model.frozen or (inner and self.shapes[unit[0]].kind(unit[1]) == "cross")

    # -- images
    def encode(self, b: Builder, *, backward: bool, reduce: bool) -> None:
        """Run the image encoder on one micro-batch."""
        self._weights(b, _IMAGES, -1 if backward else 1)
        self._operations(b, self.cost.encoder("backward" if backward else "forward"))
        if reduce:
            self._reduce(b, _IMAGES)

    def exchange_tokens(self, b: Builder, schedule: Schedule, *, gradients: bool) -> None:
        """Hand image tokens to all pipeline ranks, or sum their gradients; both block."""
        operation = self.cost.exchange_tokens(
            schedule.micro_batches, len(schedule.encoders), gradients=gradients
        )
        wide = gradients and self.cost.encoder_config.sum_format == "fp32"
        elements = operation.nbytes // (FP32_BYTES if wide else self.cost.compute_bytes)
        b.collective(
            "pp", OPS[operation.op], operation.seconds * NS, sides(operation.op, elements, schedule.ranks),
            dtype="Float" if wide else "BFloat16",
        )  # fmt: skip

    def _units(self, stage: int) -> list[Unit]:
        shape = self.shapes[stage]
        units = [(stage, layer) for layer in range(shape.layers)]
        if shape.first:
            units.insert(0, (stage, -1))
        if shape.last:
            units.append((stage, shape.layers))
        return units

    def _of(
        self, unit: Unit, phase: Literal["forward", "backward", "input", "weight"]
    ) -> tuple[Operation, ...]:
        stage, layer = unit
        shape = self.shapes[stage]
        kind = shape.kind(layer) if 0 <= layer < shape.layers else "layer"
        part = "embedding" if layer < 0 else "head" if layer == shape.layers else kind
        if (part, phase) not in self._cache:
            ends = {"embedding": self.cost.embedding, "head": self.cost.head}
            made = ends[part](phase) if part in ends else self.cost.layer(phase, kind=kind)
            self._cache[part, phase] = made
        return self._cache[part, phase]

    def _operations(self, b: Builder, operations: Sequence[Operation]) -> None:
        """Append operations; kernels between collectives are one segment, attention one of its own."""
        run: list[Operation] = []
        for operation in operations:
            if (
                operation.is_collective
                or operation.name == "attention"
                or (run and run[-1].name == "attention")
            ):
                self._kernels(b, run)
                run = []
            if operation.is_collective:
                self._collective(b, operation)
            else:
                run.append(operation)
        self._kernels(b, run)

    def _kernels(self, b: Builder, run: Sequence[Operation]) -> None:
        if not run:
            return
        under_way = self._under_way[b.rank]
        segment = any(o.name in _SEGMENTS for o in run)
        attention = run[0].name == "attention"
        if self.merge:
            longest = max(run, key=lambda o: o.seconds)
            ns = sum(o.seconds for o in run) * NS + under_way.delay_ns
            b.compute(
                longest.name, ns, launches=sum(o.kernels for o in run), segment=segment, attention=attention
            )
        for number, operation in enumerate(() if self.merge else run):
            extra = 0.0 if number else under_way.delay_ns
            b.compute(
                operation.name, operation.seconds * NS + extra, launches=operation.kernels,
                segment=segment and not number, attention=attention,
            )  # fmt: skip
        under_way.delay_ns = 0.0

    def _collective(self, b: Builder, operation: Operation) -> None:
        elements = operation.nbytes // self.cost.compute_bytes
        b.collective(
            operation.axis, OPS[operation.op], operation.seconds * NS,
            sides(operation.op, elements, self.sizes[operation.axis]),
        )  # fmt: skip

    # -- weights and gradients over data parallelism
    def _parameters(self, unit: Unit) -> int:
        shapes, (stage, layer) = self.cost.shapes, unit
        if unit == _IMAGES:
            return encoder_parameters(self.cost.encoder_config, self.cost.model, self.cost.mesh.tp)
        if layer < 0:
            return shapes.embedding_parameters
        return shapes.head_parameters if layer == self.shapes[stage].layers else shapes.layer_parameters

    def _shards(self) -> int:
        return self.cost.mesh.dp * self.cost.mesh.cp

    def _gather(self, b: Builder, unit: Unit) -> None:
        elements = self._parameters(unit)
        ns = self.cost.collective("dp_cp", "all_gather", elements * self.cost.compute_bytes) * NS
        index = b.collective(
            self.shard, "_allgather_base", ns, sides("all_gather", elements, self._shards()), stream="fsdp",
            wait=False,
        )  # fmt: skip
        if index is not None:
            self._under_way[b.rank].gathers[unit] = index
            self._under_way[b.rank].delay_ns += ns * self.cost.hardware.efficiency.overlap

    def _weights(self, b: Builder, unit: Unit, direction: int) -> None:
        """Wait for the weights of a unit; with ZeRO-3 gather them now, and those of the next unit ahead."""
        gathers = self._under_way[b.rank].gathers
        if self.cost.mesh.shards_parameters:
            units = self._units(unit[0]) if unit != _IMAGES else [_IMAGES]
            place = units.index(unit) + direction
            ahead = [units[place]] if 0 <= place < len(units) else []
            for each in (unit, *ahead):
                if each not in gathers:
                    self._gather(b, each)
        if unit in gathers:
            b.wait(gathers.pop(unit))

    def _reduce(self, b: Builder, unit: Unit) -> None:
        elements = self._parameters(unit)
        op = "reduce_scatter" if self.zero else "all_reduce"
        ns = self.cost.collective("dp_cp", op, elements * self.cost.reduce_bytes) * NS
        index = b.collective(
            self.shard, OPS[op], ns, sides(op, elements, self._shards()), stream="fsdp", wait=False,
            dtype="Float" if self.cost.reduce_bytes == FP32_BYTES else "BFloat16",
        )  # fmt: skip
        if index is not None:
            self._under_way[b.rank].reductions.append(index)
            self._under_way[b.rank].delay_ns += ns * self.cost.hardware.efficiency.overlap
