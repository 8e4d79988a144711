"""Projected time of a step: the schedule's table replayed with the costs of a job.

Every pipeline rank runs the forwards and backwards of its table in order, each as soon as its message has
come; messages, weight gathers and gradient reductions travel beside the computation. A transfer that is
hidden still delays the computation beside it by a share (`efficiency.overlap`). All ranks of one pipeline
coordinate are taken as equal; what document masks make of that is in `documents`.

Source: replay as in "Chimera" (SC'21), section 3.4, but of the table itself instead of its critical path.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from reftrain.schedule.actions import COMPUTE, PASSES_GRADIENT, Action, Kind, Schedule
from reftrain.simulate.cost import CostModel
from reftrain.simulate.hardware import Hardware
from reftrain.simulate.job import Job
from reftrain.simulate.kernels import Operation, Phase

Token = tuple[bool, int, int, int]
"""(is an activation, replica, virtual stage, micro-batch)"""


@dataclass(frozen=True)
class Durations:
    """Seconds of a job's parts on one pipeline rank, by virtual stage.

    `gather` and `reduce` are FSDP2's transfers of a stage; `optimizer` what follows the last of them, by
    pipeline rank. `attention[i]`, where given, is added forward and backward for each of the stage's
    `layers` to the computation of micro-batch i. `every_use` gathers weights for every forward and backward.
    """

    forward: tuple[float, ...]
    backward: tuple[float, ...]
    backward_input: tuple[float, ...]
    message: float = 0.0
    gather: tuple[float, ...] = ()
    reduce: tuple[float, ...] = ()
    optimizer: tuple[float, ...] = ()
    overlap: float = 0.0
    every_use: bool = False
    layers: tuple[int, ...] = ()
    attention: tuple[tuple[float, float], ...] = ()

    def of(self, action: Action) -> float:
        """Seconds of a computation."""
        stage, kind = action.stage, action.kind
        forward, backward = (0.0, 0.0)
        if self.attention:
            forward, backward = (x * self.layers[stage] for x in self.attention[action.micro_batch])
        if kind in {Kind.FORWARD, Kind.RECOMPUTE}:
            return self.forward[stage] + forward
        if kind is Kind.BACKWARD:
            return self.backward[stage] + backward
        part = self.backward_input[stage]
        return part + backward if kind is Kind.BACKWARD_INPUT else self.backward[stage] - part


@dataclass
class _Rank:
    """Where one pipeline rank stands: its clock, and when its transfers are through."""

    actions: list[Action]
    position: int = 0
    clock: float = 0.0
    busy: float = 0.0
    transfers: float = 0.0
    previous: float = 0.0
    arrived: dict[int, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Replayed:
    """Times of a replay: `seconds` of the whole step; by pipeline rank its end and its computation."""

    seconds: float
    ends: tuple[float, ...]
    busy: tuple[float, ...]

    @property
    def bubble(self) -> float:
        """Idle over computing time, mean of the ranks ("Scaling Llama 3 Training", section 3.1)."""
        last = max(self.ends)
        return (last * len(self.busy) - sum(self.busy)) / sum(self.busy)


def replay(schedule: Schedule, durations: Durations) -> Replayed:
    """Replay a table; its gradient reductions, where it has them (`lower`), are replayed too."""
    kinds = COMPUTE | ({Kind.REDUCE_GRADIENT} if durations.reduce else set())
    ranks = [_Rank([a for a in actions if a.kind in kinds]) for actions in schedule.actions]
    if durations.gather and not durations.every_use:
        for rank in ranks:
            _gather_all(rank, durations)
    ready: dict[Token, tuple[float, int]] = {}
    moved = True
    while moved:
        moved = False
        for index, rank in enumerate(ranks):
            while rank.position < len(rank.actions) and _step(rank, index, schedule, durations, ready):
                moved = True
    if any(rank.position < len(rank.actions) for rank in ranks):
        raise AssertionError("a checked schedule cannot wait in a circle")
    ends = tuple(max(rank.clock, rank.transfers) for rank in ranks)
    tails = durations.optimizer or (0.0,) * len(ranks)
    seconds = max(end + tail for end, tail in zip(ends, tails, strict=True))
    return Replayed(seconds, ends, tuple(rank.busy for rank in ranks))


def _gather_all(rank: _Rank, durations: Durations) -> None:
    """Weights of the stages are gathered one after the other from the step's begin, in order of first use."""
    for action in rank.actions:
        if action.kind is Kind.FORWARD and action.stage not in rank.arrived:
            rank.transfers += durations.gather[action.stage]
            rank.arrived[action.stage] = rank.transfers


