"""The trend of a job over its windows: from an ingested run to a finding; each is opened as by `slowrank`.

A rank that gets slower is followed by its own time beyond the median of the peers that do the same work, as `slowrank`
compares them: work that communication stretches or that the data dealt is not of its own doing. If two ranks drift
apart, the answer names the one with the rising own time.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from tracekit.analysis.diff.side import Side, side_of
from tracekit.analysis.trend.change_points import levels, points_needed
from tracekit.analysis.trend.judge import Judged, judged, trends
from tracekit.analysis.trend.series import OWN_PARTS, Point, Series, of_steps, of_window, series_of
from tracekit.analysis.trend.significance import line_of
from tracekit.analysis.trend.step import StepTrend, step_trend
from tracekit.errors import InputError, MeshError
from tracekit.findings import MeshFinding, Quality, RankCoverage
from tracekit.findings.trend import CommonChange, RankTrend, Trend, TrendFinding, TrendUnit, TrendVerdict
from tracekit.mesh import Mesh
from tracekit.steps.recorded_windows import windows_of
from tracekit.store import Run
from tracekit.thresholds.trend import LEAST_CHANGE, LEAST_POINTS, OWN_SHARE, SERIAL_TOLD
from tracekit.timing.measured import StepRange
from tracekit.units import F64, ms


@dataclass(frozen=True)
class Opened:
    """The windows that could be analysed: the series over them, and the evidence they rest on."""

    unit: TrendUnit
    series: Series
    mesh: Mesh
    found_mesh: MeshFinding
    ranks: RankCoverage
    quality: tuple[Quality, ...]


def trend(
    run: Run,
    mesh: dict[str, int] | None = None,
    order: Sequence[str] | None = None,
    steps: Sequence[StepRange] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> TrendFinding:
    """Return the trend of the step, its parts and each rank's excess of own time over the windows of `run`, tested.

    A window is what one file of each rank holds; in a run with one window, steps are compared. `mesh`, `order` and
    `steps` are as for `tracekit.slowrank`; `progress` is called with (windows analysed, all windows). Raises
    UsageError, MeshError and InputError as `tracekit.breakdown` does, where no window can be analysed.
    """
    opened = _opened(run, mesh, order, steps, progress)
    series = opened.series
    step = step_trend(series)
    least = LEAST_CHANGE * step.trend.level_ns
    by_rank = rank_trends(run, opened.mesh, series, least)
    answer = decided(opened.unit, series, step, by_rank)
    return TrendFinding(
        opened.ranks, opened.found_mesh, opened.unit, series.points, answer.verdict, answer.reason, step.trend,
        step.swing, step.parts, by_rank, step.serial, answer.to_decide, opened.quality, answer.notes,
        common_change(series, step.course),
    )  # fmt: skip


def _opened(
    run: Run,
    mesh: dict[str, int] | None,
    order: Sequence[str] | None,
    steps: Sequence[StepRange] | None,
    progress: Callable[[int, int], None] | None,
) -> Opened:
    """Return the windows of `run` as series, and which cannot be analysed or have another mesh than most."""
    windows = windows_of(run)
    if not windows:
        side = side_of(run, mesh, order, steps, progress)
        quality = side.compared.quality
        series = series_of(of_steps(side))
        return Opened("step", series, side.case.mesh, side.compared.mesh, side.compared.ranks, quality)
    found: list[tuple[Side, Point]] = []
    lost: dict[int, InputError | MeshError] = {}
    for number, window in enumerate(windows):
        try:
            side = side_of(window.run, mesh, order, steps, None)
            found.append((side, of_window(side, number, window.at_ns)))
        except (InputError, MeshError) as error:
            lost[number] = error
        if progress:
            progress(number + 1, len(windows))
    if not found:
        raise lost[0]
    return _of_windows(run, found, lost)


def _of_windows(
    run: Run, found: Sequence[tuple[Side, Point]], lost: dict[int, InputError | MeshError]
) -> Opened:
    """The windows `found` as series, restricted to the most common mesh."""
    often = Counter(_key(side) for side, _ in found)
    usual = max(often, key=lambda k: (often[k], k))
    kept = [(side, point) for side, point in found if _key(side) == usual]
    quality = [*run.quality]
    for number, error in lost.items():
        quality.append(Quality("window_left_out", None, 1, f"window {number}: {error}"))
    if others := len(found) - len(kept):
        quality.append(Quality("other_mesh", None, others, "windows of another mesh than most are left out"))
    series = series_of([point for _, point in kept])
    first = kept[0][0]
    read = max((s.compared.ranks for s, _ in kept), key=lambda r: r.expected)
    missing = tuple(sorted(set(read.missing) - set(series.ranks)))
    ranks = replace(read, read=len(series.ranks), missing=missing, rejected=run.rejected)
    return Opened("window", series, first.case.mesh, first.compared.mesh, ranks, tuple(quality))


def _key(side: Side) -> tuple[tuple[str, int], ...]:
    """The sizes of a window's mesh, in its order."""
    return tuple((axis, side.case.mesh.sizes[axis]) for axis in side.case.mesh.order)


