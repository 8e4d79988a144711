"""What the pages of `tracekit slowrank` and `hang` draw beside the findings: plain arrays, ms; NaN is unknown."""

from dataclasses import dataclass

from tracekit.units import F64


@dataclass(frozen=True)
class TimelineRow:
    """One rank's stretches of one kind of time in the step shown: begins and lengths, ms from the step's begin."""

    rank: int
    kind: str  # a name of `parts`
    begin: tuple[float, ...]
    length: tuple[float, ...]


@dataclass(frozen=True)
class Timeline:
    """One step of a suspect beside its peers; the first rank is the one that the others are compared with.

    rows: those of `ranks`, and of the ranks `held` besides, whose clocks are linked with that of the first.
    """

    step: int
    ranks: tuple[int, ...]
    rows: tuple[TimelineRow, ...]
    least: float  # gaps shorter than this were closed, ms
    clocks_linked: bool  # the clocks of all these ranks are linked
    held: tuple[int, ...] = ()


@dataclass(frozen=True)
class Level:
    """One axis of the descent: per index how the excess of its ranks spreads, below the indices chosen before."""

    axis: str
    chosen: int | None
    indices: tuple[int, ...]
    spread: tuple[tuple[float, ...], ...]  # least, lower quartile, median, upper quartile, largest
    left_out: int  # indices that are not shown


@dataclass(frozen=True)
class Criterion:
    """One test on the way to the verdict: what was measured, and the value from which it counts."""

    what: str
    measured: str
    threshold: str
    why: str


@dataclass(frozen=True)
class SlowRankPicture:
    """Everything drawn for one answer; rows are the job's ranks, columns the analysed steps."""

    ranks: tuple[int, ...]
    hosts: tuple[str | None, ...]
    places: dict[str, tuple[int, ...]]  # axis → index of each rank; -1 unknown
    steps: tuple[int, ...]
    excess: F64  # own time beyond the median of the peers
    stood: F64  # exposed communication: compute stood still
    parts: dict[str, F64]  # kind of time → mean of a step of each rank; they sum to the step
    levels: tuple[Level, ...]
    timeline: Timeline | None
    criteria: tuple[Criterion, ...]


@dataclass(frozen=True)
class HangPicture:
    """Every rank of a hung job and its state; `places` is empty if no mesh is known."""

    ranks: tuple[int, ...]
    hosts: tuple[str | None, ...]
    places: dict[str, tuple[int, ...]]  # axis, outermost first → index of each rank
    states: tuple[str, ...]  # `culprit`, `waits`, `no dump` or `does not wait`
