"""Walks the actions of one rank and counts the bytes that it holds, layer by layer.

It follows FSDP2 under each ZeRO stage: weights are gathered at a stage's first forward and dropped in its last
backward (ZeRO-3: around every layer); gradients of micro-batches are summed whole in the format of the reduction until
they are reduced, and held as shards from then on. `memory` adds the parts that do not change during a step.
"""

from dataclasses import dataclass, field

from reftrain.cost.activations import (
    Kept,
    carried_kept,
    embedding_kept,
    encoder_kept,
    head_kept,
    head_passing,
    layer_kept,
    layer_passing,
)
from reftrain.cost.job import FP32_BYTES, Job
from reftrain.cost.shapes import StageShape
from reftrain.schedule.actions import ENCODER, ENDS_BACKWARD, Action, Kind

KINDS = ("norms", "attention", "feed_forward", "head")
Key = tuple[int, int]
"""(replica, virtual stage)"""


@dataclass(frozen=True)
class Bytes:
    """Bytes by kind at one moment."""

    weights: float = 0.0
    gradients: float = 0.0
    optimizer: float = 0.0
    activations: float = 0.0
    buffers: float = 0.0

    @property
    def total(self) -> float:
        """Sum of the kinds."""
        return self.weights + self.gradients + self.optimizer + self.activations + self.buffers


@dataclass
class State:
    """Bytes that a rank holds: shards of weights, optimiser states, fixed buffers, and the parts that come and go."""

    shards: float
    states: float
    fixed: float
    gathered: float = 0.0
    gradients: float = 0.0
    kept: dict[str, float] = field(default_factory=lambda: dict.fromkeys(KINDS, 0.0))
    peak: Bytes = field(default_factory=Bytes)
    kinds: dict[str, float] = field(default_factory=dict)
    largest: list[float] = field(default_factory=lambda: [0.0] * 5)

    def look(self, passing: float = 0.0, gradients: float = 0.0, weights: float = 0.0) -> None:
        """Compare this moment with the largest so far; the arguments are bytes that exist at this moment only."""
        now = (
            self.shards + self.gathered + weights,
            self.gradients + gradients,
            self.states,
            sum(self.kept.values()),
            self.fixed + passing,
        )
        self.largest = [max(pair) for pair in zip(self.largest, now, strict=True)]
        if sum(now) > self.peak.total:
            self.peak, self.kinds = Bytes(*now), dict(self.kept)

    def keep(self, kept: Kept, sign: int = 1) -> None:
        """Add activations, or with sign -1 take them off."""
        for name in KINDS:
            self.kept[name] += sign * getattr(kept, name)


