"""Judges one series: whether it drifts or changes at once, which of the two describes it, and by what amount."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from tracekit.analysis.trend.change_points import chance_of_change, cuts_of, levels, likeliest_cuts, stairs
from tracekit.analysis.trend.series import Series
from tracekit.analysis.trend.significance import (
    Line,
    adjusted,
    chance_of_drift,
    line_of,
    serial_factor,
    widened,
)
from tracekit.findings.trend import Shape, Shift, Trend
from tracekit.thresholds.trend import LEAST_POINTS, LEVEL, STAIRS_BETTER
from tracekit.units import F64


@dataclass(frozen=True)
class Judged:
    """A series with its known values and times, both shapes that may describe it, and their probabilities.

    places: of the values among all points, numbers: of these points. least: least difference of levels, ns. Chances
    are of this one alone.
    """

    times: F64
    values: F64
    places: tuple[int, ...]
    numbers: tuple[int, ...]
    line: Line
    cuts: tuple[int, ...]
    p_drift: float
    p_change: float
    least: float

    @property
    def drift(self) -> float:
        """Return the change of the line over all the times, ns."""
        return self.line.slope * float(np.ptp(self.times))

    def fit(self, shape: Shape) -> F64:
        """Return the line or the levels at each value, ns."""
        return self.line.at(self.times) if shape == "drift" else stairs(self.values, self.cuts)

    def misses(self, shape: Shape) -> float:
        """Return the distance of the values from the line or the levels, over the degrees of freedom left, ns."""
        spent = 2 if shape == "drift" else 2 * len(self.cuts) + 1
        return float(np.abs(self.values - self.fit(shape)).sum()) / max(len(self.values) - spent, 1)


def judged(series: Series, values: F64, least: float) -> Judged:
    """Return one quantity at the points of `series`, judged alone; NaN is left out. It needs at least one value."""
    known = np.flatnonzero(np.isfinite(values))
    at, held = series.times[known], values[known]
    line = line_of(at, held)
    cuts = cuts_of(held, least)
    likely = cuts or likeliest_cuts(held, least)
    return Judged(
        at, held, tuple(known.tolist()), tuple(series.points[k].number for k in known.tolist()), line, likely,
        chance_of_drift(at, held),
        widened(chance_of_change(held), serial_factor(held - stairs(held, likely))), least,
    )  # fmt: skip


def trends(names: Sequence[str], series: Sequence[Judged], others: Sequence[float] = ()) -> list[Trend]:
    """Return the trend of each series, judged together; `others` are probabilities of further tests of the kind."""
    enough = [len(s.values) >= LEAST_POINTS for s in series]
    chances = [p for s, e in zip(series, enough, strict=True) if e for p in (s.p_drift, s.p_change)]
    every = iter(adjusted([*chances, *others]))
    return [
        _trend(name, s, *((next(every), next(every)) if e else (None, None)))
        for name, s, e in zip(names, series, enough, strict=True)
    ]


def _trend(name: str, s: Judged, p_drift: float | None, p_change: float | None) -> Trend:
    """Return the trend of one series; its chances account for all series that were judged with it."""
    shape = _shape(s, p_drift, p_change)
    heights = levels(s.values, s.cuts) if shape == "change" else [0.0, s.drift if shape == "drift" else 0.0]
    span = float(np.ptp(s.times))
    return Trend(
        name, len(s.values), float(np.median(s.values)), float(s.line.at(s.times[:1])[0]), s.drift,
        s.line.low * span, s.line.high * span, _rounded(p_drift),
        _shifts(s) if shape == "change" else (), _rounded(p_change), shape,
        heights[-1] - heights[0], max(heights[1:]) - heights[0],
    )  # fmt: skip


def _shape(s: Judged, p_drift: float | None, p_change: float | None) -> Shape:
    """The proven shape of the series that is large enough; the better fit where both are."""
    proven: list[Shape] = []
    if p_drift is not None and p_drift <= LEVEL and abs(s.drift) >= s.least:
        proven.append("drift")
    if p_change is not None and p_change <= LEVEL and s.cuts:
        proven.append("change")
    if len(proven) == len(_SHAPES):
        return "change" if s.misses("change") <= STAIRS_BETTER * s.misses("drift") else "drift"
    return proven[0] if proven else "none"


_SHAPES: Final = ("drift", "change")
"""Shapes of a trend that may be proven."""


def _shifts(s: Judged) -> tuple[Shift, ...]:
    heights = levels(s.values, s.cuts)
    return tuple(
        Shift(s.numbers[cut], int(s.times[cut]), before, after)
        for cut, before, after in zip(s.cuts, heights, heights[1:], strict=False)
    )


def _rounded(p: float | None) -> float | None:
    return None if p is None else round(p, 9)