def _step(
    rank: _Rank, index: int, schedule: Schedule, durations: Durations, ready: dict[Token, tuple[float, int]]
) -> bool:
    """Run the rank's next action if what it needs is known."""
    action = rank.actions[rank.position]
    if action.kind is Kind.REDUCE_GRADIENT:
        rank.transfers = max(rank.transfers, rank.clock) + durations.reduce[action.stage]
        rank.position += 1
        return True
    begin = rank.clock
    needed = _needed(action, schedule.stages)
    if needed is not None:
        if needed not in ready:
            return False
        at, sender = ready[needed]
        begin = max(begin, at + (durations.message if sender != index else 0.0))
    if durations.gather:
        begin = max(begin, _weights(rank, action, durations))
    seconds = durations.of(action)
    beside = min(max(rank.transfers - begin, 0.0), seconds * (1 + durations.overlap))
    seconds += beside * durations.overlap / (1 + durations.overlap)
    rank.previous, rank.clock = begin, begin + seconds
    rank.busy += seconds
    rank.position += 1
    if action.kind is Kind.FORWARD or action.kind in PASSES_GRADIENT:
        key = action.kind is Kind.FORWARD, action.replica, action.stage, action.micro_batch
        ready[key] = rank.clock, index
    return True


def _needed(action: Action, stages: int) -> Token | None:
    """Message that a computation consumes: of the stage before, or of the one behind."""
    if action.kind is Kind.FORWARD and action.stage:
        return True, action.replica, action.stage - 1, action.micro_batch
    if action.kind in PASSES_GRADIENT and action.stage + 1 < stages:
        return False, action.replica, action.stage + 1, action.micro_batch
    return None


def _weights(rank: _Rank, action: Action, durations: Durations) -> float:
    """Time at which an action's weights are there; under ZeRO-3 they are asked for one action ahead."""
    if not durations.every_use:
        return rank.arrived[action.stage]
    rank.transfers = max(rank.transfers, rank.previous) + durations.gather[action.stage]
    return rank.transfers


def cost_model(job: Job, hardware: Hardware, pairs: float | None = None) -> CostModel:
    """Costs of a job; `pairs` as in `CostModel`."""
    return CostModel(
        hardware,
        job.model,
        job.mesh,
        seq_len=job.seq_len,
        micro_batch_size=job.micro_batch_size,
        recompute=job.recompute,
        compute_bytes=job.compute_bytes,
        reduce_bytes=job.reduce_bytes,
        pairs=pairs,
        accumulates=job.micro_batches > 1,
    )


def stage_time(costs: CostModel, operations: Sequence[Operation]) -> float:
    """Seconds of operations: the device's, or the host's if it cannot launch them as fast."""
    return max(
        sum(operation.seconds for operation in operations),
        costs.launch_seconds * sum(operation.kernels for operation in operations),
    )


def durations(job: Job, costs: CostModel) -> Durations:
    """Seconds of the parts of a job's step."""
    layer = {phase: costs.layer(phase) for phase in _PHASES}
    ends = {phase: (costs.embedding(phase), costs.head(phase)) for phase in _PHASES}

    def of(phase: Phase) -> tuple[float, ...]:
        one = stage_time(costs, layer[phase])
        first, last = (stage_time(costs, operations) for operations in ends[phase])
        return tuple(s.layers * one + s.first * first + s.last * last for s in job.stages)

    shard = job.shard_ranks
    several = costs.links("dp_cp").size > 1
    parameters = [
        sum(job.stage_parameters(s) for _, s in job.table.held_by(rank)) for rank in range(job.mesh.pp)
    ]
    norm = 3 * costs.collective("world", "all_reduce", 8)
    return Durations(
        forward=of("forward"),
        backward=of("backward"),
        backward_input=of("input"),
        message=costs.message_seconds,
        gather=_each(job, costs.gather_weights) if several and shard > 1 else (),
        reduce=_each(job, costs.reduce_gradients) if several else (),
        optimizer=tuple(costs.optimizer_seconds(count) + norm for count in parameters),
        overlap=costs.hardware.efficiency.overlap,
        every_use=job.mesh.zero == 3,
    )


