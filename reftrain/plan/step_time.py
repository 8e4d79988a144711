"""Times a schedule's table with the seconds of a job's parts: the core of the projection.

Every pipeline rank runs the forwards and backwards of its table in order, each as soon as its message has
come; messages, weight gathers, gradient reductions and the sums over the replicas of a bidirectional schedule
travel beside the computation. A transfer that is hidden still delays the computation beside it by a share.

The order in which actions wait for one another does not depend on the seconds, so that one pass can answer for many
machines at once: seconds may be arrays, one element a machine (`studies.sensitivity`).

Source: the performance model of "Chimera" (SC'21), section 3.4, over the whole table and not its critical path.
"""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from reftrain.schedule.actions import COMPUTE, ENCODER, ENCODES, PASSES_GRADIENT, Action, Kind, Schedule

Seconds = Any
"""A float, or an array of one float a machine."""
Token = tuple[bool, int, int, int]
"""(is an activation, replica, virtual stage, micro-batch)"""


@dataclass(frozen=True)
class EncoderSeconds:
    """Seconds of an image encoder: of a micro-batch forward and back, of the exchanges of tokens, of weights."""

    forward: Seconds
    backward: Seconds
    share: Seconds
    collect: Seconds
    gather: Seconds = 0.0
    reduce: Seconds = 0.0
    replicas: Seconds = 0.0


@dataclass(frozen=True)
class Durations:
    """Seconds of a job's parts on one pipeline rank, by virtual stage.

    `gather` and `reduce` are FSDP2's transfers of a stage, `replicas` the sum of its gradients over the replicas.
    `optimizer`, by pipeline rank, follows the last of them, or each of an asynchronous schedule. `attention[i]`, where
    given, is added forward and backward for each of the stage's `layers` to the computation of micro-batch i. `message`
    carries an activation, `message_back` its gradient (None: as long). `every_use` gathers weights for every use.
    """

    forward: tuple[Seconds, ...]
    backward: tuple[Seconds, ...]
    backward_input: tuple[Seconds, ...]
    message: Seconds = 0.0
    gather: tuple[Seconds, ...] = ()
    reduce: tuple[Seconds, ...] = ()
    replicas: tuple[Seconds, ...] = ()
    optimizer: tuple[Seconds, ...] = ()
    overlap: Seconds = 0.0
    every_use: bool = False
    encoder: "EncoderSeconds | None" = None
    layers: tuple[int, ...] = ()
    attention: tuple[tuple[float, float], ...] = ()
    message_back: Seconds | None = None

    def of(self, action: Action) -> Seconds:
        """Seconds of a computation."""
        stage, kind = action.stage, action.kind
        if kind in ENCODES:
            return self.images.forward if kind is Kind.ENCODE else self.images.backward
        forward, backward = (0.0, 0.0)
        if self.attention:
            forward, backward = (x * self.layers[stage] for x in self.attention[action.micro_batch])
        if kind in {Kind.FORWARD, Kind.RECOMPUTE}:
            return self.forward[stage] + forward
        if kind is Kind.BACKWARD:
            return self.backward[stage] + backward
        part = self.backward_input[stage]
        return part + backward if kind is Kind.BACKWARD_INPUT else self.backward[stage] - part

    @property
    def images(self) -> EncoderSeconds:
        """Seconds of the image encoder of a table that has one."""
        if self.encoder is None:
            raise AssertionError("a table with an encoder has its seconds")
        return self.encoder


_MEETINGS = frozenset({Kind.SHARE_TOKENS, Kind.GATHER_TOKENS})


@dataclass(frozen=True)
class StepTime:
    """Seconds of a step: of the whole, and by pipeline rank its end and its computation."""

    seconds: Seconds
    ends: tuple[Seconds, ...]
    busy: tuple[Seconds, ...]

    @property
    def idle(self) -> float:
        """Seconds in which ranks do not compute, before the last one ends, all ranks together."""
        return float(max(self.ends) * len(self.busy) - sum(self.busy))

    @property
    def bubble(self) -> float:
        """Idle over computing time, mean of the ranks ("Scaling Llama 3 Training", section 3.1)."""
        return self.idle / float(sum(self.busy))


