"""What each rank posts and needs in the recorded steps, in order, on the axis of its own time."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
import numpy.typing as npt

from tracekit.arrays import digest_of
from tracekit.matching.match import Operations
from tracekit.rank_events.stream_waits import WAITED
from tracekit.step_graph.own_parts import Parts, WaitingParts, cut_there
from tracekit.thresholds.slowrank import ANSWER_NS, NO_WORK_NS
from tracekit.units import F64, I64, Mask

NEED: Final = 0
"""The rank continues when an operation ends. Ends sort before begins of one moment, as streams run back to back."""
POST: Final = 1
"""The rank begins an operation."""
MARK: Final = 3
"""The rank comes to the end of what a whole step and the cut one both hold, or to the end of the whole step."""


Cuts = tuple[F64, F64]
"""Readings of own time that cut a run of steps, and the factor of each part between them."""


@dataclass(frozen=True)
class CollectiveQueue:
    """When each operation could have started, by the order of the operations on a stream."""

    ready: F64  # per operation: own time from which it could start, ns; before its recorded start where it queued
    wall: F64  # per operation: the same on the rank's clock where launches are known, else the recorded start; ns
    before: I64  # per instance: the previous one of its channel; -1 for the first
    caused: I64  # pairs of instances (two rows): the first starts no sooner than the second, of another channel, ends
    used: I64  # per operation: when compute used a message first, on the rank's clock, ns; -1 where unknown

    def digest(self, rows: I64) -> bytes:
        """Return a digest of all that `posts_and_needs` reads of the queues of `rows`."""
        return digest_of(*(column[rows] for column in (self.ready, self.wall, self.used)))


@dataclass(frozen=True)
class RankTimeline:
    """One rank in one run of steps: events in the order in which they happened; own time in ns."""

    row: int  # of the rank in Steps
    kinds: npt.NDArray[np.int8]  # POST, NEED or MARK
    readings: F64  # own time of each event
    events: npt.NDArray[np.int32]  # operation of each event
    knots: F64  # own-time readings at the begins of the run's steps, and the end of the last
    blocks: F64  # the same, each step cut into STEP_PARTS parts with equally many operations
    parts: tuple[Parts, ...]  # the same, cut at operations that peers run in the same order, the finest first
    start: float  # aligned wall time at the begin of the run
    follows: bytes = b""  # the digest of the queues from which its events follow

    @cached_property
    def gaps(self) -> F64:
        """The own time before each event as recorded, then the tail; ns."""
        return self.rescaled(self.knots, np.ones(len(self.knots) - 1))

    def rescaled(self, knots: F64, ratio: F64) -> F64:
        """Return its gaps with each part between `knots` stretched by `ratio`, ns."""
        mapped = knots[0] + np.concatenate([[0.0], np.cumsum(np.diff(knots) * ratio)])
        points = np.concatenate([[knots[0]], np.clip(self.readings, knots[0], knots[-1]), [knots[-1]]])
        return np.asarray(np.maximum(np.diff(np.interp(points, knots, mapped)), 0.0), np.float64)

    def stretched(self, ratio: F64) -> F64:
        """Return its gaps with each step stretched by `ratio`, ns; most ranks keep theirs."""
        return self.gaps if (ratio == 1.0).all() else self.rescaled(self.knots, ratio)

    def shortened(self, usual: tuple[int, F64] | WaitingParts | None, ratio: F64) -> F64:
        """Return its gaps with each step stretched by `ratio`, ns; the time comes first from the parts in `usual`.

        `usual` is the index of its `parts` with the usual time of each, ns, or parts in which it waits.
        """
        if usual is None:
            return self.stretched(ratio)
        if isinstance(usual, WaitingParts):
            return self.rescaled(*cut_there(usual, self.knots, ratio))
        parts = self.parts[usual[0]]
        return self.rescaled(parts.cuts, parts.trimmed(usual[1], ratio))

    def same_events(self, other: "RankTimeline") -> bool:
        """Whether both begin at the same time, and hold the same events in the same order."""
        same = self.start == other.start and self.row == other.row and np.array_equal(self.kinds, other.kinds)
        return same and np.array_equal(self.events, other.events)

    def scaled(self, spans: F64, factor: F64) -> Cuts:
        """Return its own time with each of `spans` (begin, end, begin, …; ns) scaled by its `factor`."""
        begin, end = self.knots[0], self.knots[-1]
        readings = np.concatenate([[begin], np.clip(spans, begin, end), [end]])
        factors = np.ones(len(readings) - 1)
        factors[1::2] = factor
        return np.maximum.accumulate(readings), factors

    def held(self, ops: Operations) -> tuple[I64, F64]:
        """Return (needed operations of `ops`, how long each held the rank up as recorded; ns).

        Of waits that overlap, each holds the rank up from the end of the one before it, as in a replay.
        """
        needs, first = self.kinds == NEED, self.events[:1]
        needed = self.events[needs].astype(np.int64)
        begin = ops.start[first] - ops.at_start[first]  # on the rank's clock, beyond its own time
        idle = np.maximum.accumulate(np.concatenate([begin, ops.end[needed] - self.readings[needs]]))
        return needed, np.diff(idle)

    def alike(self, other: Parts) -> Parts | None:
        """Return its parts that are cut at the same operations as `other`; None without such parts."""
        return next((p for p in self.parts if p.alike(other)), None)


def ratio_of(own: F64, target: F64) -> F64:
    """Return the factor by which each part of a rank's own time becomes `target`; 1 where either is unknown."""
    known = np.isfinite(own) & (own > 0) & np.isfinite(target)
    return np.asarray(np.where(known, target / np.where(known, own, 1.0), 1.0), np.float64)


