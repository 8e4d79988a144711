"""Compiles a lowered schedule into one program a pipeline rank.

The schedule orders forwards, backwards and messages; `ActionOperations` lists the kernels and collectives
of each; those of the model are in `model_operations`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Final, Protocol

from reftrain.schedule.actions import ENCODES, RECEIVES, SENDS, Action, Schedule
from reftrain.schedule.actions import Kind as Act
from reftrain.schedule.costs import Costs
from reftrain.schedule.pair_order import in_pair_order
from reftrain.simulate.grid import Grid
from reftrain.simulate.program import Builder, Kind, Parcel, Program


class ActionOperations(Protocol):
    """The operations of actions. Every method but `messages` appends them to the builder."""

    def begin(self, b: Builder) -> None:
        """Append the start of a step: data, weights to gather."""

    def forward(self, b: Builder, stage: int, micro_batch: int, *, again: bool) -> None:
        """Append a forward of a micro-batch on a virtual stage; `again` where the backward recomputes it."""

    def backward(self, b: Builder, stage: int, micro_batch: int, *, part: str, reduce: bool) -> None:
        """Append a backward; `part` is all, input or weight; `reduce` where gradients are reduced after it."""

    def messages(self, stage: int, *, gradient: bool) -> Sequence[Parcel]:
        """Return the messages that leave `stage` together, in order."""

    def sync_replicas(self, b: Builder, stage: int, owners: tuple[int, ...]) -> int | None:
        """Append the sum of a stage's gradients over the pipeline ranks that hold it; return the operation.

        Return None where one rank holds all replicas: it adds them without a message.
        """

    def update(self, b: Builder, stage: int) -> None:
        """Append an optimizer step of one stage in the middle of a step, as asynchronous schedules have it."""

    def encode(self, b: Builder, *, backward: bool, reduce: bool) -> None:
        """Append the image encoder on a micro-batch; `reduce` where its gradients are reduced after it."""

    def exchange_tokens(self, b: Builder, schedule: Schedule, *, gradients: bool) -> None:
        """Append the hand-over of image tokens to the pipeline ranks, or the sum of their gradients."""

    def finish(self, b: Builder, stages: tuple[int, ...]) -> None:
        """Append the end of a step: the optimizer of `stages`, and the host waiting for all operations."""

    @property
    def host_waits(self) -> bool:
        """Whether the host waits for every message that arrives, as Megatron's pipeline does."""


def compile_programs(schedule: Schedule, grid: Grid, operations: ActionOperations) -> list[Program]:
    """Return the programs of all pipeline ranks for one step of a lowered schedule."""
    programs = _in_order(schedule, grid, operations)
    ordered = in_pair_order(schedule, costs_of(programs, schedule.stages))
    return programs if ordered == schedule else _in_order(ordered, grid, operations)


def _in_order(schedule: Schedule, grid: Grid, operations: ActionOperations) -> list[Program]:
    return [_Compiler(schedule, Builder(rank, grid), operations).run() for rank in range(schedule.ranks)]


_NEEDS = {
    Act.FORWARD: Act.RECV_ACTIVATION,
    Act.BACKWARD: Act.RECV_GRADIENT,
    Act.BACKWARD_INPUT: Act.RECV_GRADIENT,
    Act.RECOMPUTE: Act.RECV_GRADIENT,  # checkpointing begins once the gradient is there
}
_PARTS = {Act.BACKWARD: "all", Act.BACKWARD_INPUT: "input", Act.BACKWARD_WEIGHT: "weight"}
_GRADIENT = frozenset({Act.SEND_GRADIENT, Act.RECV_GRADIENT, Act.ENCODE_BACKWARD, Act.GATHER_TOKENS, *_PARTS})
_TIMELESS = frozenset({Act.REDUCE_GRADIENT, Act.STASH_WEIGHTS, Act.USE_WEIGHTS, Act.DROP_WEIGHTS, Act.FREE})


