"""Clock difference of two ranks that share few collectives or none, from the ends of their message kernels.

Both kernels of a message end together, so one difference of ends is more frequent than any other. Clocks
drift, so each step is searched by itself, and the differences of all steps must lie on one line.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping

import numpy as np
import numpy.typing as npt

from tracekit.inference.peers.open_messages import OpenKernels
from tracekit.thresholds.tables import (
    CLOCK_CANDIDATES,
    CLOCK_RIVAL,
    COMMON_ENDS_LEAST,
    MAX_CLOCK_RATE,
    MAX_KERNELS_COMPARED,
)
from tracekit.units import I64

Pair = tuple[int, int]
_Points = list[tuple[int, int, int]]
"""(time of the second rank, difference, ends together) of some steps, in order."""


def clock_differences(
    kernels: Mapping[int, OpenKernels], pairs: Iterable[Pair], tolerance: int
) -> dict[Pair, I64]:
    """Return by pair of ranks the ns to add to times of the second, at each of its kernels, for the clock of the first.

    Pairs without evidence are left out: too few kernels end together, or two differences would fit nearly equally well.
    All pairs between two islands of clocks differ by the same, so most of them show the others.
    """
    shifts: dict[Pair, I64 | None] = {}
    between: dict[Pair, list[Pair]] = defaultdict(list)
    for a, b in sorted(set(pairs)):
        if kernels[a].island == kernels[b].island:
            shifts[a, b] = clock_difference(kernels[a], kernels[b], tolerance)
        else:
            between[kernels[a].island, kernels[b].island].append((a, b))
    for several in between.values():
        own_points = [_points(kernels[a], kernels[b], tolerance, None) for a, b in several]
        usual = _usual(own_points, tolerance)
        for (a, b), own in zip(several, own_points, strict=True):
            points = own if not usual or _agrees(own, usual, tolerance) else usual
            shifts[a, b] = _at(kernels[b], points) if points else None
    return {p: shift for p, shift in sorted(shifts.items()) if shift is not None}


def _usual(every: list[_Points], tolerance: int) -> _Points:
    """Return the points of all pairs on the one pair's line that most ends agree with; empty if no line has most."""
    points = sorted(p for own in every for p in own)
    counts = np.array([count for _, _, count in points], np.int64)
    best, most = np.zeros(len(points), bool), 0
    for line in filter(None, every):
        near = _near(points, line, tolerance)
        if counts[near].sum() > most:
            best, most = near, int(counts[near].sum())
    return [points[i] for i in np.flatnonzero(best)] if 2 * most > counts.sum() else []


def _near(points: _Points, line: _Points, tolerance: int) -> npt.NDArray[np.bool_]:
    """Return whether each of the `points` lies on a `line`: the further from its evidence, the less exactly."""
    when, difference, _ = np.array(points, np.float64).T
    at, differences, _ = np.array(line, np.float64).T
    right = np.searchsorted(at, when).clip(1, max(len(at) - 1, 1))
    gap = np.minimum(np.abs(at[right - 1] - when), np.abs(at[np.minimum(right, len(at) - 1)] - when))
    return np.asarray(
        np.abs(difference - np.interp(when, at, differences)) <= tolerance + MAX_CLOCK_RATE * gap, bool
    )


def _agrees(points: _Points, line: _Points, tolerance: int) -> bool:
    """Whether most of a pair's `points` lie on a `line`."""
    return bool(points) and 2 * int(_near(points, line, tolerance).sum()) > len(points)


def _at(two: OpenKernels, points: _Points) -> I64:
    """Return the difference at each kernel of `two`, ns."""
    when, difference = np.array([(w, d) for w, d, _ in points], np.float64).T
    return np.asarray(np.rint(np.interp(two.end, when, difference)), np.int64)


