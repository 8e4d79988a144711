"""Replays the recorded steps with other compute times: what would the step take if this rank were typical?

Every rank is a sequence of posts and needs on its own-time axis; an operation completes when its last member has
posted it, plus its transfer. Rescaling a rank's own time and replaying gives the step time without its slowness, so
that a delay hidden by slack, or by another rank that is just as late, costs nothing. After the what-if analysis of
Lin et al., "Understanding Stragglers in Large Model Training Using What-if Analysis" (OSDI'25), on matched traces.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tracekit.analysis.slowrank.lanes import POST, Lane, lane_of, queue_of, runs_of
from tracekit.tables.clock import Clocks
from tracekit.tables.match import Operations
from tracekit.tables.steps import F64, Steps
from tracekit.tables.waits import Waits

Usual = Mapping[tuple[int, int], F64]
"""(run of steps, row) → own time of the row's peers in each part between its operations, ns."""


@dataclass(frozen=True)
class Replayer:
    """Recorded steps, ready to be replayed under any own times. All times ns."""

    runs: tuple[tuple[tuple[int, ...], tuple[Lane, ...]], ...]  # (columns of Steps, lanes)
    instance: list[int]
    fixed: list[float]  # duration of an operation that completes by itself, -1 where it is matched
    transfer: list[float]  # per instance
    expected: list[int]  # posts per instance
    before: list[
        int
    ]  # per instance: the one that its channel carries before it, -1 where it starts when posted

    def step_ns(
        self, own: F64, target: F64, transfer: Sequence[float] | None = None, usual: Usual | None = None
    ) -> float:
        """Mean step time when the own times `own` (ranks × steps) become `target`.

        What a rank in `usual` loses is taken from where it is longer than usual; elsewhere from all parts alike.
        """
        total, count = 0.0, 0
        for n, (columns, lanes) in enumerate(self.runs):
            chosen = list(columns)
            scaled = []
            for lane in lanes:
                ratio = _ratio(own[lane.row, chosen], target[lane.row, chosen])
                parts = (usual or {}).get((n, lane.row))
                if parts is None:
                    scaled.append(_rescale(lane, lane.knots, ratio))
                else:
                    scaled.append(_rescale(lane, lane.posts, _trimmed(lane, parts, ratio)))
            total += self._span(lanes, scaled, transfer or self.transfer)
            count += len(columns)
        return total / max(count, 1)

    def usual(self, peers: Mapping[int, npt.NDArray[np.int64]]) -> Usual:
        """Median work of a rank's peers before each operation; left out where they do not run as many as it."""
        found: dict[tuple[int, int], F64] = {}
        for n, (_, lanes) in enumerate(self.runs):
            by_row = {lane.row: lane for lane in lanes}
            for row, others in peers.items():
                mine = by_row.get(row)
                alike = [by_row[o] for o in others if o in by_row and o != row]
                alike = [a for a in alike if mine is not None and _runs_alike(a, mine)]
                if alike:
                    found[n, row] = np.median([np.diff(a.posts) for a in alike], axis=0)
        return found

    def levelled_ns(self, groups: Sequence[npt.NDArray[np.int64]]) -> float:
        """Mean step time if all rows of each group had, in each part of each step, their median own time."""
        total, count = 0.0, 0
        for columns, lanes in self.runs:
            scaled = []
            for lane in lanes:
                peers = next((g for g in groups if lane.row in g), np.array([lane.row]))
                widths = [np.diff(other.blocks) for other in lanes if other.row in peers]
                ratio = _ratio(np.diff(lane.blocks), np.median(widths, axis=0))
                scaled.append(_rescale(lane, lane.blocks, ratio))
            total += self._span(lanes, scaled, self.transfer)
            count += len(columns)
        return total / max(count, 1)

    def _span(self, lanes: Sequence[Lane], scaled: Sequence[list[float]], transfer: Sequence[float]) -> float:
        finish = self._run(lanes, scaled, transfer)
        return float(np.median(finish)) - float(np.median([lane.start for lane in lanes]))

    def _run(
        self, lanes: Sequence[Lane], scaled: Sequence[list[float]], transfer: Sequence[float]
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

    def _posts(self, lanes: Sequence[Lane]) -> dict[int, int]:
        posts: dict[int, int] = {}
        for lane in lanes:
            for kind, event in zip(lane.kinds, lane.events, strict=True):
                number = self.instance[event]
                if kind == POST and number >= 0:
                    posts[number] = posts.get(number, 0) + 1
        return posts

    def _advance(
        self, n: int, lane: Lane, gaps: list[float], clock: list[float], place: list[int], posted: dict[int, int],
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
            if kinds[i] == POST:
                if fixed[event] >= 0:
                    alone[event] = now + fixed[event]
                if number >= 0:
                    latest[number] = max(latest.get(number, now), now)
                    posted[number] = posted.get(number, 0) + 1
                    if posted[number] == expected.get(number, 0):
                        earlier = self.before[number]
                        if 0 < expected.get(earlier, 0) <= posted.get(earlier, 0):
                            latest[number] = max(latest[number], latest[earlier] + transfer[earlier])
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


def _runs_alike(lane: Lane, other: Lane) -> bool:
    """Whether both ranks run equally many operations in each step of a run: their parts can be compared one by one."""
    return np.array_equal(lane.starts, other.starts) and len(lane.posts) == len(other.posts)


def _ratio(own: F64, target: F64) -> F64:
    """By what each part of a rank's own time is stretched; unknown parts are left alone."""
    known = np.isfinite(own) & (own > 0) & np.isfinite(target)
    return np.asarray(np.where(known, target / np.where(known, own, 1.0), 1.0), np.float64)


def _trimmed(lane: Lane, usual: F64, ratio: F64) -> F64:
    """By what each part between operations is stretched so that its step is stretched by `ratio`.

    A shorter step loses first what its parts take beyond `usual`, in proportion; what then remains is taken from all
    parts alike. A pause cured in its place lets everybody go on there, one spread over the step would not.
    """
    width = np.diff(lane.posts)
    step = np.repeat(np.arange(len(lane.starts)), np.diff(np.append(lane.starts, len(width))))
    whole = np.bincount(step, width, len(lane.starts))
    over = np.maximum(width - usual, 0.0)
    beyond = np.bincount(step, over, len(lane.starts))
    less = np.maximum(whole * (1.0 - ratio), 0.0)
    share = np.minimum(less / np.where(beyond > 0, beyond, 1.0), 1.0)
    left = whole - share * beyond
    rest = whole * ratio / np.where(left > 0, left, 1.0)
    shorter = (width - share[step] * over) * rest[step] / np.where(width > 0, width, 1.0)
    return np.asarray(np.where((width > 0) & (left > 0)[step], shorter, ratio[step]), np.float64)


def _rescale(lane: Lane, knots: F64, ratio: F64) -> list[float]:
    """Own time between consecutive events, each part between `knots` stretched by `ratio`; the tail comes last."""
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
    queue = queue_of(ops, waits, steps)
    runs = []
    for columns in runs_of(steps, ops):
        lanes = [lane_of(ops, steps, clocks, queue, rank, columns) for rank in ops.ranks]
        kept = tuple(lane for lane in lanes if lane is not None)
        if kept:
            runs.append((columns, kept))
    return Replayer(
        tuple(runs),
        ops.instance.tolist(),
        fixed.tolist(),
        transfer.tolist(),
        waits.members.tolist(),
        queue.before.tolist(),
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
