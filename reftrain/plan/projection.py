"""Projected time of a step: the schedule's table timed with the costs of a job.

A transfer that is hidden still delays the computation beside it by a share (`efficiency.overlap`). All ranks of one
pipeline coordinate are taken as equal; under document masks they are not (`attention_pairs`).
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from reftrain.cost.cost_model import CostModel
from reftrain.cost.hardware import Hardware
from reftrain.cost.job import Job, cost_model_of
from reftrain.cost.kernels import Operation, Phase
from reftrain.cost.shapes import LayerKind
from reftrain.plan.steady import figures, one_round
from reftrain.plan.step_time import Durations, EncoderSeconds, time_step
from reftrain.schedule.actions import Kind, Schedule


def stage_time(costs: CostModel, operations: Sequence[Operation]) -> float:
    """Seconds of operations: the device's, or the host's if it cannot launch them as fast."""
    return max(
        sum(operation.seconds for operation in operations),
        costs.launch_seconds * sum(operation.kernels for operation in operations),
    )


def durations(job: Job, costs: CostModel) -> Durations:
    """Seconds of the parts of a job's step."""
    kinds = {kind for shape in job.stages for kind in shape.counts}
    layer = {(phase, kind): costs.layer(phase, kind=kind) for phase in _PHASES for kind in kinds}
    ends = {phase: (costs.embedding(phase), costs.head(phase)) for phase in _PHASES}

    def of(phase: Phase) -> tuple[float, ...]:
        one = {kind: stage_time(costs, layer[phase, kind]) for kind in kinds}
        first, last = (stage_time(costs, operations) for operations in ends[phase])
        return tuple(
            sum(n * one[kind] for kind, n in s.counts.items()) + s.first * first + s.last * last
            for s in job.stages
        )

    shard = job.shard_ranks
    several = costs.links("dp_cp").size > 1
    parameters = [
        sum(job.trained_parameters(s) for _, s in job.table.held_by(rank)) for rank in range(job.mesh.pp)
    ]
    for rank in job.lowered.encoders:
        parameters[rank] += job.encoder_parameters / shard
    norm = 3 * costs.collective("world", "all_reduce", 8)
    return Durations(
        forward=of("forward"),
        backward=of("backward"),
        backward_input=of("input"),
        message=costs.message_seconds + costs.token_seconds(gradient=False),
        message_back=costs.message_seconds + costs.token_seconds(gradient=True),
        gather=_each(job, costs.gather_weights) if several and shard > 1 else (),
        reduce=_each(job, costs.reduce_gradients) if several else (),
        replicas=_replica_sums(job, costs),
        optimizer=tuple(costs.update_seconds(count * shard) + norm for count in parameters),
        overlap=costs.hardware.efficiency.overlap,
        every_use=job.mesh.shards_parameters,
        encoder=encoder_seconds(job, costs) if job.encoder.layers else None,
    )


def encoder_seconds(job: Job, costs: CostModel) -> EncoderSeconds:
    """Seconds of the parts of a job's image encoder."""
    count, ranks = job.micro_batches, len(job.lowered.encoders)
    shards = job.shard_ranks > 1 and costs.links("dp_cp").size > 1
    return EncoderSeconds(
        stage_time(costs, costs.encoder("forward")),
        stage_time(costs, costs.encoder("backward")),
        costs.exchange_tokens(count, ranks, gradients=False).seconds,
        costs.exchange_tokens(count, ranks, gradients=True).seconds,
        costs.encoder_weights("all_gather").seconds if shards else 0.0,
        costs.encoder_weights("gradients").seconds,
        costs.encoder_weights("replicas", ranks).seconds if ranks > 1 else 0.0,
    )


_PHASES: tuple[Phase, ...] = ("forward", "backward", "input")


def _each(job: Job, operation: Callable[..., Operation]) -> tuple[float, ...]:
    known = {shape: operation(shape).seconds for shape in set(job.stages)}
    return tuple(known[shape] for shape in job.stages)


def _replica_sums(job: Job, costs: CostModel) -> tuple[float, ...]:
    """Seconds of the sum over the owners of every virtual stage in a bidirectional pipeline."""
    if job.table.replicas == 1:
        return ()
    owners = [len(set(job.table.owners(stage))) for stage in range(job.table.stages)]
    return tuple(costs.sum_replicas(job.stages[s], count, job.shard_ranks) for s, count in enumerate(owners))


@dataclass(frozen=True)
class Projection:
    """A projected step.

    `step_s` seconds; `bubble` idle over computing time without messages and data parallelism; `exposed`
    shares of the step by axis: tp, cp and ep collectives run between the kernels, pp is what messages add to
    the pipeline, dp what gathers, reductions and sums over replicas add; `network_bytes` that a rank sends in
    a step through its network port.
    """

    step_s: float
    bubble: float
    exposed: dict[str, float]
    network_bytes: float