class _Compiler:
    """Turns one pipeline rank's actions into operations."""

    def __init__(self, schedule: Schedule, builder: Builder, operations: ActionOperations) -> None:
        self.schedule, self.b, self.operations = schedule, builder, operations
        self.actions = schedule.actions[builder.rank]
        self.reduced = {
            (a.stage, a.micro_batch, a.replica) for a in self.actions if a.kind is Act.REDUCE_GRADIENT
        }
        self.syncs: dict[int, list[int]] = {}  # stage: sums over replicas that its update must wait for

    def run(self) -> Program:
        """Return the program of a whole step."""
        b = self.b
        self.operations.begin(b)
        for action in self.actions:
            first = len(b.program.ops)
            b.at(action.stage, action.micro_batch, backward=action.kind in _GRADIENT)
            self.one(action)
            b.program.actions.append((action, first, len(b.program.ops)))
        b.at(-1, -1, backward=False)
        for syncs in self.syncs.values():
            b.wait(*syncs)
        held = tuple(stage for _, stage in self.schedule.held_by(b.rank))
        self.operations.finish(b, held if self.schedule.synchronous else ())
        return b.program

    def one(self, action: Action) -> None:
        """Append the operations of one action."""
        b, operations, kind = self.b, self.operations, action.kind
        self.receive(action)
        if kind in {Act.FORWARD, Act.RECOMPUTE}:
            operations.forward(b, action.stage, action.micro_batch, again=kind is Act.RECOMPUTE)
        elif kind in _PARTS:
            key = (action.stage, action.micro_batch, action.replica)
            reduce = key in self.reduced and kind is not Act.BACKWARD_INPUT
            operations.backward(b, action.stage, action.micro_batch, part=_PARTS[kind], reduce=reduce)
        elif kind in ENCODES:
            backward = kind is Act.ENCODE_BACKWARD
            reduce = (action.stage, action.micro_batch, action.replica) in self.reduced
            operations.encode(b, backward=backward, reduce=backward and reduce)
        elif kind in {Act.SHARE_TOKENS, Act.GATHER_TOKENS}:
            operations.exchange_tokens(b, self.schedule, gradients=kind is Act.GATHER_TOKENS)
        elif kind in SENDS | RECEIVES:
            self.message(action)
        elif kind is Act.SYNC_REPLICAS:
            owners = tuple(sorted(set(self.schedule.owners(action.stage))))
            index = operations.sync_replicas(b, action.stage, owners)
            if index is not None:
                self.syncs.setdefault(action.stage, []).append(index)
        elif kind is Act.OPTIMIZER_STEP:
            if not self.schedule.synchronous:  # else all stages step together at the end
                b.wait(*self.syncs.pop(action.stage, ()))
                operations.update(b, action.stage)
        elif kind not in _TIMELESS:
            raise AssertionError(action)

    def receive(self, action: Action) -> None:
        """Make a computation wait for the message that it reads."""
        if action.kind not in _NEEDS:
            return
        for receipt in self.b.receipts.pop(action.of(_NEEDS[action.kind]), ()):
            if self.operations.host_waits:
                self.b.sync((receipt,), "wait")
            self.b.wait(receipt)

    def message(self, action: Action) -> None:
        """Append a send or receive: an activation goes to the next stage, a gradient to the stage before."""
        gradient = action.kind in _GRADIENT
        sends = action.kind in SENDS
        offset = 1 if sends != gradient else -1
        peer = self.schedule.rank_of(action.stage + offset, action.replica)
        parcels = self.operations.messages(
            action.stage if sends else action.stage + offset, gradient=gradient
        )
        kind = Kind.SEND if sends else Kind.RECV
        indices = [self.b.message(kind, "send" if sends else "recv", peer, parcel) for parcel in parcels]
        if not sends:
            self.b.receipts[action] = indices


_COSTS: Final[Mapping[Act, str]] = {
    Act.FORWARD: "f",
    Act.BACKWARD: "b",
    Act.BACKWARD_INPUT: "i",
    Act.BACKWARD_WEIGHT: "w",
    Act.RECOMPUTE: "c",
}
_GRAIN: Final = 1024
"""Parts of a nanosecond that are kept: exact fractions of floats would grow with every sum."""


def costs_of(programs: Sequence[Program], stages: int) -> Costs:
    """Return the costs of actions, ns; those of a kind are the first of each virtual stage, with its collectives."""
    found: dict[str, dict[int, Fraction]] = {}
    messages = [Fraction(0)]
    for program in programs:
        for action, first, end in program.actions:
            ops = program.ops[first:end]
            part = _COSTS.get(action.kind)
            if part is not None and action.stage not in found.setdefault(part, {}):
                found[part][action.stage] = _exact(
                    sum(op.ns for op in ops if op.kind in {Kind.COMPUTE, Kind.COLLECTIVE})
                )
            messages += [_exact(op.ns) for op in ops if op.kind is Kind.SEND]
    whole = {part: by for part, by in found.items() if len(by) == stages}
    if "b" not in whole and {"i", "w"} <= whole.keys():
        whole["b"] = {stage: whole["i"][stage] + whole["w"][stage] for stage in range(stages)}
    given = {part: tuple(by[stage] for stage in range(stages)) for part, by in whole.items()}
    usual = Costs(p2p=max(messages))
    return replace(
        usual, f=given.get("f", usual.f), b=given.get("b", usual.b),
        i=given.get("i"), w=given.get("w"), c=given.get("c"),
    )  # fmt: skip


def _exact(ns: float) -> Fraction:
    return Fraction(round(ns * _GRAIN), _GRAIN)
