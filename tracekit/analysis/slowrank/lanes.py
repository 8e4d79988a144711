"""Recorded steps as lanes: what each rank posts and needs, in order, on the axis of its own time."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tracekit.tables.clock import Clocks
from tracekit.tables.intervals import I64
from tracekit.tables.match import Operations
from tracekit.tables.steps import F64, Steps
from tracekit.tables.waits import Waits

NEED, POST = 0, 1  # at one moment what ends goes before what begins: streams run back to back
BLOCKS = 8
"""Parts of a step in which peers are compared where work moves between ranks within the step."""

_NO_WORK_NS = 1000.0
"""Own time within which nothing was done: clocks of traces tick in microseconds."""

_ANSWER_NS = 50_000
"""What is posted within this time after an operation ended may have waited for it."""

_QUEUED_NS = 20_000
"""A collective that starts within this time after the one before it in its group stood in the queue behind it."""


@dataclass(frozen=True)
class Queue:
    """What a group's collectives, carried one after the other, say of when each could have started."""

    ready: (
        F64  # per operation: own time from which it could start; where it queued, before its recorded start
    )
    before: I64  # per instance: the instance its group carries before it, -1 where there is none


def queue_of(ops: Operations, waits: Waits, steps: Steps) -> Queue:
    """Behind a late rank, its peers' next collectives queue, and seem to be posted when the rank had come.

    They were ready earlier: as far into the peers' work as into the work of the rank that came last, whom nothing
    held up.
    """
    p2p = np.array([c.p2p for c in ops.channels] or [True])
    rows = np.flatnonzero((ops.instance >= 0) & ~p2p[np.maximum(ops.channel, 0)])
    rows = rows[np.lexsort((ops.start[rows], ops.rank[rows], ops.channel[rows]))]
    this, behind = rows[1:], rows[:-1]
    same = (ops.channel[this] == ops.channel[behind]) & (ops.rank[this] == ops.rank[behind])
    same &= ops.start[this] >= ops.end[behind]
    this, behind = this[same], behind[same]
    before = np.full(len(waits.first_row), -1, np.int64)
    np.maximum.at(before, ops.instance[this], ops.instance[behind])
    ready = ops.at_start.astype(np.float64)
    stood = (ops.start[this] - ops.end[behind] <= _QUEUED_NS) & (waits.wait[behind] > 0)
    this, behind = this[stood], behind[stood]
    begin, own = _own(ops, steps, this)
    moment = begin + own * _share_of_last(ops, waits, steps)[ops.instance[this]]
    known = np.isfinite(moment)
    low, high = ops.at_start[behind].astype(np.float64), ready[this]
    ready[this] = np.where(known, np.clip(moment, low, high), high)
    return Queue(ready, before)


def _own(ops: Operations, steps: Steps, rows: I64) -> tuple[F64, F64]:
    """Own-time reading at the begin of each operation's step, and the step's own time; NaN outside."""
    row = {rank: i for i, rank in enumerate(steps.ranks)}
    column = {number: i for i, number in enumerate(steps.numbers)}
    begin, own = np.full(len(rows), np.nan), np.full(len(rows), np.nan)
    for i, (rank, step) in enumerate(zip(ops.rank[rows].tolist(), ops.step[rows].tolist(), strict=True)):
        if rank in row and (step in column or not steps.labelled):
            at = row[rank], column.get(step, 0)
            begin[i], own[i] = steps.begin[at], steps.own[at]
    return begin, own


def _share_of_last(ops: Operations, waits: Waits, steps: Steps) -> F64:
    """Per instance: how far into its own work of the step (0 to 1) the member that came last posted it.

    The least of several that came together: what queues as well shows no earlier moment.
    """
    rows = np.flatnonzero((ops.instance >= 0) & (waits.wait <= _NO_WORK_NS))
    begin, own = _own(ops, steps, rows)
    share = (ops.at_start[rows] - begin) / np.where(own > 0, own, np.nan)
    least = np.full(len(waits.first_row), np.inf)
    known = np.isfinite(share)
    np.minimum.at(least, ops.instance[rows][known], share[known])
    return np.asarray(np.where(np.isfinite(least), least, np.nan), np.float64)


@dataclass(frozen=True)
class Lane:
    """One rank in one run of steps: events in the order they happened."""

    row: int  # of the rank in Steps
    kinds: list[int]
    readings: npt.NDArray[np.float64]  # own time of each event
    events: list[int]  # operation of each event
    knots: F64  # own-time readings at the begins of the run's steps, and the end of the last
    blocks: F64  # the same, each step cut into BLOCKS parts with equally many operations
    posts: F64  # the same, each step cut at each operation of the rank's busiest channel
    starts: npt.NDArray[np.int64]  # where each step begins in `posts`
    start: float  # aligned wall time at the begin of the run