_PHASES: tuple[Phase, ...] = ("forward", "backward", "input")


def _each(job: Job, operation: Callable[..., Operation]) -> tuple[float, ...]:
    known = {shape: operation(shape).seconds for shape in set(job.stages)}
    return tuple(known[shape] for shape in job.stages)


@dataclass(frozen=True)
class Projection:
    """A projected step.

    `step_s` seconds; `bubble` idle over computing time without messages and data parallelism; `exposed`
    shares of the step by axis: tp and cp collectives run between the kernels, pp is what messages add to
    the pipeline, dp what gathers and reductions add; `network_bytes` that a rank sends in a step through
    its network port.
    """

    step_s: float
    bubble: float
    exposed: dict[str, float]
    network_bytes: float


def project(job: Job, hardware: Hardware, pairs: float | None = None) -> Projection:
    """Replay the step of a job."""
    costs = cost_model(job, hardware, pairs)
    times = durations(job, costs)
    schedule = job.lowered
    whole = replay(schedule, times)
    alone = replace(times, gather=(), reduce=())
    without_dp = replay(schedule, alone)
    without_messages = replay(schedule, replace(alone, message=0.0))
    shares = {axis: _axis_seconds(job, costs, axis) / whole.seconds for axis in ("tp", "cp")}
    shares["pp"] = (without_dp.seconds - without_messages.seconds) / whole.seconds
    shares["dp"] = (whole.seconds - without_dp.seconds) / whole.seconds
    return Projection(whole.seconds, without_messages.bubble, shares, network_bytes(job, costs))


def _operations(job: Job, costs: CostModel) -> list[tuple[float, Operation]]:
    """Operations of a step of the mean pipeline rank, each with the times it runs."""
    layers = job.micro_batches * sum(job.layers) / job.mesh.pp
    ends = job.micro_batches / job.mesh.pp
    phases: tuple[Phase, ...] = ("forward", "backward")
    found = []
    for phase in phases:
        found += [(layers, operation) for operation in costs.layer(phase)]
        found += [(ends, operation) for operation in (*costs.embedding(phase), *costs.head(phase))]
    return found


def _axis_seconds(job: Job, costs: CostModel, axis: str) -> float:
    """Seconds of an axis' collectives in a step, mean of the pipeline ranks."""
    return sum(times * o.seconds for times, o in _operations(job, costs) if o.axis == axis)


def network_bytes(job: Job, costs: CostModel) -> float:
    """Bytes that a rank sends through its network port in a step, mean of the pipeline ranks.

    A ring passes (n-1)/n of the buffer; of a group with g members in each node every port carries 1/g.
    """
    total = 0.0
    for axis in ("tp", "cp"):
        links = costs.links(axis)
        if not links.in_node:
            share = (links.size - 1) / links.size / links.inside
            for times, operation in _operations(job, costs):
                if operation.axis == axis:
                    total += times * operation.nbytes * share * (2 if operation.op == "all_reduce" else 1)
    links = costs.links("pp")
    if links.size > 1 and not links.in_node:
        total += 2 * job.micro_batches * (len(job.layers) - 1) / job.mesh.pp * costs.message_bytes
    links = costs.links("dp_cp")
    if links.size > 1 and not links.in_node:
        share = (links.size - 1) / links.size / links.inside
        parameters = sum(job.stage_parameters(s) for s in range(len(job.stages))) / job.mesh.pp
        total += parameters * share * _parameter_traffic(job)
    return total


def _parameter_traffic(job: Job) -> float:
    """Bytes a parameter costs on the data axis in a step: gathers and reductions, as often as they run."""
    if not job.mesh.zero:
        return 2 * job.reduce_bytes
    reductions = sum(a.kind is Kind.REDUCE_GRADIENT for actions in job.lowered.actions for a in actions)
    gathers = 2 * job.micro_batches if job.mesh.zero == 3 else 1
    return gathers * job.compute_bytes + reductions / len(job.stages) * job.reduce_bytes