def clock_difference(one: OpenKernels, two: OpenKernels, tolerance: int) -> I64 | None:
    """Return the ns to add to times of `two` at each of its kernels to have them on the clock of `one`.

    None without evidence: too few kernels end together, or two differences would fit nearly equally well. Few common
    collectives show the difference of two clocks, but not how fast they drift apart: such a drift is small.
    """
    same = np.zeros(len(two.end), np.int64)
    if one.exact == two.exact:
        return same
    most = None
    if one.island == two.island:
        span = max(int(one.end[-1]), int(two.end[-1])) - min(int(one.end[0]), int(two.end[0]))
        most = tolerance + round(MAX_CLOCK_RATE * span)
    points = _points(one, two, tolerance, most)
    if not points:
        return None if most is None else same
    return _at(two, points)


def _points(one: OpenKernels, two: OpenKernels, tolerance: int, most: int | None) -> _Points:
    """Return the points of the best difference, at most `most` ns at the step with most kernels; empty without one."""
    steps = np.intersect1d(one.step, two.step)
    sides = [(one.end[one.step == s], two.end[two.step == s]) for s in steps.tolist()]
    sides = [(a[:MAX_KERNELS_COMPARED], b[:MAX_KERNELS_COMPARED]) for a, b in sides]
    if not sides:
        return []
    largest = max(range(len(sides)), key=lambda n: (min(len(sides[n][0]), len(sides[n][1])), -n))
    tried = []
    for candidate in _densest(*sides[largest], tolerance, most):
        points = _followed(sides, largest, candidate, tolerance)
        tried.append((sum(count for _, _, count in points), candidate, points))
    tried.sort(key=lambda t: -t[0])
    if not tried or tried[0][0] < COMMON_ENDS_LEAST:
        return []
    rivals = [count for count, _, points in tried[1:] if not _joins(points, tried[0][2], tolerance)]
    return [] if rivals and rivals[0] > CLOCK_RIVAL * tried[0][0] else tried[0][2]


def _followed(sides: list[tuple[I64, I64]], largest: int, difference: int, tolerance: int) -> _Points:
    """Return the points (`_Points`) of the steps in which `difference` continues, within the largest drift."""
    begin = int(sides[largest][1][0])
    points = []
    for a, b in sides:
        room = tolerance + round(MAX_CLOCK_RATE * abs(int(b[0]) - begin))
        apart = (a[:, None] - b[None, :]).reshape(-1)
        near = np.sort(apart[np.abs(apart - difference) <= room])
        found = windows(near, tolerance)
        if len(found):
            at, count = max(found, key=lambda f: (f[1], -abs(f[0] - difference)))
            points.append((int(b[len(b) // 2]), at, count))
    return points


def _joins(points: _Points, best: _Points, tolerance: int) -> bool:
    """Whether most `points` coincide with those of the `best` difference, so that both describe one clock."""
    at = {when: difference for when, difference, _ in best}
    same = [abs(at[when] - difference) <= tolerance for when, difference, _ in points if when in at]
    return 2 * sum(same) > len(points)


def _densest(a: I64, b: I64, tolerance: int, most: int | None) -> list[int]:
    """Return the differences (ns) at which most ends of `a` and `b` coincide, best first and well separated.

    All are at most `most` from 0, if given.
    """
    apart = np.sort((a[:, None] - b[None, :]).reshape(-1))
    apart = apart if most is None else apart[np.abs(apart) <= most]
    ranked = sorted(windows(apart, tolerance), key=lambda w: (-w[1], w[0]))
    chosen: list[int] = []
    for at, _ in ranked:
        if all(abs(at - other) > 2 * tolerance for other in chosen):
            chosen.append(at)
        if len(chosen) == CLOCK_CANDIDATES:
            break
    return chosen


def windows(values: I64, width: int) -> list[tuple[int, int]]:
    """Return (median, count) of the sorted `values` within `width` after each of them."""
    until = np.searchsorted(values, values + width, side="right")
    return [(int(values[(n + u) // 2]), int(u - n)) for n, u in enumerate(until.tolist())]