def rank_trends(run: Run, mesh: Mesh, series: Series, least: float) -> tuple[RankTrend, ...]:
    """Return the trend of each rank that has peers in two windows or more; slowing ranks first, then by change."""
    rows = [i for i in range(len(series.ranks)) if np.isfinite(series.beyond[i]).sum() > 1]
    each = [judged(series, series.beyond[i], least) for i in rows]
    tested = trends([f"rank {series.ranks[i]}" for i in rows], each)
    found = [_ranked(run, mesh, series, i, s, t, least) for i, s, t in zip(rows, each, tested, strict=True)]
    return tuple(sorted(found, key=lambda r: (not r.slower, -r.trend.rise_ns, -r.trend.drift_ns, r.rank)))


def _ranked(
    run: Run, mesh: Mesh, series: Series, row: int, s: Judged, trend: Trend, least: float
) -> RankTrend:
    rank = series.ranks[row]
    coords = {axis: at for axis, at in mesh.coords(rank).items() if mesh.size(axis) > 1}
    host = next((r.host for r in run.ranks if r.rank == rank), None)
    places = list(s.places)
    rises = [_rise(trend, s, part[places]) for part in series.parts[row]]
    own = _rise(trend, s, series.own[row, places])
    slower = trend.rise_ns >= least and own >= OWN_SHARE * trend.rise_ns
    part = OWN_PARTS[int(np.argmax(rises))]
    held = (_known(series.own[row]), _known(series.beyond[row]))
    return RankTrend(rank, host, coords, trend, part, slower, *held)


def _rise(trend: Trend, s: Judged, values: F64) -> float:
    """Return the rise of `values` in the same shape: along the line, or up to the highest level; ns."""
    if trend.shape == "change":
        return _rise_of_levels(levels(s.values, s.cuts), levels(values, s.cuts))
    return line_of(s.times, values).slope * float(np.ptp(s.times))


def _rise_of_levels(mine: list[float], other: list[float]) -> float:
    highest = 1 + int(np.argmax(mine[1:]))
    return other[highest] - other[0]


def _known(values: F64) -> tuple[float | None, ...]:
    return tuple(float(v) if np.isfinite(v) else None for v in values)


@dataclass(frozen=True)
class Answer:
    """The verdict, its reason, what would decide it if it is open, and notes."""

    verdict: TrendVerdict
    reason: str
    to_decide: str | None
    notes: tuple[str, ...]


def decided(unit: TrendUnit, series: Series, step: StepTrend, ranks: Sequence[RankTrend]) -> Answer:
    """Return the answer on the trends of the step and of the ranks."""
    verdict, reason = _of_step(unit, step, len(series.points))
    slower = [r for r in ranks if r.slower]
    if slower and verdict in {"steady", "inconclusive"}:
        named = ", ".join(str(r.rank) for r in slower[:_NAMED])
        more = f" and {len(slower) - _NAMED} more" if len(slower) > _NAMED else ""
        subject = f"rank {named} gets" if len(slower) == 1 else f"ranks {named}{more} get"
        verdict, reason = "rank_drift", f"{subject} slower than the peers; of the step: {reason}"
    missing = LEAST_POINTS - len(series.points)
    asked = (
        f"record {missing} more {unit}s ({LEAST_POINTS} at least)" if missing > 0 else f"record more {unit}s"
    )
    to_decide = asked if verdict == "inconclusive" else None
    return Answer(verdict, reason, to_decide, tuple(_notes(unit, series, step, ranks)))


_EACH: Final = 2
"""Tests of a series: for a drift, and for changes at once."""

_NAMED: Final = 8
"""Ranks that the reason names; the table has all."""


