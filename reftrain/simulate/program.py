"""What a pipeline rank does in one step, operation by operation, before any time is known.

A `Schedule` says which forwards, backwards and messages a pipeline rank executes; a `Work` says what each of
them consists of (kernels, collectives); `compile_programs` puts both together. The engine runs the result, the
writers turn it into rows. Operations depend on earlier ones of the same program by index.
"""

import enum
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol

from reftrain.errors import ScheduleError
from reftrain.schedule.actions import RECEIVES, SENDS, Action, Schedule
from reftrain.schedule.actions import Kind as Act
from reftrain.simulate.grid import Grid


class Kind(enum.IntEnum):
    """What an operation is to the engine."""

    COMPUTE = 0
    COLLECTIVE = 1
    SEND = 2
    RECV = 3
    LOAD = 4  # the host fetches a batch
    SYNC = 5  # the host waits for operations


COMMUNICATION = frozenset({Kind.COLLECTIVE, Kind.SEND, Kind.RECV})


@dataclass(frozen=True, slots=True)
class Op:
    """One operation of a pipeline rank's step.

    `ns` is its time without noise or waiting: a kernel's, a transfer's, a fetch's. `after` are indices of
    operations that must have ended before it starts (besides the one before it on its stream). `group` is the
    kind of process group (`axes.SPANS`), `members` the pipeline ranks that a collective joins where that is
    not this one alone. `nelems` are (in, out) elements of a message.
    """

    kind: Kind
    label: str
    ns: float
    after: tuple[int, ...] = ()
    stream: str = "compute"
    group: str = ""
    members: tuple[int, ...] = ()
    peer: int = -1  # pipeline rank at the other end of a message
    nelems: tuple[int, int] = (0, 0)
    dtype: str = "BFloat16"
    launches: int = 1
    stage: int = -1
    micro_batch: int = -1
    backward: bool = False
    segment: bool = False  # begins a compute segment, as hooks of the trainer announce them
    attention: bool = False  # its time follows the documents of the micro-batch
    parts: tuple[tuple[str, float], ...] = ()  # kernels of a merged compute operation: (label, share)


@dataclass
class Program:
    """One pipeline rank's step. `actions` are (schedule action, first operation, end of operations)."""

    rank: int
    ops: list[Op] = field(default_factory=list)
    actions: list[tuple[Action, int, int]] = field(default_factory=list)


