"""What an entry of the table of causes consists of: signs, rows of evidence, and times to compare ranks by."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Final, Literal

from tracekit.findings.slowrank import Cause, CauseShare
from tracekit.mechanisms import MechanismEntry
from tracekit.thresholds.slowrank import (
    CLEARLY_MORE,
    LEAST_KIND,
    MAJORITY,
    MECHANISMS_LISTED,
    NAMED_SHARE,
    NO_ACCIDENT,
    TIME_SLICE_NS,
)

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
operators, short operators as they are and at the shortest of their names, compute in attention, in
matrix products, in copies between device and host and in copies between devices, data loading, garbage collection,
memory allocation (all a step), and the longest gap."""

Part = Literal[
    "loader", "collector", "allocator", "pauses", "launches", "turns", "copies", "peer_copies", "stops", "compute"
]  # fmt: skip
"""Parts of a rank's excess that do not overlap: gaps by their spans and lengths, waits of a process for its turn on its
core, compute by its kernels, and operators of a CPU within which the process was stopped."""

_SPANS: Final[tuple[Literal["loader", "collector", "allocator"], ...]] = ("loader", "collector", "allocator")


@dataclass(frozen=True)
class Comparison:
    """One rank beside the median of its peers; ns."""

    on_gpu: bool
    mine: Mapping[Quantity, float]
    peers: Mapping[Quantity, float]
    gaps: float  # excess of the rank's gaps over the peers', over all analysed steps
    pauses: (
        float  # the part of it in long gaps: the STEP_PARTS longest of a step, and those beyond a time slice
    )
    interrupted: float = (
        0.0  # short operators a step that took much of a time slice longer, beyond the peers'
    )
    no_fault: float = 0.0  # the part of the excess that is gaps which its role or chance makes
    spared: float = (
        0.0  # extra time that its kernels would take beside communication that waits, as its peers' do
    )
    spread: float = 0.0  # by how much the own time of a usual peer differs from the peers' median
    launches_slowly: Callable[[], bool] = lambda: False  # whether its host needs longer between launches
    under_quota: Callable[[], bool] = lambda: False  # whether its pauses end as those of a quota do

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
        time slices between two waits; a process that is stopped runs longer. One with a quota may be interrupted as
        often, but goes on at one phase of the period of that quota.
        """
        grown = self.grows("short")
        turn_ns = CLEARLY_MORE * TIME_SLICE_NS
        return (
            grown >= MAJORITY * self.grows("own") > 0
            and self.grows("quickest") < MAJORITY * grown
            and self.mine["quickest"] < self.interrupted * turn_ns
            and not self.under_quota()
        )

    @property
    def shares_cores(self) -> bool:
        """Whether the rank takes turns, and that explains its excess: compute on a CPU, gaps of a GPU."""
        if self.on_gpu:
            return self.explains("gap") and self.interrupted >= NO_ACCIDENT and self.takes_turns
        return self.takes_turns and not self.explains("attention") and self.over("busy") > 0

    def explains(self, quantity: Quantity) -> bool:
        """Whether the rank's excess in one quantity is at least half of its excess of own time."""
        return self.over(quantity) >= MAJORITY * self.over("own")

    @property
    def parts(self) -> dict[Part, float]:
        """The shares of the excess that its parts explain, 0 to 1; none without an excess.

        A span explains the gaps that it lies in. Waits for a turn lengthen gaps and compute of a CPU alike, and as much
        as short operators exceed the shortest of their names. A stop within operators leaves their medians as they are.
        """
        if self.no_fault < 0:  # a role that makes other ranks idle longer gives this one no gaps
            return replace(self, no_fault=0.0).parts
        own = self.over("own")
        if own <= 0:
            return {}
        gap, busy = (min(max(self.over(quantity) / own, 0.0), 1.0) for quantity in ("gap", "busy"))
        found: dict[Part, float] = {}
        for span in _SPANS:
            found[span] = min(max(self.over(span) / own, 0.0), gap)
            gap -= found[span]
        turns = min(self._turns(), gap if self.on_gpu else gap + busy)
        if self.on_gpu:
            gap -= turns
        else:
            gap, busy = (part * (1.0 - turns / max(gap + busy, 1e-9)) for part in (gap, busy))
        copies = min(max(self.over("copies") / own, 0.0), busy)
        peer_copies = min(max(self.over("peer_copies") / own, 0.0), busy - copies)
        computed = busy - copies - peer_copies
        stops = computed * self.stopped
        pauses = min(self._paused() / own, gap)
        return found | {
            "turns": turns, "pauses": pauses, "launches": gap - pauses, "copies": copies, "peer_copies": peer_copies,
            "stops": stops, "compute": computed - stops,
        }  # fmt: skip

    def _turns(self) -> float:
        """The share of the excess that waits for a turn explain: what they add to short operators."""
        if not self.shares_cores:
            return 0.0
        if self.on_gpu:
            return (self.over("short") - self.over("quickest")) / self.over("own")
        return (self.grows("short") - self.grows("quickest")) / self.grows("own")

    def _paused(self) -> float:
        """The excess in long gaps, ns a step; none where the device ran out of work in them."""
        if self.gaps <= 0 or self.launches_slowly():
            return 0.0
        return max(self.pauses, 0.0) * (self.mine["gap"] - self.peers["gap"]) / self.gaps

    @property
    def stopped(self) -> float:
        """The share of longer compute that is stops within operators of a CPU; none where attention is longer."""
        known = not self.on_gpu and self.peers["typical"] > 0
        if not known or self.explains("attention") or self.grows("busy") <= 0:
            return 0.0
        return min(max(1.0 - self.grows("typical") / self.grows("busy"), 0.0), 1.0)

    @property
    def stands_still(self) -> bool:
        """Whether the process stops: in few gaps, or on a CPU between operators and within some of them."""
        between = self.explains("gap") and self.pauses >= MAJORITY * self.gaps
        both = self.parts.get("pauses", 0.0) + self.parts.get("stops", 0.0)
        anywhere = self.stopped > MAJORITY and both >= MAJORITY
        return (between or anywhere) and not self.launches_slowly()


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
    part: Part | None = None  # what of the excess it explains


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
    next_for_all: str | None = None  # where it strikes all ranks, in turn or together; None: the same
    counters: tuple[
        str, ...
    ] = ()  # kinds of counters of its host or GPU that support it, as `CounterSign` has them
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

    def share(self, parts: Mapping[Part, float]) -> float:
        """Return the share of an excess, 0 to 1, that the cause explains; `parts` are those of the excess."""
        return sum(parts.get(part, 0.0) for part in {sign.part for sign in self.signs} if part is not None)

    def shown_by(self, quantity: Quantity) -> bool:
        """Return whether a row of its evidence is `quantity`."""
        return any(row.quantity == quantity for sign in self.signs for row in sign.rows)

    def step_on(self, *, gpu: bool, one: bool = True) -> str:
        """Return what to do next, by the kind of device, and by whether `one` rank or several have this cause."""
        if not one and self.next_for_all is not None:
            return self.next_for_all
        return self.next_step if gpu or self.next_on_cpu is None else self.next_on_cpu


def causes_by_share(
    shares: Mapping[Cause, float], likely: Cause, uncertain: float = 0.0
) -> tuple[CauseShare, ...]:
    """Return the two causes that explain most, the larger share first; the `likely` one is sure if it excludes others.

    uncertain: the part of the excess that may be chance, of any cause. The likely cause must reach 80 % of the rest,
    and exceed each other cause even if all that chance is its own. Causes that explain next to nothing are left out.
    """
    own = shares.get(likely, 0.0)
    others = max((share for name, share in shares.items() if name != likely), default=0.0)
    sure = own >= NAMED_SHARE * (1.0 - uncertain) and own - uncertain > others
    found = sorted((item for item in shares.items() if item[1] >= LEAST_KIND), key=lambda item: -item[1])
    return tuple(
        CauseShare(name, share, name == likely and sure) for name, share in found[:MECHANISMS_LISTED]
    )
