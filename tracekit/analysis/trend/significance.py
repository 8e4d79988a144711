"""The significance of a trend: drift, daily swing, and a correction for correlation between consecutive windows.

All tests use ranks of values, so that one long window decides nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtr, ndtri
from scipy.stats import kendalltau, rankdata

from tracekit.thresholds.trend import INTERVAL_LEVEL, MOST_SERIAL
from tracekit.units import F64


@dataclass(frozen=True)
class Line:
    """A drift: its slope a ns of time, its value at time 0, and the interval of the slope."""

    slope: float
    zero: float
    low: float
    high: float

    def at(self, times: F64) -> F64:
        """The line at `times`."""
        return np.asarray(self.zero + self.slope * times, np.float64)


def line_of(times: F64, values: F64) -> Line:
    """Return the line with the median slope over all pairs (Theil 1950, Sen 1968), with Sen's interval of it.

    The interval follows from Kendall's variance of rising pairs by chance, widened by the serial correlation.
    """
    one, two = np.triu_indices(len(times), 1)
    apart = times[two] > times[one]
    slopes = np.sort((values[two] - values[one])[apart] / (times[two] - times[one])[apart])
    if not len(slopes):
        return Line(0.0, float(np.median(values)), 0.0, 0.0)
    slope = float(np.median(slopes))
    zero = float(np.median(values - slope * times))
    n = len(times)
    factor = serial_factor(values - zero - slope * times)
    within = float(-ndtri(INTERVAL_LEVEL / 2) * np.sqrt(factor * n * (n - 1) * (2 * n + 5) / 18))
    low = int(np.clip(np.floor((len(slopes) - within) / 2), 0, len(slopes) - 1))
    high = int(np.clip(np.ceil((len(slopes) + within) / 2), 0, len(slopes) - 1))
    return Line(slope, zero, float(slopes[low]), float(slopes[high]))


def chance_of_drift(times: F64, values: F64) -> float:
    """Return the probability that values in random order rise or fall so steadily (Kendall's tau, two-sided).

    Exact for few values. Widened by the serial correlation of ranks around a steady rise, which curved courses have
    too: it counts by the share of their variance that the rise leaves. A course that rises throughout and then stays
    leaves a small residue, which resembles itself but could not have made the rise.
    """
    if np.ptp(values) == 0:
        return 1.0
    place = np.arange(len(values)) - (len(values) - 1) / 2
    ranks = rankdata(values) - (len(values) + 1) / 2
    rest = np.round(ranks - place * float(place @ ranks) / float(place @ place), _ROUND)
    left = float(rest @ rest) / float(ranks @ ranks)
    return widened(float(kendalltau(times, values).pvalue), serial_factor(rest, left))


_ROUND = 9
"""Digits of ranks without a steady rise: rounding must not look like correlation."""


def swing_of(times: F64, values: F64, period: float) -> tuple[float, float, F64]:
    """Return (peak to trough, time of the peak, the swing at each time) of the wave of `period` nearest to `values`."""
    waves = _waves(times, period)
    (_, cosine, sine), *_ = np.linalg.lstsq(waves, values, rcond=None)
    peak = float(np.arctan2(sine, cosine) / (2 * np.pi) * period % period)
    return 2 * float(np.hypot(cosine, sine)), peak, waves[:, 1:] @ np.array([cosine, sine])


def chance_of_swing(times: F64, values: F64, period: float) -> float:
    """Return the probability that ranks in random order fit a wave of `period` so well (F test, 2 and n−3 degrees)."""
    if np.ptp(values) == 0:
        return 1.0
    ranks = rankdata(values)
    waves = _waves(times, period)
    weights, *_ = np.linalg.lstsq(waves, ranks, rcond=None)
    left = float(((ranks - waves @ weights) ** 2).sum() / ((ranks - ranks.mean()) ** 2).sum())
    return float(left ** ((len(ranks) - 3) / 2))


def _waves(times: F64, period: float) -> F64:
    turn = 2 * np.pi * times / period
    return np.stack([np.ones(len(times)), np.cos(turn), np.sin(turn)], axis=1)


def serial_factor(residual: F64, share: float = 1.0) -> float:
    """Return the number of windows that count as one: (1 + r)/(1 − r), r the correlation of each rank with the next.

    share: of the whole variance that the residual is; r counts by it.

    r is estimated too low by about (1 + 3 r)/n (Kendall 1954), which is added; it counts where it is above its standard
    error.
    """
    r = share * correlation(residual)
    return (1 + r) / (1 - r)


def correlation(residual: F64) -> float:
    """Return the correlation of each value's rank with the next one's, at most `MOST_SERIAL`; 0 below its error."""
    if np.ptp(residual) == 0:
        return 0.0
    ranks = rankdata(residual) - (len(residual) + 1) / 2
    r = float((ranks[:-1] * ranks[1:]).sum() / (ranks**2).sum())
    r += (1 + 3 * r) / len(ranks)
    return float(min(r, MOST_SERIAL)) if r > 1 / np.sqrt(len(ranks)) else 0.0


def widened(p: float, factor: float) -> float:
    """Return the probability `p` if only one window in `factor` counts: its standard error grows by the root of it."""
    return float(min(2 * ndtr(ndtri(max(p, np.finfo(float).tiny) / 2) / np.sqrt(factor)), 1.0))


def adjusted(chances: Sequence[float]) -> list[float]:
    """Return each probability adjusted for all of them (Holm): that any of them is so rare."""
    order = np.argsort(chances, kind="stable")
    found = np.zeros(len(chances))
    held = 0.0
    for place, i in enumerate(order.tolist()):
        held = max(held, min(chances[i] * (len(chances) - place), 1.0))
        found[i] = held
    return [float(p) for p in found]