class Builder:
    """Appends operations of one pipeline rank, keeping what its compute stream must still wait for."""

    def __init__(self, rank: int, grid: Grid) -> None:
        self.grid = grid
        self.program = Program(rank)
        self.pending: tuple[int, ...] = ()  # the next compute operation waits for these
        self.stage = self.micro_batch = -1
        self.backward = False
        self.receipts: dict[Action, int] = {}  # receive action → its operation
        self.open: list[int] = []  # communication that nothing has waited for yet

    @property
    def rank(self) -> int:
        """The pipeline rank."""
        return self.program.rank

    def _add(self, op: Op) -> int:
        self.program.ops.append(op)
        return len(self.program.ops) - 1

    def at(self, stage: int, micro_batch: int, *, backward: bool) -> None:
        """Say what the operations to come belong to."""
        self.stage, self.micro_batch, self.backward = stage, micro_batch, backward

    def compute(
        self,
        label: str,
        ns: float,
        *,
        launches: int = 1,
        segment: bool = False,
        attention: bool = False,
        parts: tuple[tuple[str, float], ...] = (),
    ) -> int:
        """One kernel, or several merged into one operation."""
        op = Op(
            Kind.COMPUTE, label, ns, self.pending, launches=launches, stage=self.stage,
            micro_batch=self.micro_batch, backward=self.backward, segment=segment, attention=attention,
            parts=parts,
        )  # fmt: skip
        self.pending = ()
        return self._add(op)

    def collective(
        self,
        group: str,
        label: str,
        ns: float,
        nelems: tuple[int, int],
        *,
        stream: str = "",
        wait: bool = True,
        members: Iterable[int] = (),
        dtype: str = "BFloat16",
    ) -> int | None:
        """Call `label` on the rank's group; nothing happens in a group of one.

        With `wait` the next compute operation waits for it, else whoever names it later does.
        """
        joined = tuple(sorted(members))
        size = self.grid.size(group) if not joined else self.grid.size(group) * len(joined)
        if size == 1:
            return None
        if joined:
            self.grid.join(group, joined)
        op = Op(
            Kind.COLLECTIVE, label, ns, self.pending, stream or group, group, joined, nelems=nelems,
            dtype=dtype, stage=self.stage, micro_batch=self.micro_batch, backward=self.backward,
        )  # fmt: skip
        index = self._add(op)
        if wait:
            self.pending = (*self.pending, index)
        else:
            self.open.append(index)
        return index

    def message(self, kind: Kind, label: str, peer: int, ns: float, nelems: int) -> int:
        """Send to, or receive from, pipeline rank `peer`; nobody waits for a send but the step's end."""
        stream = f"{'to' if kind is Kind.SEND else 'from'}{peer}"
        after = self.pending if kind is Kind.SEND else ()
        op = Op(
            kind, label, ns, after, stream, "pp", peer=peer, nelems=(nelems, nelems), stage=self.stage,
            micro_batch=self.micro_batch, backward=self.backward,
        )  # fmt: skip
        index = self._add(op)
        if kind is Kind.SEND:
            self.open.append(index)
        return index

    def load(self, ns: float) -> int:
        """The host fetches the step's batch."""
        return self._add(Op(Kind.LOAD, "load", ns))

    def sync(self, after: Iterable[int], label: str = "item") -> int:
        """The host waits for operations, and for all compute before."""
        return self._add(Op(Kind.SYNC, label, 0.0, tuple(after)))

    def wait(self, *indices: int | None) -> None:
        """The next compute operation waits for these."""
        self.pending = (*self.pending, *(i for i in indices if i is not None))
        self.open = [i for i in self.open if i not in indices]


class Work(Protocol):
    """What actions consist of. Every method but `message` appends operations to the builder."""

    def begin(self, b: Builder) -> None:
        """What a step starts with: data, weights to gather."""

    def forward(self, b: Builder, stage: int, micro_batch: int, *, again: bool) -> None:
        """One micro-batch forward on one virtual stage; `again` where backward computes it once more."""

    def backward(self, b: Builder, stage: int, micro_batch: int, *, part: str, reduce: bool) -> None:
        """The same backward; `part` is all, input or weight; `reduce` where gradients are reduced after it."""

    def message(self, stage: int, *, gradient: bool) -> tuple[float, int]:
        """Transfer time (ns) and elements of the message that leaves `stage`."""

    def sync_replicas(self, b: Builder, stage: int, owners: tuple[int, ...]) -> int | None:
        """Sum a stage's gradients over the pipeline ranks that hold a replica of it; gives the operation."""

    def update(self, b: Builder, stage: int) -> None:
        """Step the optimizer of one stage in the middle of a step: asynchronous schedules do."""

    def finish(self, b: Builder, stages: tuple[int, ...]) -> None:
        """What a step ends with: the optimizer of `stages`, and the host waiting for everything."""

    @property
    def host_waits(self) -> bool:
        """Whether the host waits for every message that arrives, as Megatron's pipeline does."""


def compile_programs(schedule: Schedule, grid: Grid, work: Work) -> list[Program]:
    """Programs of all pipeline ranks for one step of a lowered schedule.

    Raises ScheduleError for an action that cannot be simulated.
    """
    return [_Compiler(schedule, Builder(rank, grid), work).run() for rank in range(schedule.ranks)]


