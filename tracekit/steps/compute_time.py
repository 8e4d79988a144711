"""The compute part of each rank's own time in each step; the rest are gaps, which depend on its host."""

import numpy as np

from tracekit.intervals import Intervals, covered_until, subtract
from tracekit.matching.match import Operations
from tracekit.steps.steps import Steps
from tracekit.units import F64, I64


def compute_in_steps(ops: Operations, steps: Steps) -> F64:
    """Return the own time in which each rank computes, ranks × steps as in `steps`, ns; NaN where unknown."""
    result = np.full(steps.own.shape, np.nan)
    for row, rank in enumerate(steps.ranks):
        columns = [c for c in range(len(steps.numbers)) if np.isfinite(steps.own[row, c])]
        if columns:
            computing = subtract(ops.per_rank[rank].computed, ops.progress[rank].exposed)
            result[row, columns] = inside_each(computing, windows_of(ops, steps, rank, columns))
    return result


def windows_of(ops: Operations, steps: Steps, rank: int, columns: list[int]) -> tuple[I64, I64]:
    """Return the wall time (begins, ends) of the steps in `columns` on the rank, ns."""
    where = ops.of(rank)
    labels = ops.step[where] if steps.labelled else np.zeros(where.stop - where.start, np.int32)
    ends = np.array([int(ops.end[where][labels == steps.numbers[c]].max()) for c in columns], np.int64)
    begins = ends - steps.wall[steps.row(rank), columns].astype(np.int64)
    return np.maximum(begins, ops.per_rank[rank].window[0]), ends  # nothing was recorded before the window


def idle_within(ops: Operations, rank: int, windows: Intervals) -> Intervals:
    """Return when a rank neither computes nor waits in exposed communication within disjoint `windows`, ns."""
    return subtract(subtract(windows, ops.progress[rank].exposed), ops.per_rank[rank].computed)


def inside_each(intervals: Intervals, windows: Intervals) -> tuple[float, ...]:
    """Return the length of the disjoint `intervals` inside each of the `windows`, ns."""
    inside = covered_until(intervals, windows[1]) - covered_until(intervals, windows[0])
    return tuple(float(v) for v in inside)
