"""The parts of a rank's work that overlap with communication that waits for peers, and work shortened only there.

Kernels are longer there. Once no rank waits any more they lose that, and kernels that ran alone keep their length.
"""

from collections.abc import Collection
from typing import NamedTuple

import numpy as np

from tracekit.intervals import union
from tracekit.thresholds.slowrank import MOST_STRETCHED
from tracekit.timing.measured import Measured
from tracekit.units import F64


class WaitingParts(NamedTuple):
    """Readings of a rank's own time (ns) at which parts begin and end, disjoint and in order."""

    begins: F64
    ends: F64


def waiting_parts(run: Measured, rows: Collection[int]) -> dict[int, WaitingParts]:
    """Return by row of Steps the parts of the rank's own time in which an operation waits for its other members."""
    ops = run.ops
    wait = np.asarray(run.waits.wait, np.int64)
    found = {}
    for row in rows:
        rank = run.steps.ranks[row]
        where = ops.of(rank)
        mine = np.flatnonzero(run.analysed[where] & (ops.instance[where] >= 0)) + where.start
        mine = mine[wait[mine] > 0]
        begin, end = union(ops.start[mine], ops.start[mine] + wait[mine])
        at = ops.progress[rank].at
        first, last = at(begin).astype(np.float64), at(end).astype(np.float64)
        found[row] = WaitingParts(first[last > first], last[last > first])
    return found


def cut_there(parts: WaitingParts, knots: F64, ratio: F64) -> tuple[F64, F64]:
    """Return (readings between which parts lie, factor of each) that shorten each interval of `knots` by `ratio`.

    The time is taken from the waiting `parts`, up to the most that communication lengthens kernels, and the rest
    evenly from all parts.
    """
    begins, ends = (np.clip(side, knots[0], knots[-1]) for side in parts)
    points = np.unique(np.concatenate([knots, begins, ends]))
    width = np.diff(points)
    middle = points[:-1] + width / 2
    column = np.clip(np.searchsorted(knots, middle, side="right") - 1, 0, len(ratio) - 1)
    place = np.searchsorted(begins, middle, side="right") - 1
    inside = (
        (place >= 0) & (middle < ends[np.maximum(place, 0)]) if len(begins) else np.zeros(len(width), bool)
    )
    whole, waiting = (np.bincount(column, w, len(ratio)) for w in (width, width * inside))
    cut = np.maximum(whole * (1.0 - ratio), 0.0)
    share = np.minimum(cut / np.maximum(waiting, 1.0), MOST_STRETCHED)
    left = whole - share * waiting
    rest = np.where(left > 0, (whole - cut) / np.maximum(left, 1.0), 1.0)
    rest = np.where(ratio > 1.0, ratio, rest)
    return points, rest[column] * np.where(inside, 1.0 - share[column], 1.0)