def _of_step(unit: TrendUnit, step: StepTrend, points: int) -> tuple[TrendVerdict, str]:
    """The verdict on the step alone, and its reason."""
    t = step.trend
    least = LEAST_CHANGE * t.level_ns
    if points < LEAST_POINTS:
        many = f"1 {unit} was" if points == 1 else f"{points} {unit}s were"
        return "inconclusive", f"{many} recorded; fewer than {LEAST_POINTS} prove nothing"
    if t.shape != "none":
        text = _changed(unit, t)
        if abs(t.change_ns) >= least:
            return ("slower" if t.change_ns > 0 else "faster"), text
        return "varies", text
    swinging = ""
    if step.swing is not None and step.swing.proven:
        size = step.swing.swing_ns
        swinging = f"the step swings with the day by {ms(size):.2f} ms ({_share(size, t)})"
        if size >= least:
            return "varies", swinging
        swinging += ", and "
    within = f"between {ms(t.low_ns):+.2f} and {ms(t.high_ns):+.2f} ms"
    text = f"{swinging}over {points} {unit}s the step of {ms(t.level_ns):.2f} ms"
    if -least < t.low_ns and t.high_ns < least and step.hidden_ns < least:
        return "steady", f"{text} changes by less than {LEAST_CHANGE:.0%} (drift {within})"
    return "inconclusive", f"{text} differs by more than {LEAST_CHANGE:.0%}, maybe by chance (drift {within})"


def _changed(unit: TrendUnit, t: Trend) -> str:
    """The sentence about the proven trend of the step."""
    if t.shape == "drift":
        return (
            f"the step drifts by {ms(t.drift_ns):+.2f} ms ({_share(t.drift_ns, t)}) over {t.points} {unit}s"
        )
    shifts = "; ".join(
        f"{ms(s.before_ns):.2f} → {ms(s.after_ns):.2f} ms at {unit} {s.number}" for s in t.shifts
    )
    return f"the step changes at once: {shifts}"


def _share(ns: float, t: Trend) -> str:
    return f"{ns / t.level_ns:+.1%}" if t.level_ns else "?"


def _notes(unit: TrendUnit, series: Series, step: StepTrend, ranks: Sequence[RankTrend]) -> Iterator[str]:
    """Yield what the answer rests on, and what could not be found out."""
    if step.unasked:
        yield step.unasked
    if unit == "step":
        yield "one window was recorded, so steps are compared: they do not show changes between windows"
    tests = _EACH * max(len(ranks), 1)
    if (needed := points_needed(tests)) > len(series.points):
        alone = points_needed(_EACH)
        yield f"a sudden change can be proven from {alone} {unit}s on, that of a single rank from {needed} on"
    if step.serial >= SERIAL_TOLD:
        yield f"each {unit} resembles the next one (correlation {step.serial:.2f}): fewer count as independent"
    few = sum(r.trend.p_drift is None for r in ranks)
    lone = len(series.ranks) - len(ranks)
    if few:
        yield f"{few} ranks share fewer than {LEAST_POINTS} {unit}s with peers: whether they drift is not known"
    if lone:
        yield f"{lone} ranks have no peer that does the same work in two {unit}s: whether they drift is not known"
    values = series.step
    if len(values) >= LEAST_POINTS:
        beyond = float(values[-1] - values[:-1].max())
        if beyond >= LEAST_CHANGE * float(np.median(values)):
            yield f"the last {unit} is longer than all others by {ms(beyond):.2f} ms: a single one proves nothing"


# Separates a change of all devices alike, as of their clocks, from one that a rank, a link or the schedule
# makes.


def common_change(series: Series, course: F64) -> CommonChange | None:
    """Return the change of compute of all ranks with the step; None if a rank has none, or not a similar share.

    course: the proven trend of the step at each point, ns. A rank's change is the slope of its compute over the course;
    each must be at least OWN_SHARE of the largest, and of the step's own share.
    """
    size = float(np.ptp(course))
    compute = series.parts[:, OWN_PARTS.index("compute")]
    known = np.isfinite(compute)
    if not size or not len(compute) or (known.sum(axis=1) <= 1).any():
        return None
    shares = np.array(
        [_explained_share(row[k], course[k], size) for row, k in zip(compute, known, strict=True)]
    )
    least = OWN_SHARE * max(float(shares.max()), size / float(np.median(series.step)))
    return (
        None
        if shares.min() < least
        else CommonChange(*(float(f(shares)) for f in (np.median, np.min, np.max)))
    )


def _explained_share(compute: F64, course: F64, size: float) -> float:
    """Return the change of compute over the whole course, as a share of its median; 0 if either never changes."""
    moved = course - course.mean()
    weight, level = float(moved @ moved), float(np.median(compute))
    return float(moved @ compute) / weight * size / level if weight and level else 0.0
