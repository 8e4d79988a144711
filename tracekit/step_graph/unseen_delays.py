"""Finds which ranks without a trace may cause the waits that recorded ranks show.

Recorded ranks keep their recorded times, and copies of typical peers run between them: these continue when operations
that they share with recorded ranks ended as recorded. A wait is unexplained while all members of its operation, copies
as well, have come. A replay of reversed time, from the recorded ends, gives the latest moment at which each copy may
have begun each operation. A rank explains the waits that vanish if it alone begins as late as that, whatever delays it.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from heapq import heappop, heappush
from itertools import accumulate
from typing import Final

import numpy as np

from tracekit.matching.clock import aligned
from tracekit.step_graph.rank_timeline import MARK, NEED, POST, RankTimeline
from tracekit.step_graph.replay import StepModel
from tracekit.step_graph.replay_levels import Levels, levels_of
from tracekit.step_graph.unseen_ranks import StandIns
from tracekit.thresholds.slowrank import MINOR, PEERS_SAMPLED
from tracekit.timing.buffered_sends import as_most_sends
from tracekit.timing.measured import Measured
from tracekit.units import F64, I64

_NONE: Final = -1  # no event, or no post


def explained_ns(run: Measured, copies: StandIns, likely: Collection[int]) -> dict[int, float]:
    """Return by rank without a trace how long one recorded rank waits that its delay alone explains, ns a step.

    The worst comes first; ranks that explain a minor part beside it are left out. Empty where recorded ranks have no
    common clock, or the order of operations depends on times. Halves of the ranks are delayed together until single
    ones are left, as no rank explains more than it does together with others; behind the first few, those ranks of a
    half stay that are `likely` by other evidence.
    """
    between = [_between(_Shared(run, copies, lines)) for lines in copies.lines if lines]
    known = [part for part in between if part is not None]
    if not between or len(known) < len(between) or len({run.clocks.island[r] for r in run.ops.ranks}) > 1:
        return {}

    def explained(ranks: Sequence[int]) -> float:
        return float(np.sum([part.explained(ranks) for part in known], axis=0).max()) / run.steps.count

    found: dict[int, float] = {}
    every = np.unique(copies.ranks).tolist()
    open_ = [(-explained(every), every)]
    while open_ and -open_[0][0] > MINOR * max(found.values(), default=0.0):
        value, ranks = heappop(open_)
        if len(ranks) == 1 or len(found) >= PEERS_SAMPLED:
            kept = ranks if len(ranks) == 1 else [rank for rank in ranks if rank in likely]
            found |= dict.fromkeys(kept, -value)
            continue
        for half in ranks[: len(ranks) // 2], ranks[len(ranks) // 2 :]:
            heappush(open_, (-explained(half), half))
    return found


def longer_ns(run: Measured, model: StepModel) -> F64:
    """Return by operation of `run` how much longer it held its rank up than in `model`, ns."""
    longer = np.zeros(len(run.ops.rank))
    for line in (line for _, timelines in model.runs for line in timelines):
        if (line.events < len(longer)).all():  # operations of ranks without a trace follow
            np.add.at(longer, *line.held(run.ops))
    event, stood = model.replay()
    np.subtract.at(longer, event[event < len(longer)], stood[event < len(longer)])
    return longer


def missed_ns(run: Measured, model: StepModel) -> float:
    """Return the mean error of `model` in how long complete operations hold a rank up, ns a step."""
    rows = np.flatnonzero(run.matched & run.analysed)
    return run.steps.mean(np.abs(run.by_step(rows, longer_ns(run, model)[rows])))


def left_ns(run: Measured, model: StepModel) -> float:
    """Return the most that operations along one axis held a rank up longer than in `model`, ns a step."""
    place = run.ops.rank * len(run.axis.words) + run.axis.codes
    return float(np.bincount(place, longer_ns(run, model), 1).max()) / run.steps.count


@dataclass(frozen=True)
class _Shared:
    """What recorded ranks show of operations shared with copies, in one run of steps; aligned times, ns."""

    run: Measured
    copies: StandIns
    lines: list[RankTimeline]  # of the copies

    @cached_property
    def posts(self) -> I64:
        """The operations that copies post, line after line."""
        return np.concatenate([line.events[line.kinds == POST] for line in self.lines]).astype(np.int64)

    @cached_property
    def instance(self) -> I64:
        """The instance of each of `posts`, -1 for none."""
        return self.copies.model.instance[self.posts]

    @cached_property
    def waiting(self) -> I64:
        """The recorded operations that wait for copies: no sends that may go to a buffer."""
        run, rows = self.run, self._rows
        free = run.ops.among(("send",)) & ~as_most_sends(run.ops, ~(run.buffered.eager | run.buffered.unsure))
        return rows[~free[rows] & (self.copies.model.fixed[rows] < 0)]

    @cached_property
    def _rows(self) -> I64:
        """The recorded operations that are shared."""
        number = self.copies.model.instance[: len(self.run.ops.start)]
        return np.flatnonzero((number >= 0) & np.isin(number, self.instance))

    @cached_property
    def times(self) -> tuple[F64, F64, F64]:
        """By instance when its last recorded member came, when all must have come (inf: unknown), and when it ended.

        Not finite without recorded members, and in the last entry, that of operations without an instance.
        """
        run, model = self.run, self.copies.model
        transfer = np.append(model.transfer, 0.0)
        come, end = np.full((2, len(transfer)), -np.inf)
        starts, ends = (aligned(run.ops, run.clocks, at) for at in (run.ops.start, run.ops.end))
        np.maximum.at(come, model.instance[self._rows], starts[self._rows])
        np.maximum.at(end, model.instance[self.waiting], ends[self.waiting])
        known = np.isfinite(end)
        return come, np.where(known, end - transfer, np.inf), np.where(known, end, come + transfer)

    def last_post(self, begun: F64) -> F64:
        """Return by instance when its last copy comes, if copies begin `posts` at `begun`; -inf without one."""
        found = np.full(len(self.times[0]), -np.inf)
        np.maximum.at(found, self.instance, begun)
        return found

    def waits(self, begun: F64) -> F64:
        """Return by row how long recorded ranks wait when all have come, if copies begin `posts` at `begun`; ns."""
        come, due, _ = self.times
        rest = (due - np.maximum(come, self.last_post(begun)))[self.copies.model.instance[self.waiting]]
        spent = np.clip(rest, 0.0, self.run.ops.exposed[self.waiting])
        return np.bincount(self.run.place[0][self.waiting], spent, len(self.run.steps.ranks)).astype(
            np.float64
        )


@dataclass(frozen=True)
class _Replay:
    """A replay of copies, with a mark where each post begins; ns."""

    levels: Levels
    begins: F64  # by line
    gaps: F64  # by event
    lasts: F64  # transfers, then durations
    floor: F64  # by event: the moment before which it cannot be
    post: I64  # by event: the number of the post that it marks, or -1
    marks: I64  # the events that are marks

    def begun(self, floor: F64) -> F64:
        """Return when each post begins, none before its `floor`."""
        floors = np.append(np.where(self.post >= 0, floor[self.post], self.floor), -np.inf)[self.levels.gap]
        upto = list(accumulate((b[2] - b[0] for b in self.levels.bounds), initial=0))

        def delay(level: int, now: F64) -> None:
            np.maximum(now, floors[upto[level] : upto[level + 1]], out=now)

        wall = self.levels.walls(self.begins, np.append(self.gaps, 0.0), self.lasts, delay)[self.levels.marks]
        begun, post = np.empty(len(floor)), self.post[self.marks]
        begun[post[post >= 0]] = wall[post >= 0]
        return begun


@dataclass(frozen=True)
class _Between:
    """Copies between recorded ranks, in both directions of time."""

    shared: _Shared
    forward: _Replay
    backward: _Replay

    def explained(self, ranks: Sequence[int]) -> F64:
        """Return by row how long each recorded rank waits that delays of `ranks` alone explain, ns."""
        shared = self.shared
        mine = np.isin(shared.copies.ranks[shared.posts - len(shared.run.ops.start)], ranks)
        late = self.forward.begun(np.where(mine, self.latest, -np.inf))
        return shared.waits(self.typical) - shared.waits(late)

    @cached_property
    def typical(self) -> F64:
        """When copies that nothing delays begin each post."""
        return self.forward.begun(np.full(len(self.shared.posts), -np.inf))

    @cached_property
    def latest(self) -> F64:
        """When copies may begin each post at the latest: so that no operation is later than recorded, or `typical`."""
        come, due, _ = self.shared.times
        due = np.where(np.isfinite(come), np.maximum(due, self.shared.last_post(self.typical)), np.inf)
        return -self.backward.begun(-due[self.shared.instance])


def _between(shared: _Shared) -> _Between | None:
    """Return the replays of `shared`; None where an order of operations depends on times."""
    forward, backward = (_replay(shared, forward=forward) for forward in (True, False))
    return _Between(shared, forward, backward) if forward and backward else None


def _replay(shared: _Shared, *, forward: bool) -> _Replay | None:
    """Return the replay of copies, or that of reversed time; None without an order that holds at all times."""
    model, lines, ended = shared.copies.model, shared.lines, shared.times[2]
    first = np.cumsum([0, *((line.kinds == POST).sum() for line in lines)]).tolist()
    parts = [
        _events(shared, line, number, forward=forward) for line, number in zip(lines, first, strict=False)
    ]
    gaps, floor = (np.concatenate(columns) for columns in zip(*(part[1:3] for part in parts), strict=True))
    fixed = np.where(model.instance < 0, model.fixed, -1.0)
    levels = levels_of(
        [part[0] for part in parts], model.instance, fixed, np.full(len(model.transfer), -1),
        np.zeros(len(fixed)), np.zeros((2, 0), np.int64),
    )  # fmt: skip
    last = max(float(ended[np.isfinite(ended)].max()), *(line.start + line.gaps.sum() for line in lines))
    begins = np.array([line.start if forward else -last for line in lines])
    marks = np.flatnonzero(np.concatenate([part[0].kinds for part in parts]) == MARK)
    post = np.concatenate([part[3] for part in parts])
    lasts = np.concatenate([model.transfer, fixed, [0.0]])
    return _Replay(levels, begins, gaps, lasts, floor, post, marks) if levels else None


def _events(
    shared: _Shared, line: RankTimeline, first: int, *, forward: bool
) -> tuple[RankTimeline, F64, F64, I64]:
    """Return the line with marks where its posts begin, and by event its gap, its floor and the post that it marks.

    Operations shared with recorded ranks are floors, not events. In reversed time posts and needs change places.
    `first` is the number of the line's first post.
    """
    model, (come, _, ended) = shared.copies.model, shared.times
    number, post = model.instance[line.events], line.kinds == POST
    recorded, own = np.isfinite(come)[number], (model.fixed[line.events] < 0) | (number < 0)
    need = (line.kinds == NEED) & own  # no sender waits for its buffer
    if forward:
        begin = np.where(post | (need & recorded), MARK, np.where(need, NEED, _NONE))
        kinds, turn = np.stack([begin, np.where(post & ~recorded, POST, _NONE)], axis=1), slice(None)
    else:
        begin = np.where(recorded, _NONE, np.where(post, NEED, np.where(need, POST, _NONE)))
        kinds, turn = np.stack([begin, np.where(post, MARK, _NONE)], axis=1), slice(None, None, -1)
    kinds = kinds[turn].ravel()
    kept = kinds != _NONE
    kinds, events = kinds[kept], np.repeat(line.events[turn], 2)[kept]
    gaps = np.diff(np.repeat(np.cumsum(line.gaps[turn])[:-1], 2)[kept], prepend=0.0)
    floor = np.repeat(np.where(need & recorded, ended[number], -np.inf)[turn], 2)[kept]
    marked = np.repeat(np.where(post, first + np.cumsum(post) - 1, _NONE)[turn], 2)[kept]
    return (
        replace(line, kinds=kinds.astype(np.int8), events=events),
        gaps,
        floor,
        np.where(kinds == MARK, marked, _NONE),
    )
