"""The declared plan: every reduction that a run must make, with operands and format, from its configuration alone.

From the recorded plan comes only what is order: the sequence of micro-batches and the cuts of ZeRO-2 and 3, where they
are a possible order of the declared ones.
"""

import itertools
from collections.abc import Callable, Sequence

import torch

from numerics.order.order_plan import OrderPlan, Reduction
from reftrain.config.run import RunConfig
from reftrain.layout.declaration import ENCODER, Parameter
from reftrain.layout.grid import EVERYWHERE, Seat
from reftrain.layout.settings import local_settings
from reftrain.replay.formats import Orders
from reftrain.replay.gradients import (
    between_replicas,
    bucket_names,
    partial_groups,
    partial_names,
    seats_along,
    sharding_axis,
)
from reftrain.replay.plan_spmd import annotated_sums, loss_sums
from reftrain.replay.plan_writer import Layout, PlanWriter
from reftrain.replay.possible_orders import possible_orders

Numbers = tuple[int, ...]


def declared_plan(config: RunConfig, recorded: OrderPlan | None, first: int = 0) -> OrderPlan:
    """Return the declared plan: all reductions of each step of the run from step `first` on."""
    writer = PlanWriter(config, recorded, first)
    orders = possible_orders(recorded, config)
    _activations(writer)
    _gradients(writer, orders)
    _step(writer)
    return OrderPlan(
        source="declared",
        world_size=config.mesh.world_size,
        mesh={axis: config.mesh.sizes[axis] for axis in config.mesh.order},
        local=local_settings(config),
        reductions=tuple(writer.reductions),
    )


def _activations(writer: PlanWriter) -> None:
    """Sums over tensor and context ranks within forward and backward."""
    config = writer.config
    if config.encoder.layers:
        _image_tokens(writer)
    for stage, layers in enumerate(writer.declared.stages()):
        _tensor_sums(writer, stage, layers)
        if config.mesh.cp > 1:
            _key_value_sums(writer, stage, layers)
        if config.mesh.cp > 1 and config.model.experts and config.model.expert_balance:
            _choice_sums(writer, stage, layers)


def _tensor_sums(writer: PlanWriter, stage: int, layers: range) -> None:
    """Declare the sums over tp of a stage: embedding, projections, their gradients, and the loss's maxima and sums."""
    config, declared = writer.config, writer.declared
    data, cp = config.data, config.mesh.cp
    tokens = data.micro_batch_size * data.seq_len // cp
    wide = writer.formats.wide if config.numerics.tp_reduce == "fp32" else writer.formats.compute
    op = "reduce_scatter" if declared.sequence_parallel else "all_reduce"
    last = stage + 1 == config.stages
    for seats, every in _of_stage(writer, stage, "tp"):

        def crossing(label: str, phase: str, group: list[Seat] = seats, of: Numbers = every) -> None:
            writer.add(label, "tp", op, phase, wide, group, of, tokens * config.model.dim)

        if config.mesh.annotated:
            annotated_sums(writer, seats, every)
            continue
        if stage == 0:
            crossing("tok_embeddings", "forward")
        for number in layers:
            reached = config.model.passes_gradient(number)
            recomputed = config.numerics.recompute == "full"
            _layer_sums(f"layers.{number}", crossing, recomputed=recomputed, reached=reached)
        if last:
            crossing("output.grad", "backward")
            loss_sums(writer, seats, every)


def _layer_sums(pre: str, crossing: Callable[[str, str], None], *, recomputed: bool, reached: bool) -> None:
    """Outputs of row-parallel weights, gradients in front of column-parallel ones where backward reaches the layer."""
    for part in ("attention.wo", "feed_forward.w2"):
        crossing(f"{pre}.{part}", "forward")
        if recomputed and reached:
            crossing(f"{pre}.{part}", "backward")
    if not reached:
        return
    for part in ("attention.qkv.grad", "feed_forward.w1.grad"):
        crossing(f"{pre}.{part}", "backward")


