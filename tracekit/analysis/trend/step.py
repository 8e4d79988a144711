"""The trend of the step and its parts, and its daily swing, removed before drift and changes are judged."""

from dataclasses import dataclass
from typing import Final

import numpy as np

from tracekit.analysis.trend.change_points import stairs
from tracekit.analysis.trend.judge import Judged, judged, trends
from tracekit.analysis.trend.series import Series
from tracekit.analysis.trend.significance import (
    chance_of_swing,
    correlation,
    line_of,
    serial_factor,
    swing_of,
    widened,
)
from tracekit.findings.trend import Swing, Trend
from tracekit.thresholds.trend import DAYS, LEAST_CHANGE, LEAST_OF_SWING, LEVEL, MOST_OF_DAY_UNSEEN
from tracekit.units import F64, NS_PER_DAY, NS_PER_HOUR


@dataclass(frozen=True)
class StepTrend:
    """The trend of the step and its parts, and its swing: None where it was not tested, for the reason `unasked`.

    hidden_ns: difference of the levels that fit best, proven or not; a smaller difference is not a change. course: what
    is proven of the step at each point, swing and trend, ns; all 0 where nothing is.
    """

    trend: Trend
    swing: Swing | None
    parts: tuple[Trend, ...]
    serial: float
    hidden_ns: float
    unasked: str
    course: F64


def step_trend(series: Series) -> StepTrend:
    """Return the trend of the step of `series`, of its parts, and its swing."""
    times, values = series.times, series.step
    least = LEAST_CHANGE * float(np.median(values))
    unasked = _unasked(times)
    chance, swing, wave = (1.0, None, values) if unasked else _swing(times, values)
    swinging = wave if swing is not None and swing.proven else np.zeros(len(values))
    step = judged(series, values - swinging, least)
    (of_step,) = trends(["step"], [step], [] if unasked else [chance])
    names = list(dict.fromkeys(name for p in series.points for name in p.parts))
    parts = trends(names, [judged(series, series.part(n), least) for n in names])
    fit = np.zeros(len(values)) if of_step.shape == "none" else step.fit(of_step.shape)
    return StepTrend(
        of_step, swing, tuple(sorted(parts, key=lambda t: (-abs(t.change_ns), -abs(t.drift_ns), t.what))),
        correlation(_residual(step, of_step)), _hidden(step), unasked, fit + swinging,
    )  # fmt: skip


def _residual(step: Judged, found: Trend) -> F64:
    """The step without its trend."""
    if found.shape == "change":
        return step.values - stairs(step.values, step.cuts)
    return step.values - step.line.at(step.times)


def _hidden(step: Judged) -> float:
    heights = [float(np.median(part)) for part in np.split(step.values, list(step.cuts))]
    return max(heights) - min(heights)


def _unasked(times: F64) -> str:
    """Return why no daily swing can be looked for; empty if it can."""
    hours = float(np.ptp(times)) / NS_PER_HOUR
    if np.ptp(times) < DAYS * NS_PER_DAY:
        recorded = f"{hours:.3g} h are" if hours >= 1 else "less than an hour is"
        return (
            f"no daily swing is looked for: {recorded} recorded, {DAYS:.0f} days would show whether it recurs"
        )
    if len(times) < LEAST_OF_SWING:
        return f"no daily swing is looked for: that needs {LEAST_OF_SWING} windows"
    of_day = np.sort(times % NS_PER_DAY)
    unseen = float(np.diff([*of_day, of_day[0] + NS_PER_DAY]).max()) / NS_PER_DAY
    if unseen > MOST_OF_DAY_UNSEEN:
        return f"no daily swing is looked for: no window lies in {24 * unseen:.3g} h of the day"
    return ""


def _swing(times: F64, values: F64) -> tuple[float, Swing, F64]:
    """Return (the chance of so large a wave of a day beside the drift, the wave as reported, its value at each time).

    Proven as one of the three tests of the step, however small.
    """
    rest = values - line_of(times, values).at(times)
    size, peak, wave = swing_of(times, rest, NS_PER_DAY)
    chance = widened(chance_of_swing(times, rest, NS_PER_DAY), serial_factor(rest - wave))
    p = min(_STEP_TESTS * chance, 1.0)
    return chance, Swing(size, peak / NS_PER_HOUR, round(p, 9), p <= LEVEL), wave


_STEP_TESTS: Final = 3
"""Tests of the step: drift, changes, and the swing."""
