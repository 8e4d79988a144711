"""The answer of `tracekit trend` as data (contract `tracekit.trend/1`); times are ns.

A change of meaning needs a new schema number.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from tracekit.findings.shared import Columns, MeshFinding, Quality, RankCoverage, Row, Tabular, placed, places

TrendVerdict = Literal["slower", "faster", "varies", "rank_drift", "steady", "inconclusive"]
"""How the step of a job is over its windows. `varies`: it changes and comes back, or swings with the day. `rank_drift`:
the step does not change, but a rank gets slower than its peers. `inconclusive` never means steady."""
TrendUnit = Literal["window", "step"]
"""What is compared: windows, each as the median of its steps, or the steps of the one window that there is."""
Shape = Literal["drift", "change", "none"]


@dataclass(frozen=True)
class TrendPoint:
    """One window, or one step of the only window: medians over its steps, ns.

    number: of the window, from 0 on and with those left out, or of the step. at_ns: since the first one began. parts:
    of the step by name, mean over ranks; medians need not add up.
    """

    number: int
    at_ns: int
    steps: tuple[int, ...]
    ranks: int
    step_ns: float
    parts: dict[str, float]


@dataclass(frozen=True)
class Shift:
    """A change at once: the number of the first window of the new level, its time, and both levels (medians), ns."""

    number: int
    at_ns: int
    before_ns: float
    after_ns: float


@dataclass(frozen=True)
class Trend:
    """How one quantity changes over `points` windows.

    drift_ns, low_ns, high_ns: the change from the first to the last window if it drifts steadily, and its interval;
    begin_ns: where that line begins. shifts: where it changes suddenly, by 2 % of the step or
    more. p_drift, p_change: the chance of either in random order; None of too few points. All tests of one kind and the
    likeness of each window and the next are accounted for. shape: which of the two fits better, if proven. change_ns:
    the last level less the first one, in that shape; rise_ns: the highest level less the first one.
    """

    what: str
    points: int
    level_ns: float
    begin_ns: float
    drift_ns: float
    low_ns: float
    high_ns: float
    p_drift: float | None
    shifts: tuple[Shift, ...]
    p_change: float | None
    shape: Shape
    change_ns: float
    rise_ns: float


@dataclass(frozen=True)
class RankTrend:
    """One rank's own time beyond the median of its peers over the windows.

    own_ns, beyond_ns: own time, and that beyond the peers', at each point; None where the rank has none.

    part: what of its own time changes most: `compute`, `host` or `idle`. slower: the rank gets slower than its peers,
    proven among all ranks, by 2 % of the step, and its own time rises.
    """

    rank: int
    host: str | None
    coords: dict[str, int]
    trend: Trend
    part: str
    slower: bool
    own_ns: tuple[float | None, ...] = field(default=(), repr=False)
    beyond_ns: tuple[float | None, ...] = field(default=(), repr=False)


@dataclass(frozen=True)
class Swing:
    """A wave of a day in the step: from trough to peak, and hours from the first window to a peak."""

    swing_ns: float
    peak_h: float
    p: float
    proven: bool


@dataclass(frozen=True)
class CommonChange:
    """Compute of all ranks changes with the step, by a similar share each: the median, least and largest share.

    It is a change of the clock of all devices, by power, heat or the time of the day, or of the work of a step, and no
    rank's fault.
    """

    share: float
    least: float
    most: float


@dataclass(frozen=True)
class TrendFinding(Tabular):
    """The answer of `tracekit trend`.

    serial: the correlation of each window with the next one, once step's trend is taken away. parts: the largest change
    first. by_rank: ranks that get slower first, then by change. swing: None where it was not looked for, which a note
    explains. common: compute of all ranks changes with what is proven of the step; None where it does not.
    """

    ranks: RankCoverage
    mesh: MeshFinding
    unit: TrendUnit
    points: tuple[TrendPoint, ...]
    verdict: TrendVerdict
    reason: str
    step: Trend
    swing: Swing | None
    parts: tuple[Trend, ...]
    by_rank: tuple[RankTrend, ...]
    serial: float
    to_decide: str | None = None
    quality: tuple[Quality, ...] = ()
    notes: tuple[str, ...] = field(default=())
    common: CommonChange | None = None

    @property
    def span_ns(self) -> int:
        """From the begin of the first to that of the last point."""
        return self.points[-1].at_ns - self.points[0].at_ns

    @property
    def slower(self) -> tuple[RankTrend, ...]:
        """The ranks that get slower than their peers."""
        return tuple(r for r in self.by_rank if r.slower)

    def columns(self) -> Columns:
        """A rank in a window a row."""
        numbers = dict.fromkeys(("at_ns", "number", "rank"), "int64")
        times = dict.fromkeys(("step_ns", "own_ns", "beyond_peers_ns"), "double")
        return {**numbers, **times, "slower": "bool", "host": "string", **places(self.mesh)}

    def rows(self) -> Iterator[Row]:
        """The ranks of each window, in order of time."""
        for n, point in enumerate(self.points):
            for r in sorted(self.by_rank, key=lambda r: r.rank):
                if r.own_ns[n] is not None:
                    times = (point.step_ns, r.own_ns[n], r.beyond_ns[n])
                    yield (
                        point.at_ns,
                        point.number,
                        r.rank,
                        *times,
                        r.slower,
                        r.host,
                        *placed(r.coords, self.mesh),
                    )

    def headline(self) -> str:
        """The verdict and why."""
        return f"{self.verdict}: {self.reason}"
