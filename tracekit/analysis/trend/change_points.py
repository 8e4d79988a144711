"""Finds where a series changes its level at once: cumulative sums of ranks, compared with random orders.

With R the ranks of n values, U(k) = 2 ΣR(1…k) − k(n+1) stays near zero where the order is random (Pettitt, A
non-parametric approach to the change-point problem, 1979). Over its standard deviation √(k(n−k)(n+1)/3), its largest
value shows one change, also near an end; its range shows a change that goes back. Both are tested, and count twice.
"""

from functools import lru_cache
from itertools import pairwise
from math import comb

import numpy as np
from scipy.special import ndtr
from scipy.stats import mannwhitneyu, rankdata

from tracekit.thresholds.trend import ARRANGEMENTS, LEAST_SEGMENT, LEVEL, MOST_POINTS, SEED
from tracekit.units import F64

_ASKED = 2
"""Tests of one series: for one change, and for a change that goes back."""


def cuts_of(values: F64, least: float) -> tuple[int, ...]:
    """Return the first places of new levels, if they differ from the level before by `least` or more.

    Splits where the sums are extreme, and continues within the parts while these are unlikely to be random.
    """
    cuts: set[int] = set()
    todo = [(0, len(values))]
    while todo:
        begin, end = todo.pop()
        if end - begin < 2 * LEAST_SEGMENT or chance_of_change(values[begin:end]) > LEVEL:
            continue
        found = [begin + k for k in _extremes(values[begin:end])]
        cuts.update(found)
        todo += pairwise([begin, *found, end])
    return _kept(values, sorted(cuts), least)


def likeliest_cuts(values: F64, least: float) -> tuple[int, ...]:
    """Return the places where the level changes most, by chance or not; only changes of at least `least`."""
    found = _extremes(values) if len(values) >= 2 * LEAST_SEGMENT else ()
    return tuple(_wide(values, list(found), least))


def levels(values: F64, cuts: tuple[int, ...]) -> list[float]:
    """Return the median of each segment between `cuts`."""
    return [float(np.median(part)) for part in np.split(values, list(cuts))]


def stairs(values: F64, cuts: tuple[int, ...]) -> F64:
    """Return the level at each place."""
    parts = np.split(values, list(cuts))
    return np.concatenate([np.full(len(p), np.median(p)) for p in parts])


def chance_of_change(values: F64) -> float:
    """Return the probability that values in random order change their level so clearly; 1 where all are equal."""
    if len(values) < 2 * LEAST_SEGMENT or np.ptp(values) == 0:
        return 1.0
    return min(_ASKED * min(_chances(values)), 1.0)