def _key_value_sums(writer: PlanWriter, stage: int, layers: range) -> None:
    config, mesh, model = writer.config, writer.config.mesh, writer.config.model
    ring = config.numerics.cp_method == "ring"
    heads = max(model.kv_heads // mesh.tp, 1)
    elements = 2 * config.data.micro_batch_size * heads * config.data.seq_len * model.head_dim
    for seats, numbers in _of_stage(writer, stage, "cp"):
        every = [n for n in numbers for _ in range(mesh.cp if ring else 1)]
        for number in layers:
            if model.crosses(number) or not model.passes_gradient(number):
                continue
            writer.add(
                f"layers.{number}.attention.kv.grad",
                "cp",
                "ring" if ring else "reduce_scatter",
                "backward",
                writer.formats.wide if ring else writer.formats.compute,
                seats,
                every,
                elements // mesh.cp if ring else elements,
            )


def _image_tokens(writer: PlanWriter) -> None:
    """Sums of the gradients of image tokens over pipeline and tensor ranks, and those within the encoder."""
    config = writer.config
    kind = writer.formats.wide if config.encoder.sum_format == "fp32" else writer.formats.compute
    one = config.data.micro_batch_size * config.encoder.tokens * config.model.dim
    if (
        writer.pipeline.schedule.carries_tokens
    ):  # stages pass sums on; those over tp are made for every micro-batch
        for seats, every in _of_stage(writer, ENCODER, "tp"):
            writer.add("image_tokens.grad", "tp", "all_reduce", "backward", kind, seats, every, one)
    else:
        _exchanged_tokens(writer, kind, one)
    wide = writer.formats.wide if config.numerics.tp_reduce == "fp32" else writer.formats.compute
    inner = config.data.micro_batch_size * config.encoder.tokens * config.encoder.dim
    for seats, every in _of_stage(writer, ENCODER, "tp"):

        def crossing(label: str, phase: str, group: list[Seat] = seats, of: Numbers = every) -> None:
            writer.add(label, "tp", "all_reduce", phase, wide, group, of, inner)

        for number in range(config.encoder.layers):
            _layer_sums(f"encoder.layers.{number}", crossing, recomputed=False, reached=True)


def _exchanged_tokens(writer: PlanWriter, kind: torch.dtype, one: int) -> None:
    """Declare the sums of all gradients of image tokens over pipeline and tensor ranks, once a step."""
    encoders = writer.pipeline.schedule.encoders
    each = -(-writer.config.micro_batches // len(encoders)) * one
    op = "reduce_scatter" if len(encoders) > 1 else "all_reduce"
    for seats in seats_along(writer.grid, "pp"):
        writer.add("image_tokens.grad", "pp", op, "reduce", kind, seats, (-1,), each * len(encoders))
    for seats in seats_along(writer.grid, "tp"):
        if seats[0].pp in encoders:
            writer.add("image_tokens.grad", "tp", "all_reduce", "reduce", kind, seats, (-1,), each)


def _choice_sums(writer: PlanWriter, stage: int, layers: range) -> None:
    """Declare the sums over context ranks of the experts' choices, which the balance loss needs."""
    data, experts = writer.config.data, writer.config.model.experts
    again = ("backward",) if writer.config.numerics.recompute == "full" else ()
    for (seats, every), number in itertools.product(_of_stage(writer, stage, "cp"), layers):
        for phase in ("forward", *again):
            label, size = f"layers.{number}.feed_forward.experts.counts", data.micro_batch_size * experts
            writer.add(label, "cp", "all_reduce", phase, torch.int64, seats, every, size)


def _of_stage(writer: PlanWriter, stage: int, *axes: str) -> list[tuple[list[Seat], Numbers]]:
    """Return the groups of ranks that compute a stage, each with its micro-batches in ascending order."""
    owners = {pp: tuple(sorted(writer.pipeline.added(stage, pp))) for pp in writer.pipeline.owners(stage)}
    groups = seats_along(writer.grid, *axes)
    return [(group, owners[group[0].pp]) for group in groups if owners.get(group[0].pp)]


def _gradients(writer: PlanWriter, orders: Orders) -> None:
    """Accumulation over micro-batches and the reduction over data and context ranks."""
    config, declared = writer.config, writer.declared
    for (stage, pp), order in orders.items():
        units = declared.units(stage)
        cuts = tuple(n for n in order.backwards if n in order.reduce_after)
        for tp, (unit, parameters) in itertools.product(range(config.mesh.tp), units):
            dealt, reduce = parameters[0].dealt, writer.formats.reduce
            for seats in writer.grid.shard_groups(pp, tp, dealt):
                layout = tuple((p.name, p.shard_elements(len(seats))) for p in parameters)
                elements = len(seats) * sum(n for _, n in layout)
                writer.add(
                    f"{unit}.grad", sharding_axis(dealt), "reduce_scatter", "reduce", reduce, seats, cuts, elements,
                    layout=layout,
                )  # fmt: skip
        _replica_sums(writer, stage, pp, cuts[-1:])
        added = len(order.backwards) > len(cuts)
        for place in range(config.mesh.ep):
            own = [p for _, ps in units for p in ps if p.dealt in {EVERYWHERE, place}]
            writer.reductions.append(
                Reduction(
                    label=f"stages.{stage}",
                    axis="micro_batch",
                    op="accumulate",
                    phase="reduce",
                    dtype=str(writer.formats.accumulate).removeprefix("torch.") if added else "",
                    group=(),
                    operands=order.backwards,
                    cuts=cuts,
                    layout=tuple((p.name, p.shard_elements(1)) for p in own),
                    steps=(writer.first, config.steps),
                )
            )


def _replica_sums(writer: PlanWriter, stage: int, pp: int, once: tuple[int, ...]) -> None:
    """Sums of each unit between the groups that shard it."""
    axis = between_replicas(writer.config)
    for tp in range(writer.config.mesh.tp if axis else 0):
        groups = writer.grid.shard_groups(pp, tp)
        for unit, parameters in writer.declared.units(stage):
            layout = tuple((p.name, p.shard_elements(len(groups[0]))) for p in parameters)
            elements, kind = sum(n for _, n in layout), writer.formats.reduce
            for replicas in zip(*groups, strict=True):
                writer.add(
                    f"{unit}.grad", axis or "", "all_reduce", "reduce", kind, replicas, once, elements, layout=layout
                )  # fmt: skip


def _one_buffer(writer: PlanWriter, label: str, axis: str, seats: list[Seat], names: Sequence[str]) -> None:
    """Declare the sum of a buffer that holds these parameters' gradients; nothing where it holds none."""
    layout = _shard_layout(writer, seats[0], names)
    if layout:
        elements, kind = sum(n for _, n in layout), writer.formats.parameter
        writer.add(label, axis, "all_reduce", "reduce", kind, seats, (-1,), elements, layout=layout)


def _buckets(writer: PlanWriter) -> None:
    config = writer.config
    size = torch.empty((), dtype=writer.formats.parameter).element_size()
    for seats in seats_along(writer.grid, "dp", "cp"):
        names = bucket_names(config, writer.declared, seats[0].pp, size)
        for number, bucket in enumerate(names):
            _one_buffer(writer, f"bucket{number}.grad", "dp_cp", seats, bucket)


def _step(writer: PlanWriter) -> None:
    """Once a step: counts, last partial sums, tied ends, norm and loss."""
    config, grid, declared = writer.config, writer.grid, writer.declared
    once, wide = (-1,), torch.promote_types(writer.formats.parameter, torch.float32)
    for seats in seats_along(grid, "dp"):
        writer.add("valid_tokens", "dp", "all_reduce", "forward", torch.int64, seats, once, 1)
    if config.mesh.bucket_mb:
        _buckets(writer)
    for axis in ("dp_cp", "kv", "tp"):
        for seats in partial_groups(config, grid, axis):
            names = partial_names(declared, seats[0], axis)
            _one_buffer(writer, f"{axis}.partial_gradients", axis, seats, names)
    _owners(writer)
    _tied(writer)
    shards = (("shards", len(grid.shard_groups(0, 0)[0])),)
    for axes in (("dp", "cp"), ("tp",), ("pp",)):
        for seats in seats_along(grid, *axes):
            axis = "_".join(axes)
            writer.add("grad_norm", axis, "all_reduce", "reduce", wide, seats, once, 1, layout=shards)
            if axis != "tp":
                writer.add("loss", axis, "all_reduce", "reduce", torch.float64, seats, once, 1)


def _shard_layout(writer: PlanWriter, seat: Seat, names: Sequence[str]) -> Layout:
    known = {p.name: p for stage in writer.pipeline.held(seat.pp) for p in writer.declared.in_order(stage)}

    def held(parameter: Parameter) -> int:
        whole = parameter.data_dim is None
        groups = writer.grid.shard_groups(seat.pp, seat.tp, parameter.dealt, whole=whole)
        group = next(g for g in groups if seat in g)
        return parameter.shard_elements(len(group), group.index(seat))

    return tuple((name, held(known[name])) for name in names)


def _owners(writer: PlanWriter) -> None:
    """Sums of a stage's gradients between the pipeline ranks that hold it."""
    for stage in writer.declared.numbers:
        for group in seats_along(writer.grid, "pp"):
            names = [p.name for p in writer.declared.trained(stage, writer.grid.place(group[0]))]
            seats = [seat for seat in group if seat.pp in writer.pipeline.owners(stage)]
            _one_buffer(writer, f"stage{stage}.grad", f"replicas_{stage}", seats, names)


def _tied(writer: PlanWriter) -> None:
    config = writer.config
    if not config.model.tied_embeddings or config.stages - 1 in writer.pipeline.held(0):
        return
    for seat in writer.grid.seats():
        if seat.pp == 0:
            other = Seat(seat.dp, config.mesh.pp - 1, seat.cp, seat.tp)
            ((_, size),) = _shard_layout(writer, other, ["output.weight"])
            layout = (("tok_embeddings.weight", size), ("output.weight", size))
            writer.add(
                "tied_embedding.grad", "embedding", "all_reduce", "reduce", writer.formats.parameter,
                [seat, other], (-1,), size, layout=layout,
            )  # fmt: skip
