"""A rank's own time in parts between its operations, and how much shorter each becomes at its usual length.

Removing a pause where it happens lets the other ranks continue there; spreading the saving over the step would not.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from tracekit.matching.match import Operations
from tracekit.matching.message_order import issued_upto
from tracekit.rank_events.coded_words import Codes
from tracekit.thresholds.slowrank import MOST_STRETCHED, NO_WORK_NS, STOOD_STILL
from tracekit.units import F64, I64


@dataclass(frozen=True)
class Parts:
    """The steps of a run cut at some of a rank's operations; own-time readings, ns."""

    cuts: F64  # begins of all parts, and the end of the last
    starts: I64  # where each step begins in `cuts`
    order: Codes  # the kinds of the operations at which steps are cut, as in `Operations.calls`

    def alike(self, other: "Parts") -> bool:
        """Whether both ranks run these operations in the same order in each step, which makes parts comparable."""
        return np.array_equal(self.starts, other.starts) and np.array_equal(self.order, other.order)

    def trimmed(self, usual: F64, ratio: F64) -> F64:
        """Return the factor for each part that stretches its step by `ratio` (one entry a step).

        A shorter step first loses the time of its parts beyond `usual`, in proportion; the rest comes evenly from all
        parts.
        """
        width = np.diff(self.cuts)
        step = np.repeat(np.arange(len(self.starts)), np.diff(np.append(self.starts, len(width))))
        whole = np.bincount(step, width, len(self.starts))
        over = np.maximum(width - usual, 0.0)
        beyond = np.bincount(step, over, len(self.starts))
        less = np.maximum(whole * (1.0 - ratio), 0.0)
        share = np.minimum(less / np.where(beyond > 0, beyond, 1.0), 1.0)
        left = whole - share * beyond
        rest = whole * ratio / np.where(left > 0, left, 1.0)
        shorter = (width - share[step] * over) * rest[step] / np.where(width > 0, width, 1.0)
        return np.asarray(np.where((width > 0) & (left > 0)[step], shorter, ratio[step]), np.float64)


def parts_of(
    ops: Operations, rows: I64, numbers: Sequence[int], labels: I64, knots: F64, ready: F64
) -> tuple[Parts, ...]:
    """Return the parts of the steps `numbers` of one rank, finest first; `knots` are own-time readings of steps, ns.

    Steps are cut at the operations of the busiest channel and at all messages, or at the former only. Across other
    channels the order differs from rank to rank if one of them runs behind compute; operations that the rank waited for
    throughout keep their order, and cut the finest parts. The messages of a pipeline follow its schedule, which a
    stage's ranks share. `rows` are the rank's operations, `labels` their steps, and `ready` the own time from which
    each operation of the run could start: behind a late rank its peers' operations queue, and start later in their
    work.
    """
    turn = _turn(ops, rows)
    rows, labels = rows[turn], labels[turn]
    channel = ops.channel[rows]
    channel = np.where(ops.p2p[channel], len(ops.channels), channel)
    known, often = np.unique(channel[channel >= 0], return_counts=True)
    busiest = channel == known[np.argmax(often)] if len(known) else np.ones(len(rows), bool)
    sent = busiest | (channel == len(ops.channels))
    still = sent | ((channel >= 0) & (ops.exposed[rows] >= STOOD_STILL * (ops.end[rows] - ops.start[rows])))
    masks = [still, sent, busiest]
    return tuple(
        _parts(ops, [rows[mask & (labels == n)] for n in numbers], knots, ready)
        for mask, coarser in zip(masks, [*masks[1:], None], strict=True)
        if coarser is None or (mask != coarser).any()
    )


def _parts(ops: Operations, steps: Sequence[I64], knots: F64, ready: F64) -> Parts:
    starts = np.cumsum([0, *(len(found) + 1 for found in steps[:-1])])
    return Parts(cut(knots, [ready[found] for found in steps]), starts, ops.calls[1][np.concatenate(steps)])


def _turn(ops: Operations, rows: I64) -> I64:
    """Return the places of one rank's `rows` (in order of start) in the order in which its program issues them.

    Operations on two streams that wait for the same kernel start within nanoseconds, either of them first. Launches
    show their order. Without any, or in a graph with one for all, operations that start together count by their kind.
    """
    if not len(rows):
        return rows
    mine = ops.per_rank[int(ops.rank[rows[0]])]
    place = rows - ops.first[mine.rank]
    stream = np.full(len(rows), -1) if mine.stream is None else mine.stream[place]
    issued = issued_upto(mine.issued[place], stream)
    turn = np.argsort(issued, kind="stable")
    launched = (issued < ops.start[rows])[turn]
    in_turn = (np.diff(issued[turn]) > 0) & (launched[1:] | launched[:-1])
    together = ~in_turn & (np.diff(ops.at_start[rows[turn]]) <= NO_WORK_NS)
    tied = np.flatnonzero(np.append(together, False) | np.append(False, together))
    kind = np.zeros(len(rows), np.int64)
    kind[tied] = ops.calls[1][rows[turn[tied]]]
    return np.asarray(turn[np.lexsort((kind, np.append(0, np.cumsum(~together))))], np.int64)


def cut(knots: F64, cuts: Sequence[I64 | F64]) -> F64:
    """Return `knots` with every step also cut at its `cuts`; ns."""
    parts = [
        np.concatenate([[begin], np.clip(inside.astype(np.float64), begin, end)])
        for begin, end, inside in zip(knots[:-1], knots[1:], cuts, strict=True)
    ]
    return np.maximum.accumulate(np.concatenate([*parts, knots[-1:]]))


class WaitingParts(NamedTuple):
    """Readings of a rank's own time (ns) at which parts begin and end, disjoint and in order."""

    begins: F64
    ends: F64


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
    inside = np.zeros(len(width), bool)
    if len(begins):
        inside = (place >= 0) & (middle < ends[np.maximum(place, 0)])
    whole, waiting = (np.bincount(column, w, len(ratio)) for w in (width, width * inside))
    cut = np.maximum(whole * (1.0 - ratio), 0.0)
    share = np.minimum(cut / np.maximum(waiting, 1.0), MOST_STRETCHED)
    left = whole - share * waiting
    rest = np.where(left > 0, (whole - cut) / np.maximum(left, 1.0), 1.0)
    rest = np.where(ratio > 1.0, ratio, rest)
    return points, rest[column] * np.where(inside, 1.0 - share[column], 1.0)
