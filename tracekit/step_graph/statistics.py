"""Robust statistics: the median of the others, the spread of noise, and how significant an excess is."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from math import erfc, inf, lgamma, log, log1p, sqrt
from statistics import NormalDist
from typing import Final

import numpy as np

from tracekit.steps.medians import median_by_column, of_rows
from tracekit.thresholds.slowrank import COLUMN_NOISE_FROM, MOST_CONFIDENCE, Z_LIMIT
from tracekit.units import F64, I64, Mask

MAD_TO_SIGMA: Final = 1.4826
"""Standard deviation of a normal distribution over its median absolute deviation: 1 / Φ⁻¹(3/4)."""
MEDIAN_OF_SPACINGS: Final = log(2)
"""The median of exponential values over their mean: spacings of values in order are exponential."""
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
    throughout: frozenset[int] = (
        frozenset()
    )  # rows that are long in only one step, but throughout it, so not by accident
    named: F64 | float = 0.0  # the part of `value` with a known cause, ns


def median_of_others(values: F64, groups: list[I64]) -> F64:
    """Return for each row the median of the other rows of its group, column by column; NaN where it has no peer.

    `groups` are disjoint sets of rows. Unknown values (NaN) are left out. The result has the shape of `values`.
    """
    result = np.full(values.shape, np.nan)
    for rows in groups:
        if len(rows) > 1:
            result[rows] = _median_without_each(values[rows])
    return result


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
            result[low] = _median_without_each(values[low])
    return result


def lower_level(values: F64) -> Mask:
    """Return the rows of `values` (rows × columns, ns) on the lower of two levels of their means; all on one level.

    The levels are apart by more than the noise within them explains. Two rows show no noise between them.
    """
    off = values - median_by_column(values)
    mean = of_rows(np.nanmean, off)
    known = np.sort(mean[np.isfinite(mean)])
    if len(known) < 2:
        return np.ones(len(values), bool)
    place, columns = _split(known), np.isfinite(off).sum() / len(known)
    noise = max(_noise_of([known]) or 0.0, (_noise_of(off) or 0.0) / np.sqrt(columns))
    apart = known[place] - known[place - 1] > Z_LIMIT * noise
    return np.asarray(mean < known[place] if apart else np.ones(len(values), bool))


def _median_without_each(block: F64) -> F64:
    """Return for each entry the median of the other entries of its column, without NaN; NaN if no others exist.

    One sort serves all rows: leaving out an entry moves the later ones up by one position.
    """
    order = np.argsort(block, axis=0, kind="stable")  # NaN comes last
    ascending = np.take_along_axis(block, order, axis=0)
    place = np.empty_like(order)
    np.put_along_axis(place, order, np.arange(len(block))[:, None] + np.zeros_like(order), axis=0)
    known = ~np.isnan(block)
    others = known.sum(axis=0) - known
    found = np.zeros(block.shape)
    for middle in ((others - 1) // 2, others // 2):
        at = np.maximum(middle, 0)
        at += known & (at >= place)
        found += np.take_along_axis(ascending, np.minimum(at, len(block) - 1), axis=0)
    return np.where(others > 0, found / 2, np.nan)


def spread_of_others(levels: Sequence[float]) -> tuple[list[float], list[float]]:
    """Return (the median of the other levels, their robust standard deviation about it), for two levels or more."""
    values = np.array(levels)[:, None]
    peers, between = _median_without_each(values), np.zeros(values.shape)
    for middle in np.unique(peers):  # three values at the most
        mine = peers == middle
        between[mine] = _median_without_each(np.abs(values - middle))[mine]
    return peers[:, 0].tolist(), (MAD_TO_SIGMA * between[:, 0]).tolist()


def level_of(levels: Sequence[float]) -> tuple[float, float]:
    """Return (the median of one or more levels, their robust standard deviation about it)."""
    middle = float(np.median(levels))
    return middle, MAD_TO_SIGMA * float(np.median(np.abs(np.array(levels) - middle)))


def spread(values: F64) -> float:
    """Return the robust standard deviation of all finite entries, from their median absolute deviation; 0 if none."""
    flat = values[np.isfinite(values)]
    return float(MAD_TO_SIGMA * np.median(np.abs(flat - np.median(flat)))) if len(flat) else 0.0


def spacing_noise(values: F64, groups: list[I64]) -> float:
    """Return the standard deviation within columns of a group, or within rows, whichever is less; 0 without any.

    `values` are rows × columns in ns. Normal values in order are apart by known means, and the median of these
    spacings shows the noise, however many entries are delayed: a jump between two levels is one spacing, and is left
    out, whichever part of the rows lies above it. The error of few spacings is added.
    """
    peers = [column for rows in groups if len(rows) > 1 for column in values[rows].T]
    known = [noise for lines in (peers, values) if (noise := _noise_of(lines)) is not None]
    return min(known, default=0.0)


def _noise_of(lines: Iterable[F64]) -> float | None:
    """The noise within lines, ns, each of one level, or of two that are apart by more; None where no line shows it."""
    known = [np.sort(line[np.isfinite(line)]) for line in lines]
    known = [line for line in known if len(line) > 1]
    at = [_split(line) for line in known]
    apart = np.array([line[place] - line[place - 1] for line, place in zip(known, at, strict=True)])
    whole = [_spacings(line) for line in known]
    parts = [
        np.append(_spacings(line[:place]), _spacings(line[place:]))
        for line, place in zip(known, at, strict=True)
    ]
    two = np.array([len(part) > 0 for part in parts], bool)
    while known:
        found = [part if both else one for part, one, both in zip(parts, whole, two, strict=True)]
        every = np.concatenate(found)
        doubt = 1.0 + 1.0 / (MEDIAN_OF_SPACINGS * np.sqrt(len(every)))  # one standard error of the median
        noise = float(np.median(every) / MEDIAN_OF_SPACINGS * doubt)
        kept = two & (apart > Z_LIMIT * noise)
        if (kept == two).all():
            return noise
        two = kept
    return None


def _split(ascending: F64) -> int:
    """Where two means split two values or more, in ascending order: the length of the lower part."""
    below = np.arange(1, len(ascending))
    above, sums = len(ascending) - below, np.cumsum(ascending)
    apart = (sums[-1] - sums[:-1]) / above - sums[:-1] / below
    return 1 + int(np.argmax(below * above * np.square(apart)))


def _spacings(ascending: F64) -> F64:
    """The spacings of values in order, over those of as many normal values, ns."""
    return np.diff(ascending) / _usual_spacings(len(ascending))


@cache
def _usual_spacings(count: int) -> F64:
    """The spacings of `count` normal values in order, in standard deviations (Blom's means of order statistics)."""
    return np.diff([NormalDist().inv_cdf((n + 0.625) / (count + 0.25)) for n in range(count)])


@dataclass(frozen=True)
class Levels:
    """What rows need without delays, in ns: of its own (rows × 1), and with its peers in each column (rows × columns).

    least: the least delay. edge: the largest entry of the column's usual level, without what its row needs.
    """

    row: F64
    column: F64
    least: float
    edge: F64


def levels(values: F64, groups: list[I64], floor: float) -> Levels:
    """Return the levels of `values` (rows × columns, ns): delays only add, so that the lower of two is the usual one.

    A row is compared with itself in other columns, and then with its peers in the same column, so that it does not
    matter how many of either are delayed. `floor` (ns) is the least delay.
    """
    least = least_delay(values, groups, floor)
    row = low((values - _low_of_groups(values, groups, least)[0]).T, least)[0][:, None]
    return Levels(row, *_low_of_groups(values - row, groups, least))


def least_delay(values: F64, groups: list[I64], floor: float) -> float:
    """Return the least by which entries of `values` (rows × columns, ns) are delayed, not noisy: `floor` or more."""
    return max(Z_LIMIT * spacing_noise(values, groups), floor)


def _low_of_groups(values: F64, groups: list[I64], least: float) -> tuple[F64, float, F64]:
    """(the lower level of each column of each group, `least`, its largest entry); NaN for rows without a peer."""
    found, edge = np.full(values.shape, np.nan), np.full(values.shape, np.nan)
    for rows in groups:
        if len(rows) > 1:
            found[rows], edge[rows] = low(values[rows], least)
    return found, least, edge


def low(values: F64, least: float) -> tuple[F64, F64]:
    """Return (the median of each column's entries below its first jump of `least` ns, the largest of them).

    A column without such a jump has one level. NaN without any entry.
    """
    ascending = np.sort(values, axis=0)  # NaN comes last
    jump = np.diff(ascending, axis=0) > least
    known = np.isfinite(values).sum(axis=0)
    count = np.where(jump.any(axis=0), jump.argmax(axis=0) + 1, known) if len(jump) else known
    below = np.where(np.arange(len(values))[:, None] < count, ascending, np.nan)
    return median_by_column(below), np.fmax.reduce(below, axis=0)


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
    mean = np.array([np.nanmean(d) if n else np.nan for d, n in zip(difference, columns, strict=True)])
    many = int(np.median(columns[columns > 0])) if (columns > 0).any() else 0
    if many >= 2:
        level = np.array([np.nanmedian(d) if n else np.nan for d, n in zip(chance, columns, strict=True)])
        deviation = chance - level[:, None]
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
