"""Robust statistics: the median of the others, the spread of noise, and how significant an excess is."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import erfc, inf, lgamma, log, log1p, sqrt
from statistics import NormalDist
from typing import Final

import numpy as np

from tracekit.steps.medians import median_by_column, median_of_others, median_without_each, of_rows
from tracekit.thresholds.slowrank import COLUMN_NOISE_FROM, MOST_CONFIDENCE, Z_LIMIT
from tracekit.units import F64, I64, Mask

MAD_TO_SIGMA: Final = 1.4826
"""Standard deviation of a normal distribution over its median absolute deviation: 1 / Φ⁻¹(3/4)."""
NORMAL_95: Final = 1.96
"""Standard deviations to each side of the mean that hold 95 of 100 normal values: Φ⁻¹(0.975)."""


NO_ROWS: Final = np.zeros(0, np.int64)


@dataclass(frozen=True)
class Excess:
    """Excess over the median of the other rows of the group, ns; rows are ranks (or stages), columns steps."""

    value: F64
    mean: F64  # per rank, over the columns; NaN where the rank has no peer
    sigma: float  # robust standard deviation of one entry around its rank's own level
    z: F64  # per rank: significance of the mean, in standard errors
    limit: float = Z_LIMIT  # the z from which an excess is significant
    throughout: frozenset[int] = frozenset()  # rows that are long in one step, throughout it: no accident
    named: F64 | float = 0.0  # the part of `value` with a known cause, ns

    def significant(self, least: float) -> Mask:
        """Return whether each row exceeds its peers by more than chance (Benjamini–Hochberg) and than `least`, ns.

        The k largest z may each be chance with k times the probability of `limit`, which alone would part equal ranks.
        """
        z = np.where(np.nan_to_num(self.mean, nan=0.0) > least, np.nan_to_num(self.z, nan=0.0), -inf)
        chance = erfc(self.limit / sqrt(2.0)) / 2.0
        together = [v for k, v in enumerate(np.sort(z)[::-1].tolist(), 1) if v > errors_of_chance(k * chance)]
        return np.asarray(z >= min(together, default=inf), bool)


def usual_of_others(values: F64, groups: list[I64], usual: I64) -> F64:
    """Return for each row what the others of its group usually need: `median_of_others`, or that of `usual` rows.

    `usual` rows show what their whole group needs, although most of it needs longer.
    """
    result = median_of_others(values, groups)
    for rows in groups:
        low = np.intersect1d(rows, usual)
        if len(low):
            result[np.setdiff1d(rows, low)] = median_by_column(values[low])
        if len(low) > 1:
            result[low] = median_without_each(values[low])
    return result


def spread_of_others(levels: Sequence[float]) -> tuple[list[float], list[float]]:
    """Return (the median of the other levels, their robust standard deviation about it), for two levels or more."""
    values = np.array(levels)[:, None]
    peers, between = median_without_each(values), np.zeros(values.shape)
    for middle in np.unique(peers):  # three values at the most
        mine = peers == middle
        between[mine] = median_without_each(np.abs(values - middle))[mine]
    return peers[:, 0].tolist(), (MAD_TO_SIGMA * between[:, 0]).tolist()


def level_of(levels: Sequence[float] | F64) -> tuple[float, float]:
    """Return (the median of one or more levels, their robust standard deviation about it)."""
    middle = float(np.median(levels))
    return middle, MAD_TO_SIGMA * float(np.median(np.abs(np.asarray(levels) - middle)))


def spread(values: F64) -> float:
    """Return the robust standard deviation of all finite entries, from their median absolute deviation; 0 if none."""
    flat = values[np.isfinite(values)]
    return float(MAD_TO_SIGMA * np.median(np.abs(flat - np.median(flat)))) if len(flat) else 0.0


def excess(
    values: F64, groups: list[I64], floor: float, named: F64 | float = 0.0, *, usual: I64 = NO_ROWS
) -> Excess:
    """Return the excess of every row over `usual_of_others`, and its significance against the noise of all rows.

    `values` are rows × columns in ns. The noise is each entry's deviation from its own row's median, so that persistent
    differences between rows do not count as noise; `floor` (ns) is the least noise, without which trifles would be
    significant in a noiseless trace. A column in which the rows of a group vary more than usual, for example because
    all of them wait for their loaders, has the noise of that column. What is `named` (of the shape of `values`, ns) has
    a known cause: it is excess, but neither noise nor what peers usually need.
    """
    difference = values - usual_of_others(values - named, groups, usual)
    chance = difference - named
    columns = np.isfinite(difference).sum(axis=1)
    mean = of_rows(np.nanmean, difference)
    many = int(np.median(columns[columns > 0])) if (columns > 0).any() else 0
    if many >= 2:
        deviation = chance - of_rows(np.nanmedian, chance)[:, None]
        sigma = spread(deviation) * float(np.sqrt(many / (many - 1)))
    else:
        deviation, sigma = np.zeros(difference.shape), spread(chance)
    sigma = max(sigma, floor)
    noise = np.maximum(_noise_of_columns(deviation, groups), max(sigma, 1.0))
    variance = np.where(np.isfinite(difference), np.square(noise), 0.0).sum(axis=1)
    error = np.sqrt(np.maximum(variance, np.square(max(sigma, 1.0)))) / np.maximum(columns, 1)
    return Excess(difference, mean, sigma, mean / error, named=named)


def _noise_of_columns(deviation: F64, groups: list[I64]) -> F64:
    """Return by row and column the robust spread of its group's rows in that column, ns; 0 in too small groups.

    `deviation` is rows × columns, minus each row's own level.
    """
    noise = np.zeros(deviation.shape)
    for rows in (group for group in groups if len(group) >= COLUMN_NOISE_FROM):
        block = deviation[rows]
        known = np.isfinite(block).any(axis=0)
        middle = np.nanmedian(block[:, known], axis=0)
        noise[np.ix_(rows, np.flatnonzero(known))] = MAD_TO_SIGMA * np.nanmedian(
            np.abs(block[:, known] - middle), axis=0
        )
    return noise


def confidence(z: float, tests: int) -> float:
    """Return the probability that an excess of `z` standard errors among `tests` ranks is no chance (Bonferroni)."""
    return float(np.clip(1.0 - tests * erfc(z / sqrt(2.0)) / 2.0, 0.0, MOST_CONFIDENCE))


def errors_of_chance(probability: float) -> float:
    """Return the standard errors that a normal variable exceeds with `probability`, > 0; −∞ for certainty.

    `scipy.special` gives the same, after a third of a second of imports.
    """
    return -NormalDist().inv_cdf(probability) if probability < 1 else -inf


def chance_of(times: int, trials: int, probability: float) -> float:
    """Return the probability of `times` successes or more in `trials`, each of a `probability` between 0 and 1.

    By logarithms, because the factorials of a thousand trials exceed every float.
    """
    made = np.arange(max(times, 0), trials + 1)
    ways = lgamma(trials + 1) - np.array([lgamma(n + 1) + lgamma(trials - n + 1) for n in made.tolist()])
    return float(
        min(np.exp(ways + made * log(probability) + (trials - made) * log1p(-probability)).sum(), 1.0)
    )
