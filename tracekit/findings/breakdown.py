"""The answer of `tracekit breakdown` as data (contract `tracekit.breakdown/1`); times are integer ns.

A change of meaning needs a new schema number.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from tracekit.findings.shared import (
    Columns,
    Coverage,
    MeshFinding,
    Quality,
    RankCoverage,
    Row,
    StepsFinding,
    Tabular,
    placed,
    places,
)


@dataclass(frozen=True)
class ExposedTime:
    """Time for which compute was idle for communication along one axis, ns.

    axis: one axis or several (`dp_cp`); `other` is a group that is no line of the mesh, `unknown` one that the trace
    does not name. wait_ns: another member had not arrived yet. transfer_ns: all had. open_ns: waiting or transfer,
    unknown. Waits for messages between pipeline stages are in `TimeParts.bubble_ns` instead.
    """

    axis: str
    wait_ns: int
    transfer_ns: int
    open_ns: int


@dataclass(frozen=True)
class TimeParts:
    """The parts of a step, ns: compute, exposed communication, bubble, host, idle and unknown add up to step_ns.

    compute_ns: kernels or copies ran (on a CPU trace operators), with communication beside them or not. bubble_ns: the
    rank was idle until another pipeline stage sent or took a message. host_ns: the device was idle until its host
    launched something (on a CPU trace, time outside every operator). idle_ns: the device was idle although its next
    work had been launched. unknown_ns: not known from the recording.
    """

    step_ns: int
    compute_ns: int
    exposed: tuple[ExposedTime, ...]
    bubble_ns: int
    host_ns: int
    idle_ns: int
    unknown_ns: int

    @property
    def waiting_ns(self) -> int:
        """Exposed communication of all axes that waited for a late member."""
        return sum(e.wait_ns for e in self.exposed)

    @property
    def transfer_ns(self) -> int:
        """Exposed communication of all axes for which all members had come."""
        return sum(e.transfer_ns for e in self.exposed)

    @property
    def open_ns(self) -> int:
        """Exposed communication of all axes that may be either."""
        return sum(e.open_ns for e in self.exposed)


@dataclass(frozen=True)
class Share:
    """One part of the step over all ranks: mean ns a step, its share of all steps, and the shares of single ranks."""

    part: str  # `compute`, `tp waiting`, `tp transfer`, `tp either`, `bubble`, `host`, `idle` or `unknown`
    mean_ns: float
    share: float
    least: float
    median: float
    most: float


@dataclass(frozen=True)
class StepBreakdown:
    """One step of one rank."""

    rank: int
    step: int
    parts: TimeParts


@dataclass(frozen=True)
class RankBreakdown:
    """All analysed steps of one rank, summed.

    communication_ns: time in which any communication ran. hidden_ns: the part of it in which the rank computed as well.
    """

    rank: int
    host: str | None
    coords: dict[str, int]
    steps: int
    parts: TimeParts
    communication_ns: int
    hidden_ns: int


@dataclass(frozen=True)
class Traffic:
    """One kind of communication along one axis, summed over the analysed steps of all ranks.

    op: the collective; `message` is a send or a receive. members: ranks of a group. rank_steps: steps of ranks that
    took part. calls: counted on each rank. unsized: calls of unknown size, which the bytes leave out. bytes: of the
    larger side of each call. moved_bytes: what a rank sends in a ring, 2(N−1)/N of an all-reduce, (N−1)/N of an
    all-gather, reduce-scatter and all-to-all. exposed_ns: how long compute was idle for it. algorithm_gb_s:
    bytes over transfer time, without waiting for late members. bus_gb_s: the same of moved_bytes; both as nccl-tests
    define them, over calls with known size and transfer, None without any.
    """

    axis: str
    op: str
    members: int
    rank_steps: int
    calls: int
    unsized: int
    bytes: int
    moved_bytes: int
    exposed_ns: int
    algorithm_gb_s: float | None
    bus_gb_s: float | None


@dataclass(frozen=True)
class Volume:
    """What a rank moves in a step along an axis, beside a formula; elements.

    what: `gradients`, `activations` or `loss`. phi: Φ of the formula, from the recorded sizes. scheme: what moves as
    much as the formula gives. expected: the value of the formula. times: recorded over expected; for activations and a
    loss it counts layers and micro-batches, which are not recorded. fits: whether times is 1; None if it counts
    something.
    """

    axis: str
    what: Literal["gradients", "activations", "loss"]
    phi: int
    recorded: float
    formula: str
    scheme: str
    expected: float
    times: float
    fits: bool | None


@dataclass(frozen=True)
class BreakdownFinding(Tabular):
    """The answer of `tracekit breakdown`.

    total: sums over all analysed steps of all ranks. shares: the same by part, with their spread over ranks. by_rank:
    the rank that waited least first, for it is the one that others may have waited for. cells: each step of each rank
    that was recorded whole.
    """

    ranks: RankCoverage
    mesh: MeshFinding
    steps: StepsFinding
    total: TimeParts
    shares: tuple[Share, ...]
    by_rank: tuple[RankBreakdown, ...]
    cells: tuple[StepBreakdown, ...]
    traffic: tuple[Traffic, ...]
    volumes: tuple[Volume, ...]
    coverage: Coverage
    quality: tuple[Quality, ...] = ()
    notes: tuple[str, ...] = field(default=())

    def columns(self) -> Columns:
        """A step of a rank a row; the columns from `compute_ns` on add up to `step_ns`."""
        waits = [f"{axis}_{kind}_ns" for axis in self._axes for kind in ("wait", "transfer", "open")]
        rest = ("bubble_ns", "host_ns", "idle_ns", "unknown_ns")
        numbers = ("rank", "step", "step_ns", "compute_ns", *waits, *rest)
        return {**dict.fromkeys(numbers, "int64"), "host": "string", **places(self.mesh)}

    def rows(self) -> Iterator[Row]:
        """The steps of each rank that were recorded whole."""
        of = {r.rank: r for r in self.by_rank}
        none = (0, 0, 0)
        for cell in self.cells:
            p, rank = cell.parts, of[cell.rank]
            held = {e.axis: (e.wait_ns, e.transfer_ns, e.open_ns) for e in p.exposed}
            waits = [ns for axis in self._axes for ns in held.get(axis, none)]
            rest = (p.bubble_ns, p.host_ns, p.idle_ns, p.unknown_ns)
            yield (
                cell.rank,
                cell.step,
                p.step_ns,
                p.compute_ns,
                *waits,
                *rest,
                rank.host,
                *placed(rank.coords, self.mesh),
            )

    def headline(self) -> str:
        """What was cut into parts."""
        median = self.steps.median_ms
        return f"{len(self.cells)} steps of {len(self.by_rank)} ranks; the median step takes {median:.1f} ms"

    @property
    def _axes(self) -> list[str]:
        """Axes with exposed communication, in the order of the finding's sums."""
        return [e.axis for e in self.total.exposed]
