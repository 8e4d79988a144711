"""What is noise in the own times of ranks, and what is a delay, however many ranks and steps are delayed.

Noise is the sum of many small delays, so that it is nearly normal. One long delay an entry has an exponential length:
its distribution has no typical value, and none of it is noise. The two are compared by their likelihood.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from math import inf, lgamma, log, pi
from statistics import NormalDist
from typing import Final

import numpy as np

from tracekit.steps.medians import median_by_column, of_rows
from tracekit.thresholds.slowrank import CHANCE, CLEARLY_MORE, Z_LIMIT
from tracekit.units import F64, I64, Mask

MEDIAN_OF_SPACINGS: Final = log(2)
"""The median of exponential values over their mean: spacings of values in order are exponential."""
PROVEN: Final = -log(CHANCE)
"""Logarithm of the odds from which chance no longer explains what fits better."""


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
    """The noise within lines, ns; None where no line shows it."""
    found = _lines_of_one_level(lines)
    return found and found[0]


def _lines_of_one_level(lines: Iterable[F64]) -> tuple[float, list[F64]] | None:
    """(the noise within lines, ns, the lines in order), each of one level, or cut into two that are apart by more."""
    known = [np.sort(line[np.isfinite(line)]) for line in lines]
    known = [line for line in known if len(line) > 1]
    at = [_split(line) for line in known]
    apart = np.array([line[place] - line[place - 1] for line, place in zip(known, at, strict=True)])
    two = np.array([len(line) > 2 for line in known], bool)
    while known:
        cuts = [[place] if cut else [] for place, cut in zip(at, two, strict=True)]
        parts = [part for line, cut in zip(known, cuts, strict=True) for part in np.split(line, cut)]
        every = np.concatenate([np.diff(part) / _usual_spacings(len(part)) for part in parts])
        doubt = 1.0 + 1.0 / (MEDIAN_OF_SPACINGS * np.sqrt(len(every)))  # one standard error of the median
        noise = float(np.median(every) / MEDIAN_OF_SPACINGS * doubt)
        kept = two & (apart > Z_LIMIT * noise)
        if (kept == two).all():
            return noise, parts
        two = kept
    return None


def exponential_odds(values: F64, groups: list[I64]) -> tuple[float, float]:
    """Return the logarithm of how much likelier entries vary by one long delay each than by many short ones.

    `values` are rows × columns in ns. The length of a single delay is exponential, the sum of many is normal. The first
    number compares the columns of a group, without what its rows differ by in all of them, in the group with the most:
    stages that share their data are no further evidence. The second one compares the rows. It is −∞ where rows vary by
    more than columns: then rows have in common what lengthens a column.
    """
    peers = [values[rows] for rows in groups if len(rows) > 1]
    level = [of_rows(np.nanmedian, block - median_by_column(block))[:, None] for block in peers]
    known = [_lines_of_one_level((block - its).T) for block, its in zip(peers, level, strict=True)]
    columns = [found for found in known if found is not None]
    rows = _lines_of_one_level(values)
    if rows is None or (columns and rows[0] >= CLEARLY_MORE * min(noise for noise, _ in columns)):
        rows = 0.0, []
    first = max((_odds_of_lines(lines) for _, lines in columns), default=-inf)
    return first, _odds_of_lines(rows[1]) if rows[1] else -inf


def _odds_of_lines(lines: list[F64]) -> float:
    """The logarithm of how much likelier `lines` are as exponential values than as normal ones.

    Nothing is known of the mean and the scale of each line: both are integrated over, which gives the most powerful
    test that does not depend on them (Uthoff 1970). Two values fit both alike.
    """
    odds = 0.0
    for line in lines:
        beyond = line - line.min()
        free, square = len(line) - 1, float(np.square(beyond - beyond.mean()).sum())
        if free > 1 and square > 0:
            exponential = lgamma(free) - free * log(float(beyond.sum())) - log(len(line))
            normal = lgamma(free / 2) - (free * log(pi * square) + log(len(line))) / 2 - log(2)
            odds += exponential - normal
    return odds


def _split(ascending: F64) -> int:
    """Where two means split two values or more, in ascending order: the length of the lower part."""
    below = np.arange(1, len(ascending))
    above, sums = len(ascending) - below, np.cumsum(ascending)
    apart = (sums[-1] - sums[:-1]) / above - sums[:-1] / below
    return 1 + int(np.argmax(below * above * np.square(apart)))


@cache
def _usual_spacings(count: int) -> F64:
    """The spacings of `count` normal values in order, in standard deviations (Blom's means of order statistics)."""
    return np.diff([NormalDist().inv_cdf((n + 0.625) / (count + 0.25)) for n in range(count)])


def chance_of_delays(values: F64, groups: list[I64]) -> F64:
    """Return by row the probability that single delays make some row of its group exceed its peers by as much.

    `values` are rows × columns in ns; delays count from the shortest entry of their column in the group, those of peers
    from their own shortest one as well. Sums of exponential delays with one mean have a ratio with the F distribution.
    """
    from scipy.special import fdtrc  # few inputs need this import of a third of a second

    chance = np.ones(len(values))
    for rows in (rows for rows in groups if len(rows)):  # a stage may have left no trace
        known = np.isfinite(values[rows])
        delay = values[rows] - np.where(known, values[rows], np.inf).min(axis=0)
        least = np.where(known, delay, np.inf).min(axis=1, keepdims=True)
        count, total = known.sum(axis=1), np.where(known, delay, 0.0).sum(axis=1)
        beyond, free = np.where(known, delay - least, 0.0).sum(axis=1), np.maximum(count - 1, 0)
        peers, trials = beyond.sum() - beyond, free.sum() - free
        if (trials > 0).all():
            ratio = total * trials / np.maximum(peers * np.maximum(count, 1), 1.0)
            chance[rows] = np.minimum(len(rows) * fdtrc(2 * np.maximum(count, 1), 2 * trials, ratio), 1.0)
    return chance


def by_delays(values: F64, groups: list[I64], row: int) -> bool:
    """Return whether single delays fit better than noise, and explain by chance how far `row` exceeds its peers."""
    likelier = max(exponential_odds(values, groups)) > 0
    return bool(likelier and chance_of_delays(values, groups)[row] >= CHANCE)


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
    matter how many of either are delayed. With itself alone where that proves single delays: rows have none in common,
    but some in the same column by chance. `floor` (ns) is the least delay.
    """
    odds = exponential_odds(values, groups)
    least, alone = _least_delay(values, groups, floor, max(odds)), odds[1] > PROVEN
    common = np.zeros(values.shape) if alone else _low_of_groups(values, groups, least)[0]
    row = low((values - common).T, least)[0][:, None]
    if alone:
        return Levels(row, common, least, common + least)
    return Levels(row, *_low_of_groups(values - row, groups, least))


def _least_delay(values: F64, groups: list[I64], floor: float, odds: float) -> float:
    """The least delay of an entry, ns: `floor`, and more than noise unless `odds` prove that all of it is delay."""
    return max(Z_LIMIT * spacing_noise(values, groups) if odds <= PROVEN else 0.0, floor)


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
