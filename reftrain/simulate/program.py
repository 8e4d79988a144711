"""The operations of a pipeline rank in one step, before any time is known, and the builder that appends them.

`compile` makes a program from a schedule and the operations of its actions. The engine runs it, the writers turn it
into rows. Operations depend on earlier ones of the same program by index.
"""

import enum
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from reftrain.schedule.actions import Action
from reftrain.simulate.grid import Grid


class Kind(enum.IntEnum):
    """Kind of an operation, by which the engine runs it."""

    COMPUTE = 0
    COLLECTIVE = 1
    SEND = 2
    RECV = 3
    LOAD = 4  # the host fetches a batch
    SYNC = 5  # the host waits for operations
    HOST = 6  # the host computes


COMMUNICATION = frozenset({Kind.COLLECTIVE, Kind.SEND, Kind.RECV})


@dataclass(frozen=True, slots=True)
class Op:
    """One operation of a pipeline rank's step.

    `ns` is its time without noise or waiting: a kernel's, a transfer's, a fetch's. `after` are indices of
    operations that must have ended before it starts (besides the one before it on its stream). `group` is the
    kind of process group (`grid.SPANS`), `members` the pipeline ranks that a collective joins where that is
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
    copied: int = 0  # bytes; a compute operation with some is a copy between device and host


@dataclass
class Program:
    """One step of a pipeline rank; `actions` are (action of the schedule, first operation, end of its operations)."""

    rank: int
    ops: list[Op] = field(default_factory=list)
    actions: list[tuple[Action, int, int]] = field(default_factory=list)


class Parcel(NamedTuple):
    """One message between two stages: its transfer time in ns, its elements, and their type."""

    ns: float
    elements: int
    dtype: str = "BFloat16"


def sides(op: str, elements: int, size: int) -> tuple[int, int]:
    """Return the (in, out) elements of a call with a larger buffer of `elements`."""
    part = max(elements // size, 1)
    return {"all_gather": (part, elements), "reduce_scatter": (elements, part)}.get(op, (elements, elements))


class Builder:
    """Appends operations of one pipeline rank, with the ends that its compute stream must still wait for."""

    def __init__(self, rank: int, grid: Grid) -> None:
        self.grid = grid
        self.program = Program(rank)
        self.pending: tuple[int, ...] = ()  # the next compute operation waits for these
        self.stage = self.micro_batch = -1
        self.backward = False
        self.receipts: dict[Action, Sequence[int]] = {}  # receive action → its operations
        self.open: dict[int, None] = {}  # communication that nothing has waited for yet, in its order

    @property
    def rank(self) -> int:
        """The pipeline rank."""
        return self.program.rank

    def _add(self, op: Op) -> int:
        self.program.ops.append(op)
        return len(self.program.ops) - 1

    def at(self, stage: int, micro_batch: int, *, backward: bool) -> None:
        """Set the stage and micro-batch that the next operations belong to."""
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
        """Append one kernel, or several merged into one operation; return its index."""
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
        """Append a collective on the rank's group; return its index, or None in a group of one.

        With `wait` the next compute operation waits for it, else the operation that names it later.
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
            self.open[index] = None
        return index

    def message(self, kind: Kind, label: str, peer: int, parcel: Parcel) -> int:
        """Append a send to, or receive from, pipeline rank `peer`; only the end of the step waits for a send."""
        after = self.pending if kind is Kind.SEND else ()
        op = Op(
            kind, label, parcel.ns, after, f"with{peer}", "pp", peer=peer, nelems=(parcel.elements, parcel.elements),
            dtype=parcel.dtype, stage=self.stage, micro_batch=self.micro_batch, backward=self.backward,
        )  # fmt: skip
        index = self._add(op)
        if kind is Kind.SEND:
            self.open[index] = None
        return index

    def copy(self, label: str, ns: float, nbytes: int) -> int:
        """Append a copy between device and host, in order with the kernels; `label` is to_host or to_device."""
        op = Op(Kind.COMPUTE, label, ns, self.pending, copied=nbytes)
        self.pending = ()
        return self._add(op)

    def host(self, label: str, ns: float) -> int:
        """Append computing by the host itself."""
        return self._add(Op(Kind.HOST, label, ns))

    def load(self, ns: float) -> int:
        """Append the fetch of the step's batch by the host."""
        return self._add(Op(Kind.LOAD, "load", ns))

    def sync(self, after: Iterable[int], label: str = "item") -> int:
        """Append a wait of the host for operations and for all compute before."""
        return self._add(Op(Kind.SYNC, label, 0.0, tuple(after)))

    def wait(self, *indices: int | None) -> None:
        """Let the next compute operation wait for these."""
        for index in (i for i in indices if i is not None):
            self.pending = (*self.pending, index)
            self.open.pop(index, None)
