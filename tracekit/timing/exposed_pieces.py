"""Assigns each moment of exposed communication to the one operation that delayed the rank; nothing counts twice."""

from dataclasses import dataclass

import numpy as np

from tracekit.matching.match import Operations
from tracekit.timing.waits import Waits
from tracekit.units import I64


@dataclass(frozen=True)
class Pieces:
    """Disjoint pieces of one rank's exposed communication, in order; times in ns."""

    start: I64
    end: I64
    row: I64  # the operation that the rank waited for, as in Operations


def exposed_pieces(ops: Operations, waits: Waits, rank: int) -> Pieces:
    """Return the pieces of `rank`, which cover all its exposed communication; KeyError for an unknown rank.

    If several operations delayed it at once, the moment belongs to the one that ended last, because compute waited for
    that one in any case; if messages ended together, to the one with the peer that came last.
    """
    where = ops.of(rank)
    end = ops.progress[rank].resumed
    since = end - ops.exposed[where]
    order = np.lexsort((-ops.start[where], waits.wait[where], end))
    order = order[since[order] < end[order]]
    later = np.minimum.accumulate(since[order][::-1])[
        ::-1
    ]  # earliest begin among this one and the ones that end later
    until = np.minimum(end[order], np.append(later[1:], np.iinfo(np.int64).max))
    kept = np.flatnonzero(since[order] < until)
    found = order[kept]
    return Pieces(since[found], until[kept], found + where.start)