_NEEDS = {
    Act.FORWARD: Act.RECV_ACTIVATION,
    Act.BACKWARD: Act.RECV_GRADIENT,
    Act.BACKWARD_INPUT: Act.RECV_GRADIENT,
    Act.RECOMPUTE: Act.RECV_GRADIENT,  # checkpointing begins once the gradient is there
}
_PARTS = {Act.BACKWARD: "all", Act.BACKWARD_INPUT: "input", Act.BACKWARD_WEIGHT: "weight"}
_GRADIENT = frozenset({Act.SEND_GRADIENT, Act.RECV_GRADIENT, *_PARTS})
_TIMELESS = frozenset({Act.REDUCE_GRADIENT, Act.STASH_WEIGHTS, Act.USE_WEIGHTS, Act.DROP_WEIGHTS, Act.FREE})


class _Compiler:
    """Turns one pipeline rank's actions into operations."""

    def __init__(self, schedule: Schedule, builder: Builder, work: Work) -> None:
        self.schedule, self.b, self.work = schedule, builder, work
        self.actions = schedule.actions[builder.rank]
        self.reduced = {
            (a.stage, a.micro_batch, a.replica) for a in self.actions if a.kind is Act.REDUCE_GRADIENT
        }
        self.syncs: dict[int, list[int]] = {}  # stage: sums over replicas that its update must wait for

    def run(self) -> Program:
        """Operations of a whole step."""
        b = self.b
        self.work.begin(b)
        for action in self.actions:
            first = len(b.program.ops)
            b.at(action.stage, action.micro_batch, backward=action.kind in _GRADIENT)
            self.one(action)
            b.program.actions.append((action, first, len(b.program.ops)))
        b.at(-1, -1, backward=False)
        for syncs in self.syncs.values():
            b.wait(*syncs)
        held = tuple(stage for _, stage in self.schedule.held_by(b.rank))
        self.work.finish(b, held if self.schedule.synchronous else ())
        return b.program

    def one(self, action: Action) -> None:
        """Operations of one action."""
        b, work, kind = self.b, self.work, action.kind
        self.receive(action)
        if kind in {Act.FORWARD, Act.RECOMPUTE}:
            work.forward(b, action.stage, action.micro_batch, again=kind is Act.RECOMPUTE)
        elif kind in _PARTS:
            key = (action.stage, action.micro_batch, action.replica)
            reduce = key in self.reduced and kind is not Act.BACKWARD_INPUT
            work.backward(b, action.stage, action.micro_batch, part=_PARTS[kind], reduce=reduce)
        elif kind in SENDS | RECEIVES:
            self.message(action)
        elif kind is Act.SYNC_REPLICAS:
            index = work.sync_replicas(b, action.stage, self.schedule.owners(action.stage))
            if index is not None:
                self.syncs.setdefault(action.stage, []).append(index)
        elif kind is Act.OPTIMIZER_STEP:
            if not self.schedule.synchronous:  # else all stages step together at the end
                b.wait(*self.syncs.pop(action.stage, ()))
                work.update(b, action.stage)
        elif kind not in _TIMELESS:
            raise ScheduleError("schedule", f"{action} cannot be simulated", "choose another schedule")

    def receive(self, action: Action) -> None:
        """Make a computation wait for the message it consumes."""
        if action.kind not in _NEEDS:
            return
        receipt = self.b.receipts.pop(action.of(_NEEDS[action.kind]), None)
        if receipt is not None:
            if self.work.host_waits:
                self.b.sync((receipt,), "wait")
            self.b.wait(receipt)

    def message(self, action: Action) -> None:
        """Send or receive; an activation goes to the next stage, a gradient to the one before."""
        gradient = action.kind in _GRADIENT
        sends = action.kind in SENDS
        offset = 1 if sends != gradient else -1
        peer = self.schedule.rank_of(action.stage + offset, action.replica)
        ns, nelems = self.work.message(action.stage if sends else action.stage + offset, gradient=gradient)
        kind = Kind.SEND if sends else Kind.RECV
        index = self.b.message(kind, "send" if sends else "recv", peer, ns, nelems)
        if not sends:
            self.b.receipts[action] = index
