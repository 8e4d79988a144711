"""How far the clocks of two ranks are apart that share few collectives or none, from the ends of messages' kernels.

The kernels of messages between them end together, so one difference of ends occurs more often than any other. Clocks
drift, so each step is taken by itself, and the differences of all steps must lie on one line.
"""

import numpy as np

from tracekit.tables.intervals import I64
from tracekit.tables.open_messages import OpenKernels
from tracekit.thresholds.tables import (
    CLOCK_CANDIDATES,
    CLOCK_RIVAL,
    COMMON_ENDS_LEAST,
    MAX_CLOCK_RATE,
    MAX_KERNELS_COMPARED,
)


def clock_difference(one: OpenKernels, two: OpenKernels, tolerance: int) -> I64 | None:
    """What to add to times of `two` at each of its kernels to have them on the clock of `one`, ns.

    None where nothing tells: too few kernels end together, or two differences would fit nearly as well. Few common
    collectives tell by how much two clocks differ, and not how fast they drift apart: such a difference is small.
    """
    same = np.zeros(len(two.end), np.int64)
    if one.exact == two.exact:
        return same
    if one.island == two.island:
        span = max(int(one.end[-1]), int(two.end[-1])) - min(int(one.end[0]), int(two.end[0]))
        drifted = _difference(one, two, tolerance, tolerance + round(MAX_CLOCK_RATE * span))
        return same if drifted is None else drifted
    return _difference(one, two, tolerance, None)


def _difference(one: OpenKernels, two: OpenKernels, tolerance: int, most: int | None) -> I64 | None:
    """`clock_difference` among those of up to `most` (ns) at the step with most kernels; of any where that is None."""
    steps = np.intersect1d(one.step, two.step)
    sides = [(one.end[one.step == s], two.end[two.step == s]) for s in steps.tolist()]
    sides = [(a[:MAX_KERNELS_COMPARED], b[:MAX_KERNELS_COMPARED]) for a, b in sides]
    if not sides:
        return None
    largest = max(range(len(sides)), key=lambda n: (min(len(sides[n][0]), len(sides[n][1])), -n))
    tried = []
    for candidate in _densest(*sides[largest], tolerance, most):
        points = _followed(sides, largest, candidate, tolerance)
        tried.append((sum(count for _, _, count in points), candidate, points))
    tried.sort(key=lambda t: -t[0])
    if not tried or tried[0][0] < COMMON_ENDS_LEAST:
        return None
    rivals = [count for count, _, points in tried[1:] if not _joins(points, tried[0][2], tolerance)]
    if rivals and rivals[0] > CLOCK_RIVAL * tried[0][0]:
        return None
    when, difference = np.array([(w, d) for w, d, _ in tried[0][2]], np.float64).T
    return np.asarray(np.rint(np.interp(two.end, when, difference)), np.int64)


_Points = list[tuple[int, int, int]]
"""(time of the second rank, difference, ends together) of some steps, in order."""


def _followed(sides: list[tuple[I64, I64]], largest: int, difference: int, tolerance: int) -> _Points:
    """(time of the second rank, difference, ends together) of each step in which `difference` goes on, in order."""
    begin = int(sides[largest][1][0])
    points = []
    for a, b in sides:
        room = tolerance + round(MAX_CLOCK_RATE * abs(int(b[0]) - begin))
        apart = (a[:, None] - b[None, :]).reshape(-1)
        near = np.sort(apart[np.abs(apart - difference) <= room])
        found = _windows(near, tolerance)
        if len(found):
            at, count = max(found, key=lambda f: (f[1], -abs(f[0] - difference)))
            points.append((int(b[len(b) // 2]), at, count))
    return points


def _joins(points: _Points, best: _Points, tolerance: int) -> bool:
    """Whether most `points` lie where those of the `best` difference do: the search came to the same clock."""
    at = {when: difference for when, difference, _ in best}
    same = [abs(at[when] - difference) <= tolerance for when, difference, _ in points if when in at]
    return 2 * sum(same) > len(points)


def _densest(a: I64, b: I64, tolerance: int, most: int | None) -> list[int]:
    """The differences at which most ends of `a` and `b` are together, ns; the best first, none near another.

    None is further from 0 than `most`, where that is given.
    """
    apart = np.sort((a[:, None] - b[None, :]).reshape(-1))
    apart = apart if most is None else apart[np.abs(apart) <= most]
    windows = sorted(_windows(apart, tolerance), key=lambda w: (-w[1], w[0]))
    chosen: list[int] = []
    for at, _ in windows:
        if all(abs(at - other) > 2 * tolerance for other in chosen):
            chosen.append(at)
        if len(chosen) == CLOCK_CANDIDATES:
            break
    return chosen


def _windows(values: I64, width: int) -> list[tuple[int, int]]:
    """(median, count) of the sorted `values` within `width` behind each of them."""
    until = np.searchsorted(values, values + width, side="right")
    return [(int(values[(n + u) // 2]), int(u - n)) for n, u in enumerate(until.tolist())]