@dataclass
class _Rank:
    """Progress of one pipeline rank: its clock, and the time when its transfers are done."""

    actions: list[Action]
    position: int = 0
    clock: Seconds = 0.0
    busy: Seconds = 0.0
    transfers: Seconds = 0.0
    previous: Seconds = 0.0
    arrived: dict[int, Seconds] = field(default_factory=dict)


def time_step(schedule: Schedule, durations: Durations) -> StepTime:
    """Return the seconds of a step; of what `lower` adds, reductions and replica sums are timed too."""
    return _StepTimer(schedule, durations).run()


class _StepTimer:
    """Ranks advance until they wait for a message that is not computed yet."""

    def __init__(self, schedule: Schedule, durations: Durations) -> None:
        self.schedule, self.durations = schedule, durations
        self.larger: Callable[[Seconds, Seconds], Seconds] = max
        self.smaller: Callable[[Seconds, Seconds], Seconds] = min
        if isinstance(durations.forward[0], np.ndarray):
            self.larger, self.smaller = np.maximum, np.minimum
        kinds = COMPUTE | _MEETINGS
        kinds |= {Kind.REDUCE_GRADIENT} if durations.reduce else set()
        kinds |= set() if schedule.synchronous else {Kind.OPTIMIZER_STEP}
        self.ranks = [
            _Rank([a for a in actions if a.kind in kinds or self._joins(a)]) for actions in schedule.actions
        ]
        self.ready: dict[Token, tuple[Seconds, int]] = {}
        self.met: dict[Kind, dict[int, Seconds]] = {kind: {} for kind in _MEETINGS}
        self.joined: dict[int, list[tuple[Seconds, _Rank]]] = defaultdict(list)

    def run(self) -> StepTime:
        durations = self.durations
        if durations.gather and not durations.every_use:
            for rank in self.ranks:
                self._gather_all(rank)
        moved = True
        while moved:
            moved = False
            for index, rank in enumerate(self.ranks):
                while rank.position < len(rank.actions) and self._step(rank, index):
                    moved = True
        if any(rank.position < len(rank.actions) for rank in self.ranks):
            raise AssertionError("a checked schedule cannot wait in a circle")
        ends = tuple(self.larger(rank.clock, rank.transfers) for rank in self.ranks)
        tails = (
            durations.optimizer if durations.optimizer and self.schedule.synchronous else (0.0,) * len(ends)
        )
        seconds = ends[0] + tails[0]
        for end, tail in zip(ends, tails, strict=True):
            seconds = self.larger(seconds, end + tail)
        return StepTime(seconds, ends, tuple(rank.busy for rank in self.ranks))

    def _joins(self, action: Action) -> bool:
        """Whether an action is a sum over replicas that takes time: of a stage, or of the image encoder."""
        timed = self.durations.encoder if action.stage == ENCODER else self.durations.replicas
        return action.kind is Kind.SYNC_REPLICAS and bool(timed)

    def _gather_all(self, rank: _Rank) -> None:
        """Weights of the stages are gathered one after the other from the step's begin, in order of first use."""
        for action in rank.actions:
            if action.kind is Kind.ENCODE and ENCODER not in rank.arrived:
                rank.transfers = rank.transfers + self.durations.images.gather
                rank.arrived[ENCODER] = rank.transfers
            if action.kind is Kind.FORWARD and action.stage not in rank.arrived:
                rank.transfers = rank.transfers + self.durations.gather[action.stage]
                rank.arrived[action.stage] = rank.transfers

    def _step(self, rank: _Rank, index: int) -> bool:
        """Run the rank's next action; return False while the message that it needs is not computed yet."""
        action, durations = rank.actions[rank.position], self.durations
        if action.kind in {Kind.REDUCE_GRADIENT, Kind.SYNC_REPLICAS}:
            self._transfer(rank, action)
            rank.position += 1
            return True
        if (
            action.kind is Kind.OPTIMIZER_STEP
        ):  # in the middle of an asynchronous table, when its gradients are there
            own = durations.optimizer[index] if durations.optimizer else 0.0
            rank.clock = self.larger(rank.clock, rank.transfers) + own
            rank.position += 1
            return True
        if action.kind in _MEETINGS:
            return self._meet(rank, index, action.kind)
        begin = rank.clock
        needed = _needed(action, self.schedule.stages)
        if needed is not None:
            if needed not in self.ready:
                return False
            at, sender = self.ready[needed]
            back = durations.message if durations.message_back is None else durations.message_back
            message = durations.message if needed[0] else back
            begin = self.larger(begin, at + (message if sender != index else 0.0))
        if durations.gather:
            begin = self.larger(begin, self._weights(rank, action))
        seconds = durations.of(action)
        left = self.larger(rank.transfers - begin, 0.0)
        beside = self.smaller(left, seconds * (1 + durations.overlap))
        seconds = seconds + beside * durations.overlap / (1 + durations.overlap)
        rank.previous, rank.clock = begin, begin + seconds
        rank.busy = rank.busy + seconds
        rank.position += 1
        if action.kind is Kind.FORWARD or action.kind in PASSES_GRADIENT:
            key = action.kind is Kind.FORWARD, action.replica, action.stage, action.micro_batch
            self.ready[key] = rank.clock, index
        return True

    def _meet(self, rank: _Rank, index: int, kind: Kind) -> bool:
        """Exchange image tokens when the last pipeline rank has come; return False before."""
        met = self.met[kind]
        met[index] = rank.clock
        if len(met) < len(self.ranks):
            return False
        images = self.durations.images
        end = rank.clock
        for clock in met.values():
            end = self.larger(end, clock)
        rank.clock = end + (images.share if kind is Kind.SHARE_TOKENS else images.collect)
        rank.position += 1
        return True

    def _transfer(self, rank: _Rank, action: Action) -> None:
        """Reduce a stage's gradients, or join their sum over replicas, which begins when the last owner has.

        A sum delays the computation beside it on the rank that comes last; the others are past it by then.
        """
        at = self.larger(rank.transfers, rank.clock)
        if action.kind is Kind.REDUCE_GRADIENT:
            images = action.stage == ENCODER
            rank.transfers = at + (
                self.durations.images.reduce if images else self.durations.reduce[action.stage]
            )
            return
        joined = self.joined[action.stage]
        joined.append((at, rank))
        images = action.stage == ENCODER
        if len(joined) < (len(self.schedule.encoders) if images else self.schedule.replicas):
            return
        seconds = self.durations.images.replicas if images else self.durations.replicas[action.stage]
        begin = at
        for other, owner in joined:
            begin = self.larger(begin, self.larger(other, owner.transfers))
        for _, owner in joined:
            owner.transfers = begin + seconds

    def _weights(self, rank: _Rank, action: Action) -> Seconds:
        """Time at which an action's weights are there; under ZeRO-3 they are asked for one action ahead."""
        if not self.durations.every_use:
            return rank.arrived[action.stage]
        if action.stage == ENCODER:
            return rank.clock
        rank.transfers = self.larger(rank.transfers, rank.previous) + self.durations.gather[action.stage]
        return rank.transfers


def _needed(action: Action, stages: int) -> Token | None:
    """Message that a computation waits for: of the stage before, or of the one behind."""
    if action.kind is Kind.FORWARD and action.stage:
        return True, action.replica, action.stage - 1, action.micro_batch
    if action.kind in PASSES_GRADIENT | {Kind.RECOMPUTE} and action.stage + 1 < stages:
        return False, action.replica, action.stage + 1, action.micro_batch
    return None
