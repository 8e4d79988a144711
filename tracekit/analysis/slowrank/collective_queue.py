"""When a group's collectives could have started: one after the other, and some before their recorded start.

Behind a late rank its peers' next collectives queue, and then seem to be posted when the late rank came.
"""

from dataclasses import dataclass

import numpy as np

from tracekit.analysis.slowrank.measured import Measured
from tracekit.tables.intervals import I64
from tracekit.tables.steps import F64
from tracekit.thresholds import NO_WORK_NS, QUEUED_NS


@dataclass(frozen=True)
class CollectiveQueue:
    """What the order of a group's collectives tells of when each could have started."""

    ready: F64  # per operation: own time from which it could start, ns; before its recorded start where it queued
    before: I64  # per instance: the instance that its group carries before it, -1 where there is none


def queue_of(run: Measured, *, free: bool = False) -> CollectiveQueue:
    """The queues of all groups; with `free`, a moment that is only guessed becomes the earliest one possible.

    A collective that starts when the one before it in its group ends stood in the queue. The host's launches tell from
    when it could start (tables.readiness). Where the trace has none, it was ready as far into the rank's own work as
    into the work of the member that came last to it, which nothing held up.
    """
    ops, waits = run.ops, run.waits
    rows = np.flatnonzero((ops.instance >= 0) & ~run.in_message)
    rows = rows[np.lexsort((ops.start[rows], ops.rank[rows], ops.channel[rows]))]
    this, behind = rows[1:], rows[:-1]
    same = (ops.channel[this] == ops.channel[behind]) & (ops.rank[this] == ops.rank[behind])
    same &= ops.start[this] >= ops.end[behind]
    this, behind = this[same], behind[same]
    before = np.full(len(waits.first_row), -1, np.int64)
    np.maximum.at(before, ops.instance[this], ops.instance[behind])
    ready = ops.at_start.astype(np.float64)
    stood = ops.start[this] - ops.end[behind] <= QUEUED_NS
    told = stood & np.isfinite(ops.at_ready[this])
    ready[this[told]] = np.minimum(ops.at_ready[this[told]], ready[this[told]])
    guessed = stood & ~told & (free | (waits.wait[behind] > 0))
    this, behind = this[guessed], behind[guessed]
    if free:
        ready[this] = _since_the_first(ops.at_start, this, behind)
        return CollectiveQueue(ready, before)
    begin, own = _own(run, this)
    moment = begin + own * _share_of_last(run)[ops.instance[this]]
    known = np.isfinite(moment)
    low, high = ops.at_start[behind].astype(np.float64), ready[this]
    ready[this] = np.where(known, np.clip(moment, low, high), high)
    return CollectiveQueue(ready, before)


def _since_the_first(at_start: I64, this: I64, behind: I64) -> F64:
    """Per queued operation `this` the own time at which the first of its queue began, ns; `behind` is before it."""
    earliest = at_start.astype(np.float64)
    for i, j in zip(this.tolist(), behind.tolist(), strict=True):
        earliest[i] = min(earliest[i], earliest[j])
    return np.asarray(earliest[this], np.float64)


def _own(run: Measured, rows: I64) -> tuple[F64, F64]:
    """(own-time reading at the begin of each operation's step, own time of the step), ns; NaN outside."""
    ops, steps = run.ops, run.steps
    row = {rank: i for i, rank in enumerate(steps.ranks)}
    column = {number: i for i, number in enumerate(steps.numbers)}
    begin, own = np.full(len(rows), np.nan), np.full(len(rows), np.nan)
    for i, (rank, step) in enumerate(zip(ops.rank[rows].tolist(), ops.step[rows].tolist(), strict=True)):
        if rank in row and (step in column or not steps.labelled):
            at = row[rank], column.get(step, 0)
            begin[i], own[i] = steps.begin[at], steps.own[at]
    return begin, own


def _share_of_last(run: Measured) -> F64:
    """Per instance the share (0 to 1) of its own work of the step that the member which came last had done.

    Of several that came together the least counts: a member that queued as well shows no earlier moment.
    """
    ops, waits = run.ops, run.waits
    rows = np.flatnonzero((ops.instance >= 0) & (waits.wait <= NO_WORK_NS))
    begin, own = _own(run, rows)
    share = (ops.at_start[rows] - begin) / np.where(own > 0, own, np.nan)
    least = np.full(len(waits.first_row), np.inf)
    known = np.isfinite(share)
    np.minimum.at(least, ops.instance[rows][known], share[known])
    return np.asarray(np.where(np.isfinite(least), least, np.nan), np.float64)