def project(job: Job, hardware: Hardware, pairs: float | None = None) -> Projection:
    """Return the projected step of a job; `pairs` as in `CostModel`."""
    costs = cost_model_of(job, hardware, pairs)
    once = durations(one_round(job), costs)
    work = sum(once.forward) + sum(once.backward)
    moved = sum((*once.gather, *once.reduce, *once.replicas))
    timed = figures(job, lambda some: _timed(some, costs), moved / work)
    whole, without_dp, without_messages, idle, busy, reductions = timed.tolist()
    between = ("tp", "cp", "ep") if job.mesh.ep > 1 else ("tp", "cp")
    shares = {axis: _axis_seconds(job, costs, axis) / whole for axis in between}
    shares["pp"] = (without_dp - without_messages) / whole
    shares["dp"] = (whole - without_dp) / whole
    return Projection(whole, idle / busy, shares, network_bytes(job, costs, reductions))


def _timed(job: Job, costs: CostModel) -> tuple[float, ...]:
    """Seconds of a step, without data parallelism, and without messages too, then idle and busy; its reductions."""
    times, schedule = durations(job, costs), job.lowered
    images = times.encoder and replace(times.encoder, gather=0.0, reduce=0.0, replicas=0.0)
    alone = replace(times, gather=(), reduce=(), replicas=(), encoder=images)
    without = images and replace(images, share=0.0, collect=0.0)
    bare = time_step(schedule, replace(alone, message=0.0, message_back=0.0, encoder=without))
    steps = time_step(schedule, times).seconds, time_step(schedule, alone).seconds, bare.seconds
    return *steps, bare.idle, sum(bare.busy), reductions_in(schedule)


def reductions_in(schedule: Schedule) -> int:
    """Reductions of gradients in a step, all pipeline ranks together."""
    return sum(a.kind is Kind.REDUCE_GRADIENT for actions in schedule.actions for a in actions)


def _operations(job: Job, costs: CostModel) -> list[tuple[float, Operation]]:
    """Operations of a step of the mean pipeline rank, each with the times it runs."""
    ends = job.micro_batches / job.mesh.pp
    phases: tuple[Phase, ...] = ("forward", "backward")
    found = []
    for phase in phases:
        for kind, count in _kinds(job).items():
            layers = job.micro_batches * count / job.mesh.pp
            found += [(layers, operation) for operation in costs.layer(phase, kind=kind)]
        found += [(ends, operation) for operation in (*costs.embedding(phase), *costs.head(phase))]
    return found


def _kinds(job: Job) -> Counter[LayerKind]:
    """Count the layers of a job by kind."""
    found: Counter[LayerKind] = Counter()
    for shape in job.stages:
        found.update(shape.counts)
    return found


def _axis_seconds(job: Job, costs: CostModel, axis: str) -> float:
    """Seconds of an axis' collectives in a step, mean of the pipeline ranks."""
    return sum(times * o.seconds for times, o in _operations(job, costs) if o.axis == axis)


def network_bytes(job: Job, costs: CostModel, reductions: float) -> float:
    """Bytes that a rank sends through its network port in a step, mean of the pipeline ranks.

    A ring passes (n-1)/n of the buffer; of a group with g members in each node every port carries 1/g. `reductions`
    as `reductions_in` counts them.
    """
    total = 0.0
    for axis in ("tp", "cp", "ep"):
        links = costs.links(axis)
        if not links.in_node:
            share = (links.size - 1) / links.size / links.inside
            for times, operation in _operations(job, costs):
                if operation.axis == axis:
                    total += times * operation.nbytes * share * (2 if operation.op == "all_reduce" else 1)
    links = costs.links("pp")
    if links.size > 1 and not links.in_node:
        ways = 2 * costs.message_bytes + costs.token_bytes(gradient=False) + costs.token_bytes(gradient=True)
        total += job.micro_batches * (len(job.layers) - 1) / job.mesh.pp * ways
    links = costs.links("dp_cp")
    if links.size > 1 and not links.in_node:
        share = (links.size - 1) / links.size / links.inside
        parameters = sum(job.stage_parameters(s) for s in range(len(job.stages))) / job.mesh.pp
        total += parameters * share * _parameter_traffic(job, reductions)
    return total


def _parameter_traffic(job: Job, reductions: float) -> float:
    """Bytes a parameter costs on the data axis in a step: gathers and reductions, as often as they run."""
    if not job.mesh.zero:
        return 2 * job.reduce_bytes
    gathers = 2 * job.micro_batches if job.mesh.shards_parameters else 1
    return gathers * job.compute_bytes + reductions / len(job.stages) * job.reduce_bytes
