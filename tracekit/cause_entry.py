"""What an entry of the table of causes consists of: signs, rows of evidence, and times to compare ranks by."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Literal

from tracekit.findings.slowrank import Cause
from tracekit.mechanisms import MechanismEntry
from tracekit.thresholds.slowrank import CLEARLY_MORE, MAJORITY, TIME_SLICE_NS

Quantity = Literal[
    "own",
    "busy",
    "gap",
    "typical",
    "short",
    "quickest",
    "attention",
    "matmul",
    "copies",
    "peer_copies",
    "loader",
    "collector",
    "allocator",
    "longest_gap",
]
"""Times that a rank and its peers are compared by: own time, compute, gaps without compute, compute at the medians of
operators (`Features.typical`), short operators as they are and at the shortest of their names, compute in attention, in
matrix products, in copies between device and host and in copies between devices, data loading, garbage collection,
memory allocation (all a step), and the longest gap."""


@dataclass(frozen=True)
class Comparison:
    """One rank beside the median of its peers; ns."""

    on_gpu: bool
    mine: Mapping[Quantity, float]
    peers: Mapping[Quantity, float]
    gaps: float  # excess of the rank's gaps over the peers', over all analysed steps
    pauses: float  # the part of it in few long gaps, STEP_PARTS at most
    interrupted: float = (
        0.0  # short operators a step that took much of a time slice longer, beyond the peers'
    )
    no_fault: float = 0.0  # the part of the excess that is gaps which its role or chance makes
    spared: float = (
        0.0  # extra time that its kernels would take beside communication that waits, as its peers' do
    )
    launches_slowly: Callable[[], bool] = lambda: False  # whether its host needs longer between launches

    def over(self, quantity: Quantity) -> float:
        """Return the rank's excess over its peers by its own doing, ns."""
        less = self.no_fault if quantity in {"own", "gap"} else 0.0
        more = self.spared if quantity in {"own", "busy"} else 0.0
        return float(self.mine[quantity] - self.peers[quantity]) - less + more

    def grows(self, quantity: Quantity) -> float:
        """Return by which share of the peers' the rank's quantity is larger."""
        return (self.mine[quantity] - self.peers[quantity]) / max(self.peers[quantity], 1.0)

    @property
    def takes_turns(self) -> bool:
        """Whether the rank's short operators grow as its own time does, but not the shortest of their names.

        Then it waits for its turn on its core: a slow processor lengthens the shortest ones as well. It runs for few
        time slices between two waits; a process that is stopped, or has a quota, runs longer.
        """
        grown = self.grows("short")
        turn_ns = CLEARLY_MORE * TIME_SLICE_NS
        return (
            grown >= MAJORITY * self.grows("own") > 0
            and self.grows("quickest") < MAJORITY * grown
            and self.mine["quickest"] < self.interrupted * turn_ns
        )

    def explains(self, quantity: Quantity) -> bool:
        """Whether the rank's excess in one quantity is at least half of its excess of own time."""
        return self.over(quantity) >= MAJORITY * self.over("own")


@dataclass(frozen=True)
class Row:
    """A row of evidence: a quantity of the suspect beside its peers."""

    what: str  # {device} and {stage} are filled in
    quantity: Quantity | None = None  # None: measured by the function that decides
    least_share: float | None = None  # shown only where it exceeds this share of the excess


class Order(IntEnum):
    """When a sign is looked for: spans with a name explain gaps before the shape of the gaps does."""

    NAMED_SPANS = 0
    COMPUTE = 1
    SHAPE_OF_GAPS = 2
    VERDICT = 3


@dataclass(frozen=True)
class Sign:
    """What decides a cause: a test of the suspect's time, or a function that compares more than ranks."""

    order: Order
    says: str
    decides: Callable[[Comparison], bool] | str  # a test, or "module:function" of tracekit
    rows: tuple[Row, ...] = ()


@dataclass(frozen=True)
class CauseEntry:
    """One cause."""

    name: Cause
    meaning: str  # completes "the suspect is slow because …" in the report
    excluded_by: str  # what in the evidence would speak against it
    next_step: str
    signs: tuple[Sign, ...]
    on_host: bool = False  # the host's doing, which the job's design may explain
    holds_threads: bool = False  # threads that carry out transfers are held up as well
    needs_slow_host: bool = False  # a host that launches as fast as its peers' hosts excludes it
    next_on_cpu: str | None = None  # where the devices are CPUs; None: the same
    quantity: Quantity = "gap"  # the time of a rank that it lengthens
    mechanisms: tuple[MechanismEntry, ...] = ()  # what may take the time within it

    @property
    def by_shape(self) -> bool:
        """Whether the shape of a rank's gaps tells it from other causes of gaps."""
        return any(sign.order == Order.SHAPE_OF_GAPS for sign in self.signs)

    @property
    def pauses(self) -> bool:
        """Whether the process stops at times, with its threads."""
        return self.by_shape and self.holds_threads

    @property
    def takes_turns(self) -> bool:
        """Whether the process waits for its turn on its cores, with its threads."""
        return self.holds_threads and not self.by_shape

    def shown_by(self, quantity: Quantity) -> bool:
        """Return whether a row of its evidence is `quantity`."""
        return any(row.quantity == quantity for sign in self.signs for row in sign.rows)

    def step_on(self, *, gpu: bool) -> str:
        """Return what to do next, by the kind of device."""
        return self.next_step if gpu or self.next_on_cpu is None else self.next_on_cpu
