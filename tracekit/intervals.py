"""Sets of time intervals as sorted, disjoint int64 arrays: union, idle gaps, covered time.

An interval set is a pair `(starts, ends)` of equal-length int64 arrays, ns, sorted, disjoint, non-empty intervals.
"""

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from tracekit.units import I64

Intervals: TypeAlias = tuple[I64, I64]


def empty() -> Intervals:
    """Return the empty set."""
    return np.zeros(0, np.int64), np.zeros(0, np.int64)


def union(starts: I64, ends: I64) -> Intervals:
    """Return the union of intervals in any order, overlapping or not, ns; empty ones are dropped."""
    keep = ends > starts
    starts, ends = starts[keep], ends[keep]
    if not len(starts):
        return empty()
    order = np.argsort(starts, kind="stable")
    starts, ends = starts[order], ends[order]
    reach = np.maximum.accumulate(ends)
    first = np.ones(len(starts), bool)
    first[1:] = starts[1:] > reach[:-1]
    index = np.flatnonzero(first)
    last = np.append(index[1:] - 1, len(starts) - 1)
    return starts[index], reach[last]


def covered_until(intervals: Intervals, times: I64) -> I64:
    """Return the time that `intervals` cover before each of `times`, ns, in the shape of `times`; never decreasing."""
    starts, ends = intervals
    if not len(starts):
        return np.zeros(len(times), np.int64)
    total = np.concatenate([[0], np.cumsum(ends - starts)])
    index = np.searchsorted(starts, times, side="right")  # intervals begun at or before t
    done = total[index]
    inside = index > 0
    overrun = np.where(inside, np.maximum(ends[np.maximum(index - 1, 0)] - times, 0), 0)
    return np.asarray(done - overrun, np.int64)


def gap_start(intervals: Intervals, times: I64) -> I64:
    """Return the begin of the idle gap around each of `times`, ns, or the time itself where an interval covers it.

    A time at the very end of an interval is idle, and its gap begins there. The gap before the first interval has no
    begin; it is the smallest int64.
    """
    starts, ends = intervals
    if not len(starts):
        return np.full(len(times), np.iinfo(np.int64).min)
    index = np.searchsorted(starts, times, side="left")  # intervals begun strictly before t
    previous_end = np.where(index > 0, ends[np.maximum(index - 1, 0)], np.iinfo(np.int64).min)
    return np.where(previous_end > times, times, previous_end)


def subtract(intervals: Intervals, holes: Intervals) -> Intervals:
    """Return the parts of `intervals` outside `holes`."""
    if not len(intervals[0]) or not len(holes[0]):
        return intervals
    cuts = np.sort(np.concatenate([intervals[0], intervals[1], holes[0], holes[1]]))
    middle = cuts[:-1] + (cuts[1:] - cuts[:-1]) // 2
    width = cuts[1:] - cuts[:-1]
    inside = _inside(intervals, cuts[:-1], middle) & ~_inside(holes, cuts[:-1], middle) & (width > 0)
    return union(cuts[:-1][inside], cuts[1:][inside])


def intersect(intervals: Intervals, others: Intervals) -> Intervals:
    """Return the parts of `intervals` inside `others`."""
    return subtract(intervals, subtract(intervals, others))


def _inside(intervals: Intervals, begin: I64, middle: I64) -> npt.NDArray[np.bool_]:
    index = np.searchsorted(intervals[0], begin, side="right") - 1
    return (index >= 0) & (intervals[1][np.maximum(index, 0)] > middle)


def inside_each(intervals: Intervals, windows: Intervals) -> tuple[float, ...]:
    """Return the length of the disjoint `intervals` inside each of the `windows`, ns."""
    inside = covered_until(intervals, windows[1]) - covered_until(intervals, windows[0])
    return tuple(inside.astype(np.float64).tolist())
