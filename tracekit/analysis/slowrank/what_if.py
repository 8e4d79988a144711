"""What the step would take if ranks worked otherwise, or if transfers took otherwise.

Every rank is a sequence of posts and needs on the axis of its own time; an operation completes when its last member
has posted it, plus its transfer. Running that model with rescaled own times gives the step without a rank's slowness,
so that a delay hidden by slack, or by another rank that is just as late, costs nothing. After the what-if analysis of
Lin et al., "Understanding Stragglers in Large Model Training Using What-if Analysis" (OSDI'25), on matched traces.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import numpy.typing as npt

from tracekit.analysis.slowrank.rank_timeline import POST, RankTimeline
from tracekit.analysis.slowrank.replay_levels import Levels, levels_of
from tracekit.tables.intervals import I64
from tracekit.tables.steps import F64
from tracekit.thresholds.slowrank import MAJORITY

Usual = Mapping[tuple[int, int], tuple[int, F64]]
"""(run of steps, row) → which of its parts are compared, and the own time of its peers in each of these, ns."""


@dataclass(frozen=True)
class StepModel:
    """The recorded steps as a model that can be run with any own times and transfers; all times ns."""

    own: F64  # recorded own times, ranks × steps
    runs: tuple[tuple[tuple[int, ...], tuple[RankTimeline, ...]], ...]  # (columns of Steps, timelines)
    instance: list[int]  # of each operation, -1 where it is matched with nobody
    fixed: list[float]  # duration of an operation that completes by itself, -1 where it is matched
    transfer: list[float]  # per instance; those of unknown groups stand behind the matched ones
    before: list[int]  # per instance: the one before it on its channel, -1 where it starts when posted
    later: list[float]  # by how much each operation ends after the one of the member that came last

    @cached_property
    def recorded_ns(self) -> float:
        """Mean step time of the model with the recorded own times and transfers, ns."""
        return self.step_ns(self.own)

    def step_ns(
        self, target: F64, transfer: Sequence[float] | None = None, usual: Usual | None = None
    ) -> float:
        """Mean step time if own times were `target` (ranks × steps, ns) and transfers `transfer` (by instance, ns).

        Instances behind those of `transfer` keep their own. A rank in `usual` becomes shorter where it is longer than
        usual, any other rank in all parts alike.
        """
        total, count = 0.0, 0
        lasts = np.array([*(transfer or ()), *self.transfer[len(transfer or ()) :]])
        for n, (columns, timelines) in enumerate(self.runs):
            chosen = list(columns)
            gaps = []
            for line in timelines:
                ratio = _ratio(self.own[line.row, chosen], target[line.row, chosen])
                which, typical = (usual or {}).get((n, line.row), (-1, None))
                if typical is None:
                    gaps.append(_rescale(line, line.knots, ratio))
                else:
                    parts = line.parts[which]
                    gaps.append(_rescale(line, parts.cuts, parts.trimmed(typical, ratio)))
            total += self._span(n, gaps, lasts)
            count += len(columns)
        return total / max(count, 1)

    def replay(self) -> dict[int, float]:
        """For how long each needed operation holds its rank up in the model with nothing changed, ns."""
        stood: dict[int, float] = {}
        for n, (columns, timelines) in enumerate(self.runs):
            gaps = [_rescale(line, line.knots, np.ones(len(columns))) for line in timelines]
            _, operations, held = self._run(n, gaps, self.transfer)
            stood |= zip(operations.tolist(), held.tolist(), strict=True)
        return stood

    def usual(self, peers: Mapping[int, npt.NDArray[np.int64]]) -> Usual:
        """Median work before each operation over the `peers` of each row; only peers with the same operations count.

        The finest parts count that most peers have, else the coarsest. A row without such a peer is left out.
        """
        found: dict[tuple[int, int], tuple[int, F64]] = {}
        for n, (_, timelines) in enumerate(self.runs):
            by_row = {line.row: line for line in timelines}
            for row, others in peers.items():
                if row not in by_row:
                    continue
                mates = [by_row[o] for o in others if o in by_row and o != row]
                for which, mine in enumerate(by_row[row].parts):
                    same = [m.parts[which] for m in mates if which < len(m.parts)]
                    same = [p for p in same if p.alike(mine)]
                    last = mine is by_row[row].parts[-1]
                    if len(same) > (0 if last else MAJORITY * len(mates)):
                        found[n, row] = which, np.median([np.diff(p.cuts) for p in same], axis=0)
                        break
        return found

    def levelled_ns(self, groups: Sequence[npt.NDArray[np.int64]]) -> float:
        """Mean step time if all rows of each group took their median own time in each part of each step, ns."""
        total, count = 0.0, 0
        for n, (columns, timelines) in enumerate(self.runs):
            widths = {line.row: np.diff(line.blocks) for line in timelines}
            usual = dict(widths)
            for group in reversed(groups):
                rows = [row for row in group.tolist() if row in widths]
                if rows:
                    usual |= dict.fromkeys(rows, np.median([widths[row] for row in rows], axis=0))
            gaps = [
                _rescale(line, line.blocks, _ratio(widths[line.row], usual[line.row])) for line in timelines
            ]
            total += self._span(n, gaps, self.transfer)
            count += len(columns)
        return total / max(count, 1)

    def _span(self, n: int, gaps: Sequence[F64], transfer: F64 | Sequence[float]) -> float:
        ends, _, _ = self._run(n, gaps, transfer)
        return float(np.median(ends)) - float(np.median([line.start for line in self.runs[n][1]]))

    @cached_property
    def _levels(self) -> tuple[Levels | None, ...]:
        """Of each run; None where it can be replayed in turn only."""
        instance, before = np.array(self.instance, np.int64), np.array(self.before, np.int64)
        later = np.array(self.later, np.float64)
        return tuple(levels_of(lines, instance, self._fixed, before, later) for _, lines in self.runs)

    @cached_property
    def _fixed(self) -> F64:
        return np.array(self.fixed, np.float64)

    def _run(self, n: int, gaps: Sequence[F64], transfer: F64 | Sequence[float]) -> tuple[F64, I64, F64]:
        """(when each rank of run `n` ends; needed operations, and for how long each held its rank up); ns.

        `gaps` is by timeline own time before each of its events, the tail last; `transfer` is by instance.
        """
        levels = self._levels[n]
        if levels is None:
            done = _Projection(self, self.runs[n][1], [g.tolist() for g in gaps], np.array(transfer).tolist())
            ends = np.array(done.ends())
            return ends, np.array(list(done.stood), np.int64), np.array(list(done.stood.values()))
        every = np.concatenate([*(g[:-1] for g in gaps), [0.0]])
        lasts = np.concatenate([transfer, self._fixed, [0.0]])
        wall = levels.walls(every, lasts)
        ends = wall[levels.final] + np.array([g[-1] for g in gaps])
        return ends, levels.operations, levels.stood_ns(wall, every, lasts)


@dataclass
class _Projection:
    """One pass through one run of steps, in turn: how far each rank has come, what has been posted; times ns."""

    model: StepModel
    timelines: Sequence[RankTimeline]
    gaps: Sequence[list[float]]  # by timeline: own time before each of its events; the tail comes last
    transfer: Sequence[float]  # by instance
    clock: list[float] = field(init=False)  # by timeline: wall time it has reached
    place: list[int] = field(init=False)  # by timeline: its next event
    expected: dict[int, int] = field(init=False)  # by instance: posts until it starts
    posted: dict[int, int] = field(default_factory=dict)  # by instance: posts so far
    latest: dict[int, float] = field(default_factory=dict)  # by instance: when it could start
    alone: dict[int, float] = field(default_factory=dict)  # by unmatched operation: when it ends
    waiting: dict[int, list[int]] = field(default_factory=dict)  # by instance: timelines that need it
    ready: list[int] = field(init=False)  # timelines that can go on
    stood: dict[int, float] = field(
        default_factory=dict
    )  # by operation: for how long its rank stood still for it

    def __post_init__(self) -> None:
        """Put every rank at its begin."""
        self.clock = [line.start for line in self.timelines]
        self.place = [0] * len(self.timelines)
        self.ready = list(range(len(self.timelines)))
        self.expected = {}
        for line in self.timelines:
            for kind, event in zip(line.kinds, line.events, strict=True):
                number = self.model.instance[event]
                if kind == POST and number >= 0:
                    self.expected[number] = self.expected.get(number, 0) + 1

    def ends(self) -> list[float]:
        """Wall time at which each rank ends. To be called once."""
        while True:
            while self.ready:
                self._advance(self.ready.pop())
            stuck = [n for n, line in enumerate(self.timelines) if self.place[n] < len(line.kinds)]
            if not stuck:
                return [c + g[-1] for c, g in zip(self.clock, self.gaps, strict=True)]
            n = min(stuck, key=lambda i: self.clock[i])  # contradictory matching: let the earliest go on
            self.posted[self.model.instance[self.timelines[n].events[self.place[n]]]] = _ENOUGH_POSTS
            self.ready.append(n)

    def _advance(self, n: int) -> None:
        """Moves rank `n` on until it ends or needs an operation that another rank has not posted."""
        line, gaps = self.timelines[n], self.gaps[n]
        kinds, events, fixed, instance = line.kinds, line.events, self.model.fixed, self.model.instance
        now, i = self.clock[n], self.place[n]
        while i < len(kinds):
            event = events[i]
            number = instance[event]
            now += gaps[i]
            if kinds[i] == POST:
                if fixed[event] >= 0:
                    self.alone[event] = now + fixed[event]
                if number >= 0:
                    self._post(number, now)
            elif fixed[event] >= 0:
                now = self._stand(event, now, self.alone.get(event, now))
            elif self.posted.get(number, 0) >= self.expected.get(number, 0):
                now = self._stand(event, now, self._end(number, event, now))
            else:
                self.waiting.setdefault(number, []).append(n)
                gaps[i] = 0.0  # spent on the way to this need
                break
            i += 1
        self.clock[n], self.place[n] = now, i

    def _end(self, number: int, event: int, now: float) -> float:
        """When a member's operation ends."""
        return self.latest.get(number, now) + self.transfer[number] + self.model.later[event]

    def _stand(self, event: int, now: float, until: float) -> float:
        """When a rank that needs the operation `event` at `now` goes on: at `until`, or at once."""
        self.stood[event] = max(until - now, 0.0)
        return max(now, until)

    def _post(self, number: int, now: float) -> None:
        """Counts one post of an instance at `now`; after the last post the ranks that need it go on."""
        self.latest[number] = max(self.latest.get(number, now), now)
        self.posted[number] = self.posted.get(number, 0) + 1
        if self.posted[number] != self.expected.get(number, 0):
            return
        earlier = self.model.before[number]
        if 0 < self.expected.get(earlier, 0) <= self.posted.get(earlier, 0):
            self.latest[number] = max(self.latest[number], self.latest[earlier] + self.transfer[earlier])
        self.ready.extend(self.waiting.pop(number, ()))


_ENOUGH_POSTS = 1 << 40  # more than any instance has members


def _ratio(own: F64, target: F64) -> F64:
    """The factor by which each part of a rank's own time becomes `target`; 1 where either is unknown."""
    known = np.isfinite(own) & (own > 0) & np.isfinite(target)
    return np.asarray(np.where(known, target / np.where(known, own, 1.0), 1.0), np.float64)


def _rescale(line: RankTimeline, knots: F64, ratio: F64) -> F64:
    """Own time before each event, with each part between `knots` stretched by `ratio`; the tail comes last. ns."""
    mapped = knots[0] + np.concatenate([[0.0], np.cumsum(np.diff(knots) * ratio)])
    points = np.concatenate([[knots[0]], np.clip(line.readings, knots[0], knots[-1]), [knots[-1]]])
    return np.asarray(np.maximum(np.diff(np.interp(points, knots, mapped)), 0.0), np.float64)
