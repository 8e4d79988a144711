"""Replays the recorded steps with other compute times: what would the step take if this rank were typical?

Every rank is a sequence of posts and needs on its own-time axis; an operation completes when its last member has
posted it, plus its transfer. Rescaling a rank's own time and replaying gives the step time without its slowness, so
that a delay hidden by slack, or by another rank that is just as late, costs nothing. After the what-if analysis of
Lin et al., "Understanding Stragglers in Large Model Training Using What-if Analysis" (OSDI'25), on matched traces.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tracekit.tables.clock import Clocks
from tracekit.tables.intervals import I64
from tracekit.tables.match import Operations
from tracekit.tables.steps import F64, Steps
from tracekit.tables.waits import Waits

_POST, _NEED = 0, 1


@dataclass(frozen=True)
class _Lane:
    """One rank in one run of steps: events in the order they happened."""

    row: int  # of the rank in Steps
    kinds: list[int]
    readings: npt.NDArray[np.float64]  # own time of each event
    events: list[int]  # operation of each event
    knots: npt.NDArray[
        np.float64
    ]  # own-time readings at the begins of the run's steps, and the end of the last
    start: float  # aligned wall time at the begin of the run


@dataclass(frozen=True)
class Replayer:
    """Recorded steps, ready to be replayed under any own times. All times ns."""

    runs: tuple[tuple[tuple[int, ...], tuple[_Lane, ...]], ...]  # (columns of Steps, lanes)
    instance: list[int]
    fixed: list[float]  # duration of an operation that completes by itself, -1 where it is matched
    transfer: list[float]  # per instance
    expected: list[int]  # posts per instance

    def step_ns(self, own: F64, target: F64, transfer: Sequence[float] | None = None) -> float:
        """Mean step time when the own times `own` (ranks × steps) become `target`."""
        total, count = 0.0, 0
        for columns, lanes in self.runs:
            scaled = [
                _rescale(lane, own[lane.row, list(columns)], target[lane.row, list(columns)])
                for lane in lanes
            ]
            finish = self._run(lanes, scaled, transfer or self.transfer)
            begin = float(np.median([lane.start for lane in lanes]))
            total += float(np.median(finish)) - begin
            count += len(columns)
        return total / max(count, 1)

    def _run(
        self, lanes: Sequence[_Lane], scaled: Sequence[list[float]], transfer: Sequence[float]
    ) -> list[float]:
        """Wall time at which each lane ends."""
        clock = [lane.start for lane in lanes]
        place = [0] * len(lanes)
        posted: dict[int, int] = {}
        latest: dict[int, float] = {}
        alone: dict[int, float] = {}
        waiting: dict[int, list[int]] = {}
        expected = self._posts(lanes)
        ready = list(range(len(lanes)))
        while True:
            while ready:
                n = ready.pop()
                self._advance(
                    n,
                    lanes[n],
                    scaled[n],
                    clock,
                    place,
                    posted,
                    latest,
                    alone,
                    waiting,
                    expected,
                    ready,
                    transfer,
                )
            stuck = [n for n, lane in enumerate(lanes) if place[n] < len(lane.kinds)]
            if not stuck:
                return [c + s[-1] for c, s in zip(clock, scaled, strict=True)]
            n = min(stuck, key=lambda i: clock[i])  # contradictory matching: let the earliest go on
            posted[self.instance[lanes[n].events[place[n]]]] = 1 << 40
            ready.append(n)

    def _posts(self, lanes: Sequence[_Lane]) -> dict[int, int]:
        posts: dict[int, int] = {}
        for lane in lanes:
            for kind, event in zip(lane.kinds, lane.events, strict=True):
                number = self.instance[event]
                if kind == _POST and number >= 0:
                    posts[number] = posts.get(number, 0) + 1
        return posts

    def _advance(
        self, n: int, lane: _Lane, gaps: list[float], clock: list[float], place: list[int], posted: dict[int, int],
        latest: dict[int, float], alone: dict[int, float], waiting: dict[int, list[int]], expected: dict[int, int],
        ready: list[int], transfer: Sequence[float],
    ) -> None:  # fmt: skip
        """Runs lane `n` until it ends or needs an operation that another lane has not posted."""
        kinds, events, fixed, instance = lane.kinds, lane.events, self.fixed, self.instance
        now, i = clock[n], place[n]
        fresh = True
        while i < len(kinds):
            event = events[i]
            number = instance[event]
            if fresh:
                now += gaps[i]
            if kinds[i] == _POST:
                if fixed[event] >= 0:
                    alone[event] = now + fixed[event]
                if number >= 0:
                    latest[number] = max(latest.get(number, now), now)
                    posted[number] = posted.get(number, 0) + 1
                    if posted[number] == expected.get(number, 0):
                        ready.extend(waiting.pop(number, ()))
            elif fixed[event] >= 0:
                now = max(now, alone.get(event, now))
            elif posted.get(number, 0) >= expected.get(number, 0):
                now = max(now, latest.get(number, now) + transfer[number])
            else:
                waiting.setdefault(number, []).append(n)
                break
            i += 1
            fresh = True
        else:
            clock[n], place[n] = now, i
            return
        clock[n], place[n] = now, i
        gaps[i] = 0.0  # already spent on the way to this need


def _rescale(lane: _Lane, own: npt.NDArray[np.float64], target: npt.NDArray[np.float64]) -> list[float]:
    """Own time between consecutive events, each step stretched from `own` to `target`; the tail comes last."""
    ratio = np.where(
        np.isfinite(own) & (own > 0) & np.isfinite(target), target / np.where(own > 0, own, 1), 1.0
    )
    knots = lane.knots
    mapped = knots[0] + np.concatenate([[0.0], np.cumsum(np.diff(knots) * ratio)])
    points = np.concatenate([[knots[0]], np.clip(lane.readings, knots[0], knots[-1]), [knots[-1]]])
    return [float(v) for v in np.maximum(np.diff(np.interp(points, knots, mapped)), 0)]


def prepare(ops: Operations, waits: Waits, steps: Steps, clocks: Clocks, *, eager: bool) -> Replayer:
    """Lanes of every run of consecutive analysed steps. `eager`: sends do not wait."""
    usual = _usual_transfer(ops, waits)
    duration = (ops.end - ops.start).astype(np.float64)
    fixed = np.where(ops.instance < 0, np.minimum(duration, usual), -1.0)
    transfer = waits.transfer.astype(np.float64)
    transfer[~waits.complete] = np.minimum(transfer, usual[waits.first_row])[~waits.complete]
    if eager:
        sends = ops.op == "send"
        fixed[sends] = (ops.end - ops.start)[sends]
    runs = []
    for columns in _runs(steps, ops):
        lanes = [_lane(ops, steps, clocks, rank, columns) for rank in ops.ranks]
        kept = tuple(lane for lane in lanes if lane is not None)
        if kept:
            runs.append((columns, kept))
    return Replayer(
        tuple(runs),
        ops.instance.tolist(),
        fixed.tolist(),
        transfer.tolist(),
        waits.members.tolist(),
    )


def _usual_transfer(ops: Operations, waits: Waits) -> F64:
    """Per operation the median transfer of complete instances of the same message; infinite where there is none.

    What waits for a rank that left no trace must not keep its recorded length when somebody else is cured.
    """
    token = ops.token[waits.first_row]
    level = {
        t: float(np.median(waits.transfer[waits.complete & (token == t)])) for t in set(token[waits.complete])
    }
    return np.array([level.get(t, np.inf) for t in ops.token], np.float64)


def _runs(steps: Steps, ops: Operations) -> list[tuple[int, ...]]:
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


def _lane(ops: Operations, steps: Steps, clocks: Clocks, rank: int, columns: tuple[int, ...]) -> _Lane | None:
    row = steps.row(rank)
    if not np.isfinite(steps.own[row, list(columns)]).all():
        return None
    where = ops.of(rank)
    labels = ops.step[where] if steps.labelled else np.zeros(where.stop - where.start, np.int32)
    rows = np.flatnonzero(np.isin(labels, [steps.numbers[c] for c in columns])) + where.start
    needed = rows[ops.exposed[rows] > 0]
    wall = np.concatenate([ops.start[rows], ops.end[needed]])
    kind = np.concatenate([np.full(len(rows), _POST), np.full(len(needed), _NEED)])
    order = np.lexsort((kind, wall))
    reading = np.concatenate([ops.at_start[rows], ops.at_end[needed]]).astype(np.float64)[order]
    event = np.concatenate([rows, needed])[order]
    begins = steps.begin[row, list(columns)]
    knots = np.append(begins, begins[-1] + steps.own[row, columns[-1]])
    knots = np.maximum.accumulate(knots)
    return _Lane(
        row,
        kind[order].tolist(),
        reading,
        event.tolist(),
        knots,
        _begin_wall(ops, clocks, rank, rows, knots[0]),
    )


def _begin_wall(ops: Operations, clocks: Clocks, rank: int, rows: I64, reading: float) -> float:
    """Aligned wall time at which the rank's own time read `reading`, just before its first operation `rows[0]`."""
    first = int(rows[0])
    lead = max(float(ops.at_start[first]) - reading, 0.0)
    return float(clocks.align(rank, ops.start[first : first + 1])[0]) - lead
