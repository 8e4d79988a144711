"""The verdict on all trends, its reason, the remedy of an open one, and notes on what it rests on."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from tracekit.analysis.trend.change_points import points_needed
from tracekit.analysis.trend.series import Series
from tracekit.analysis.trend.step import StepTrend
from tracekit.findings.trend import RankTrend, Trend, TrendUnit, TrendVerdict
from tracekit.thresholds.trend import LEAST_CHANGE, LEAST_POINTS, SERIAL_TOLD
from tracekit.units import ms


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
    few = len(series.points) < LEAST_POINTS
    asked = f"{max(LEAST_POINTS - len(series.points), 1)} more" if few else "more"
    to_decide = f"record {asked} {unit}s ({LEAST_POINTS} at least)" if verdict == "inconclusive" else None
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
        return "inconclusive", f"{points} {unit}s were recorded; fewer than {LEAST_POINTS} prove nothing"
    if t.shape != "none":
        text = _changed(unit, t)
        if abs(t.change_ns) >= least:
            return ("slower" if t.change_ns > 0 else "faster"), text
        return "varies", text
    if step.swing is not None and step.swing.proven:
        size = step.swing.swing_ns
        return "varies", f"the step swings with the day by {ms(size):.2f} ms ({_share(size, t)})"
    within = f"between {ms(t.low_ns):+.2f} and {ms(t.high_ns):+.2f} ms"
    text = f"over {points} {unit}s the step of {ms(t.level_ns):.2f} ms"
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