def runs_of(steps: Steps, ops: Operations) -> list[tuple[int, ...]]:
    """Columns of analysed steps that follow each other without a gap."""
    if not steps.labelled:
        return [tuple(range(len(steps.numbers)))] if steps.numbers else []
    every = sorted({int(n) for n in np.unique(ops.step)})
    whole = np.isfinite(steps.own)
    runs: list[list[int]] = []
    for column, number in enumerate(steps.numbers):
        before = steps.numbers[column - 1] if column else number
        follows = number == before + 1 and every.index(number) == every.index(before) + 1
        if column and follows and (whole[:, column] == whole[:, column - 1]).all():
            runs[-1].append(column)
        else:
            runs.append([column])
    return [tuple(r) for r in runs]


def lane_of(
    ops: Operations, steps: Steps, clocks: Clocks, queue: Queue, rank: int, columns: tuple[int, ...]
) -> Lane | None:
    """The lane of `rank` over the steps in `columns`; None where one of them is not known whole."""
    row = steps.row(rank)
    if not np.isfinite(steps.own[row, list(columns)]).all():
        return None
    where = ops.of(rank)
    labels = ops.step[where] if steps.labelled else np.zeros(where.stop - where.start, np.int32)
    rows = np.flatnonzero(np.isin(labels, [steps.numbers[c] for c in columns])) + where.start
    kind, reading, event = _events(ops, queue, rows)
    begins = steps.begin[row, list(columns)]
    knots = np.append(begins, begins[-1] + steps.own[row, columns[-1]])
    knots = np.maximum.accumulate(knots)
    start = _begin_wall(ops, clocks, rank, rows, knots[0])
    posts, every = (
        [ops.at_start[r[labels[r - where.start] == steps.numbers[c]]] for c in columns]
        for r in (_busiest(ops, rows), rows)
    )
    eighths = [p[np.linspace(0, len(p), BLOCKS, endpoint=False).astype(int)[1:]] for p in every]
    starts = np.cumsum([0, *(len(p) + 1 for p in posts[:-1])])
    return Lane(
        row,
        kind.tolist(),
        reading,
        event.tolist(),
        knots,
        _cut(knots, eighths),
        _cut(knots, posts),
        starts,
        start,
    )


def _events(ops: Operations, queue: Queue, rows: I64) -> tuple[I64, F64, I64]:
    """Kind, own-time reading and operation of each event of one rank's operations `rows`, in order."""
    needed = rows[ops.exposed[rows] > 0]
    event = np.concatenate([rows, needed])
    kind = np.concatenate([np.full(len(rows), POST), np.full(len(needed), NEED)])
    wall = np.concatenate([ops.start[rows], ops.end[needed]]).astype(np.float64)
    reading = np.concatenate([ops.at_start[rows], ops.at_end[needed]]).astype(np.float64)
    recorded = np.lexsort((kind, wall))
    moved = np.flatnonzero(queue.ready[rows] < reading[: len(rows)])
    wall[moved] = np.interp(queue.ready[rows][moved], reading[recorded], wall[recorded])
    reading[moved] = queue.ready[rows][moved]
    order = np.lexsort((kind, wall))
    event, kind, reading = event[order], kind[order], reading[order]
    kept = _really_needed(kind, reading, wall[order], ops.start[event].astype(np.float64))
    return kind[kept], reading[kept], event[kept]


def _really_needed(kind: I64, reading: F64, wall: F64, posted: F64) -> npt.NDArray[np.bool_]:
    """Which events of a lane count: not an operation that only ended while the rank stood still for another one.

    What ends while another operation is outstanding, with no work done until that one ends and nothing posted in
    answer, held nobody up; as a need of its own it would hold the rank up wherever the other one comes sooner.
    `posted` is when the operation of each event was posted; all times ns, events in order.
    """
    kept = np.ones(len(kind), bool)
    following, answer = -1, np.inf  # the next need that counts; the next post
    for i in range(len(kind) - 1, -1, -1):
        if kind[i] == POST:
            answer = wall[i]
            continue
        idle = following >= 0 and reading[following] - reading[i] <= _NO_WORK_NS
        if idle and posted[following] <= wall[i] and answer - wall[i] > _ANSWER_NS:
            kept[i] = False
        else:
            following = i
    return kept


def _busiest(ops: Operations, rows: I64) -> I64:
    """Those of one rank's operations that its busiest channel carries: in the same order on every rank.

    Across channels the order of starts differs from rank to rank, wherever one of them runs behind compute.
    """
    channel = ops.channel[rows]
    known = channel[channel >= 0]
    return rows[channel == np.argmax(np.bincount(known))] if len(known) else rows


def _cut(knots: F64, cuts: Sequence[I64]) -> F64:
    """`knots` with every step cut at its `cuts` as well."""
    parts = [
        np.concatenate([[begin], np.clip(inside.astype(np.float64), begin, end)])
        for begin, end, inside in zip(knots[:-1], knots[1:], cuts, strict=True)
    ]
    return np.maximum.accumulate(np.concatenate([*parts, knots[-1:]]))


def _begin_wall(ops: Operations, clocks: Clocks, rank: int, rows: I64, reading: float) -> float:
    """Aligned wall time at which the rank's own time read `reading`, just before its first operation `rows[0]`."""
    first = int(rows[0])
    lead = max(float(ops.at_start[first]) - reading, 0.0)
    return float(clocks.align(rank, ops.start[first : first + 1])[0]) - lead