class Walk:
    """Walks the actions of one rank, changing a `State`."""

    def __init__(self, job: Job, rank: int, state: State) -> None:
        self.job, self.state = job, state
        self.kept = {kind: layer_kept(job, kind=kind) for s in job.stages for kind in s.counts}
        self.images, self.carried = encoder_kept(job), carried_kept(job)
        self.head, self.embedding = head_kept(job), embedding_kept(job)
        self.again = layer_kept(job, "none").total - layer_kept(job).total
        self.passing, self.head_passing = layer_passing(job), head_passing(job)
        actions = job.lowered.actions[rank]
        ends = [a for a in actions if a.kind in ENDS_BACKWARD]
        self.last = {(a.replica, a.stage): a for a in ends}
        reduced = {(a.replica, a.stage, a.micro_batch) for a in actions if a.kind is Kind.REDUCE_GRADIENT}
        self.reduces = {a for a in ends if (a.replica, a.stage, a.micro_batch) in reduced}
        self.gathered: dict[Key, float] = {}
        self.summed: set[Key] = set()
        self.sharded: set[Key] = set()
        self.encoding: set[int] = set()
        self.held = self.in_flight = 0

    def step(self, action: Action) -> None:
        """Walk one action."""
        key = action.replica, action.stage
        if action.stage == ENCODER:
            self._encoder(action)
            return
        shape = self.job.stages[action.stage]
        if action.kind in {Kind.FORWARD, Kind.RECOMPUTE}:
            self._forward(key, shape)
        elif action.kind in ENDS_BACKWARD:
            self._backward(action, key, shape)
        elif action.kind is Kind.FREE:
            self.state.keep(self._stage(shape), -1)
        elif action.kind in {Kind.STASH_WEIGHTS, Kind.DROP_WEIGHTS}:
            sign = 1 if action.kind is Kind.STASH_WEIGHTS else -1
            self.state.shards += sign * self.job.stage_parameters(action.stage) * self.job.compute_bytes
            self.state.look()

    def _encoder(self, action: Action) -> None:
        """Encode, or run back: the encoder's weights are whole from its first forward to its last backward."""
        job, state = self.job, self.state
        whole = job.encoder_parameters
        if action.kind is Kind.ENCODE:
            if ENCODER not in self.encoding:
                self.encoding.add(ENCODER)
                state.gathered += whole * job.compute_bytes
            state.keep(self.images)
            state.look()
        elif action.kind is Kind.ENCODE_BACKWARD:
            fresh, reduce = (0, ENCODER) not in self.summed, action in self.reduces
            state.keep(self.images, -1)
            key = (0, ENCODER)
            self._gradients(whole, 0.0, fresh=fresh, reduce=reduce, weights=0.0, key=key)
            self.summed.add(key)
            if reduce:
                self.sharded.add(key)
                state.gathered -= whole * job.compute_bytes

    def _stage(self, shape: StageShape) -> Kept:
        """Everything a stage keeps of one micro-batch."""
        parts = [self.kept[shape.kind(number)] for number in range(shape.layers)]
        parts += [self.carried, *[self.embedding] * shape.first, *[self.head] * shape.last]
        if not shape.first:
            parts.append(self._shared_input(shape))
        return Kept(**{name: sum(getattr(part, name) for part in parts) for name in KINDS})

    def _shared_input(self, shape: StageShape) -> Kept:
        """A stage's first norm keeps the receive buffer itself, unless it makes an FP32 copy of it."""
        job = self.job
        copies = job.kernels == "eager" and job.compute_bytes < FP32_BYTES and job.recompute != "full"
        if job.mesh.pp == 1 or copies or not (shape.layers or shape.last):
            return Kept()
        return Kept(norms=-float(job.message_bytes))

    def _forward(self, key: Key, shape: StageShape) -> None:
        """Run a forward layer by layer: each keeps its activations, under ZeRO-3 beside two layers' weights."""
        state, layered = self.state, 0.0
        self._gather(key, shape)
        state.keep(self.carried)
        if self.job.mesh.shards_parameters:
            layered = 2 * self.job.shapes.layer_parameters * self.job.compute_bytes
        if shape.first:
            state.keep(self.embedding)
        else:
            state.keep(self._shared_input(shape))
        for number in range(shape.layers):
            state.keep(self.kept[shape.kind(number)])
            state.look(self.passing.forward, weights=layered)
        if shape.last:
            state.keep(self.head)
            state.look(self.head_passing.forward)
        state.look()
        if self.job.mesh.shards_parameters:
            self._drop(key)
        self.held += 1
        self.in_flight = max(self.in_flight, self.held)

    def _gather(self, key: Key, shape: StageShape) -> None:
        """Weights stay gathered until the last backward; under ZeRO-3 only those outside the layers do."""
        if key in self.gathered:
            return
        parameters = self.job.stage_parameters(key[1])
        if self.job.mesh.shards_parameters:
            parameters -= shape.layers * self.job.shapes.layer_parameters
        self.gathered[key] = parameters * self.job.compute_bytes
        self.state.gathered += self.gathered[key]

    def _drop(self, key: Key) -> None:
        self.state.gathered -= self.gathered.pop(key, 0.0)

    def _backward(self, action: Action, key: Key, shape: StageShape) -> None:
        """Run a backward from head to embedding: each part gives its activations back and leaves a gradient."""
        job, state = self.job, self.state
        self._gather(key, shape)
        layer, ends = job.shapes.layer_parameters, 0.0
        fresh, reduce, last = key not in self.summed, action in self.reduces, self.last[key] == action
        layered = 2 * layer * job.compute_bytes if job.mesh.shards_parameters else 0.0
        if shape.last:
            state.look(self.head_passing.backward)
            state.keep(self.head, -1)
            ends += job.shapes.head_parameters
        trains_ends = not job.model.frozen
        ends *= trains_ends
        for number in reversed(range(shape.layers)):
            held = ends * job.compute_bytes
            kind = shape.kind(number)
            state.look(self.passing.backward + self.again, held, layered)
            state.keep(self.kept[kind], -1)
            own = layer if kind in {"layer", "cross"} else 0
            self._gradients(own, held, fresh=fresh, reduce=reduce, weights=layered, key=key)
            if last and not job.mesh.shards_parameters:
                self.gathered[key] -= layer * job.compute_bytes
                state.gathered -= layer * job.compute_bytes
        state.keep(self.carried, -1)
        if shape.first:
            state.keep(self.embedding, -1)
            ends += trains_ends * job.shapes.embedding_parameters
        else:
            state.keep(self._shared_input(shape), -1)
        self._gradients(ends, 0.0, fresh=fresh, reduce=reduce, weights=0.0, key=key)
        (self.summed.discard if reduce else self.summed.add)(key)
        if reduce:
            self.sharded.add(key)
        if last or job.mesh.shards_parameters:
            self._drop(key)
        self.held -= 1

    def _gradients(
        self, parameters: float, held: float, *, fresh: bool, reduce: bool, weights: float, key: Key
    ) -> None:
        """One FSDP2 unit's gradient has been computed: sum it, or reduce it to a shard."""
        job, state = self.job, self.state
        new, whole = parameters * job.compute_bytes, parameters * job.reduce_bytes
        if not reduce:
            if fresh:
                state.gradients += whole
            # In another format than the sum's, or added to it, the new gradient stands beside the sum.
            state.look(gradients=held + (new if not fresh or new != whole else 0.0), weights=weights)
            return
        shard = whole / job.shard_ranks
        # The input of this reduction and the one before, which is released when this one has begun; the output.
        state.look(passing=2 * whole + shard, gradients=held + new, weights=weights)
        if not fresh:
            state.gradients -= whole
        if key not in self.sharded:
            state.gradients += shard