def completed(lines: Sequence[RankTimeline], gaps: Sequence[F64], marks: F64, ends: F64) -> F64:
    """Return when ranks would end a step that windows cut, ns; they reach the cut at `ends`, and `marks` before.

    What the step lacks takes as long as in the whole steps, and it does not end before each rank has done its own work.
    """
    work = np.array([np.cumsum(g)[:-1][line.kinds == MARK] for line, g in zip(lines, gaps, strict=True)])
    wall, own = ((reached[:, 1::2] - reached[:, ::2]).mean(axis=1) for reached in (marks, work))
    return np.asarray(np.maximum(ends + wall, (ends + own).max()), np.float64)


def posts_and_needs(ops: Operations, queue: CollectiveQueue, rows: I64, marked: I64) -> tuple[I64, F64, I64]:
    """Return (kind, own-time reading in ns, operation) of each event of one rank's operations `rows`, in order.

    The end of each operation in `marked` is an event as well.
    """
    needed = rows[(ops.exposed[rows] > 0) | _host_late(ops, rows)]
    event = np.concatenate([rows, needed])
    kind = np.concatenate([np.full(len(rows), POST), np.full(len(needed), NEED)])
    wall = np.concatenate([ops.start[rows], ops.end[needed]]).astype(np.float64)
    reading = np.concatenate([ops.at_start[rows], ops.at_end[needed]]).astype(np.float64)
    recorded = np.lexsort((kind, wall))
    moved = np.flatnonzero(queue.ready[rows] < reading[: len(rows)])
    wall[moved] = np.interp(queue.ready[rows][moved], reading[recorded], wall[recorded])
    reading[moved] = queue.ready[rows][moved]
    wall[: len(rows)] = np.minimum(wall[: len(rows)], queue.wall[rows])
    order = np.lexsort((kind, wall))
    event, kind, reading = event[order], kind[order], reading[order]
    posted = ops.start[event].astype(np.float64)
    kept = _really_needed(kind, reading, wall[order], posted, ops.kernel[event]) | _proven(ops, event)
    kind, reading, event, wall = kind[kept], reading[kept], event[kept], wall[order][kept]
    # What a message brings is used by compute launched after it. If its rank were faster, that would wait for it.
    more = rows[queue.used[rows] >= 0]
    more = more[~np.isin(more, event[kind == NEED])]
    when = np.concatenate([queue.used[more], ops.end[marked]])
    if not len(when):
        return kind, reading, event
    at = ops.progress[int(ops.rank[rows[0]])].at(when)
    kind = np.concatenate([kind, np.full(len(more), NEED), np.full(len(marked), MARK)])
    event = np.concatenate([event, more, marked])
    order = np.argsort(np.append(wall, when), kind="stable")  # what was posted then was posted before
    return kind[order], np.concatenate([reading, at])[order], event[order]


def _host_late(ops: Operations, rows: I64) -> Mask:
    """Whether only the host delayed the work after each of one rank's `rows`: with a faster host it waits for them."""
    rank = int(ops.rank[rows[0]]) if len(rows) else None
    held = None if rank is None else ops.per_rank[rank].held
    if rank is None or held is None:
        return np.zeros(len(rows), bool)
    return np.asarray(held[rows - ops.first[rank]] > 0, bool)


def _proven(ops: Operations, event: I64) -> Mask:
    """Whether the trace proves that compute waited for the operation of each event of one rank."""
    rank = int(ops.rank[event[0]]) if len(event) else None
    waited = None if rank is None else ops.per_rank[rank].waited
    if rank is None or waited is None:
        return np.zeros(len(event), bool)
    return np.asarray(waited[event - ops.first[rank]] == WAITED, bool)


def _really_needed(kind: I64, reading: F64, wall: F64, posted: F64, kernel: I64) -> Mask:
    """Return whether each event counts: not the end of an operation while the rank was idle for another one.

    An operation delayed no rank if it ended while another one was outstanding, no work was done until that one ended,
    and nothing was posted in answer before that. As a need it would delay the rank wherever the other one comes
    sooner. `posted` is when the operation of each event was posted; all times ns, events in order. The messages of one
    `kernel` delay the rank together.
    """
    kept, needs, posts = np.ones(len(kind), bool), np.flatnonzero(kind != POST), np.flatnonzero(kind == POST)
    answers = np.append(wall[posts], np.inf)[
        np.searchsorted(posts, needs)
    ].tolist()  # the next post of each need
    soonest = np.minimum.accumulate(reading[needs][::-1])[::-1]  # of this need and those after it
    near = np.flatnonzero(soonest[1:] - reading[needs[:-1]] <= NO_WORK_NS)
    owns, moments, begins, kernels = (c[needs].tolist() for c in (reading, wall, posted, kernel))
    seen = one = -1
    resumed = asked = ended = np.inf  # times of the next need that counts, and `one` its kernel
    for at in near[::-1].tolist():
        if at + 1 != seen:
            one, resumed, asked, ended = (c[at + 1] for c in (kernels, owns, begins, moments))
        seen, moment, answer = at, moments[at], answers[at]
        idle = resumed - owns[at] <= NO_WORK_NS and asked <= moment and kernels[at] != one
        if idle and not (answer - moment <= ANSWER_NS and answer <= ended):
            kept[needs[at]] = False
            asked = min(asked, begins[at])  # the rank is idle for this one as well
        else:
            one, resumed, asked, ended = kernels[at], owns[at], begins[at], moment
    return kept