def points_needed(tests: int) -> int:
    """Return the number of values that prove one change in their middle, without noise, among that many tests."""
    for n in range(2 * LEAST_SEGMENT, MOST_POINTS):
        counted = max(2 / comb(n, n // 2), 1 / ARRANGEMENTS)
        largest = float(np.sqrt(3 * (n // 2) * (n - n // 2) / (n + 1)))
        if tests * _ASKED * min(counted, _bound_of_one(largest, n)) <= LEVEL:
            return n
    return MOST_POINTS


def _chances(values: F64) -> tuple[float, float]:
    """The probabilities of so large a standardised sum, and of so large a range, each alone.

    Counted over random orders; rarer ones are bounded by the sum of normal tails, and by Kuiper's formula.
    """
    n = len(values)
    sums = _sums(rankdata(values)[None, :])
    one, back = (float(held[0]) for held in _peaks(sums))
    nulls = _null(n)
    counted = [
        (1 + len(null) - int(np.searchsorted(null, held - _TIE))) / (1 + len(null))
        for null, held in zip(nulls, (one, back), strict=True)
    ]
    squared = 3 * back**2 / (n**3 + n**2)
    kuiper = float(2 * (4 * squared - 1) * np.exp(-2 * squared)) if squared > 1 else 1.0
    return min(counted[0], _bound_of_one(one, n)), min(counted[1], kuiper)


_TIE = 1e-9
"""Sums that differ by less are equal: the difference is rounding of a division."""


def _bound_of_one(largest: float, n: int) -> float:
    """The sum over all places of the normal tail beyond `largest`; the tails of ranks are lighter."""
    return float((n - 2 * LEAST_SEGMENT + 1) * 2 * ndtr(-largest))


def _sums(ranks: F64) -> F64:
    """The U at each place where a level may begin; one row a series."""
    n = ranks.shape[1]
    every = 2 * np.cumsum(ranks, axis=1) - np.arange(1, n + 1) * (n + 1)
    return np.asarray(every[:, LEAST_SEGMENT - 1 : n - LEAST_SEGMENT], np.float64)


def _scale(count: int) -> F64:
    """The standard deviation of U at each of its `count` places."""
    n = count + 2 * LEAST_SEGMENT - 1
    k = np.arange(LEAST_SEGMENT, n - LEAST_SEGMENT + 1)
    return np.sqrt(k * (n - k) * (n + 1) / 3)


def _peaks(sums: F64) -> tuple[F64, F64]:
    """(the largest standardised U of each row, the range of its U, which begins and ends at 0)."""
    one = np.abs(sums / _scale(sums.shape[1])).max(axis=1)
    return one, np.maximum(sums.max(axis=1), 0) - np.minimum(sums.min(axis=1), 0)


@lru_cache(maxsize=64)
def _null(n: int) -> tuple[F64, F64]:
    """The peaks of both kinds for random orders of n values, ascending."""
    orders = np.tile(np.arange(1, n + 1, dtype=np.float64), (ARRANGEMENTS, 1))
    one, back = _peaks(_sums(np.random.default_rng(SEED).permuted(orders, axis=1)))
    return np.sort(one), np.sort(back)


def _extremes(values: F64) -> tuple[int, ...]:
    """The likeliest places of one change or of two, by the rarer test, moved to where levels fit best."""
    sums = _sums(rankdata(values)[None, :])[0]
    one, back = _chances(values)
    if one <= back:
        found = {int(np.abs(sums / _scale(len(sums))).argmax())}
    else:
        found = {int(sums.argmax())} if sums.max() > 0 else set()
        found |= {int(sums.argmin())} if sums.min() < 0 else set()
    return tuple(_moved(values, sorted(k + LEAST_SEGMENT for k in found)))


def _moved(values: F64, cuts: list[int]) -> list[int]:
    """The cuts, each moved in turn to where the values are nearest to the levels before and after it."""
    for i, cut in enumerate(cuts):
        begin, end = [0, *cuts][i], [*cuts, len(values)][i + 1]
        places = range(begin + LEAST_SEGMENT, end - LEAST_SEGMENT + 1)
        cuts[i] = min(
            places, key=lambda k: (_missed(values[begin:end], k - begin), abs(k - cut)), default=cut
        )
    return cuts


def _missed(values: F64, cut: int) -> float:
    return float(np.abs(values - stairs(values, (cut,))).sum())


def _kept(values: F64, cuts: list[int], least: float) -> tuple[int, ...]:
    """The `cuts` with a proven change; the least proven cut is removed first."""
    cuts = _wide(values, cuts, least)
    while cuts:
        chances = [_differ(a, b) for a, b in pairwise(np.split(values, cuts))]
        worst = int(np.argmax(chances))
        if chances[worst] <= LEVEL:
            break
        cuts = _wide(values, cuts[:worst] + cuts[worst + 1 :], least)
    return tuple(_moved(values, cuts))


def _wide(values: F64, cuts: list[int], least: float) -> list[int]:
    """Return the `cuts` with levels that are long enough and differ by `least`: the smallest step is dropped first."""
    while cuts:
        short = [min(len(a), len(b)) < LEAST_SEGMENT for a, b in pairwise(np.split(values, cuts))]
        steps = np.abs(np.diff(levels(values, tuple(cuts))))
        worst = short.index(True) if any(short) else int(np.argmin(steps))
        if not any(short) and steps[worst] >= least:
            break
        cuts = cuts[:worst] + cuts[worst + 1 :]
    return cuts


def _differ(one: F64, two: F64) -> float:
    """The probability of so different an order of two levels."""
    return float(mannwhitneyu(one, two, alternative="two-sided").pvalue)
