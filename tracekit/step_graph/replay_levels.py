"""Replays a step model by topological levels: at each level all ranks that can proceed take one event, as arrays.

Which event waits for which does not depend on times, so the levels are found once and serve every hypothesis. Where
they do depend on times (matches that contradict each other, or a queue with an order that ranks do not share) there are
none, and the ranks are replayed one after the other.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from tracekit.arrays import compact
from tracekit.step_graph.rank_timeline import MARK, NEED, RankTimeline
from tracekit.step_graph.replay_events import Events, depths_of, events_of, order_is_told
from tracekit.units import F64, I32, I64

Delay = Callable[[int, F64], None]
"""Delays the events of a level, by its number and the times at which ranks reach them, ns, which it changes."""


@dataclass(frozen=True)
class Levels:
    """Places of one run: begins of ranks, then level by level events (posts, then needs) and instances that start.

    Arrays by event and by need are in order of places.
    """

    bounds: list[tuple[int, ...]]  # by level: first event, need and instance, end; the same of `posts`
    earlier: I32  # by event: the place of the one before it on its rank
    gap: I32  # by event: its gap among the gaps of all ranks, which end with a 0
    needs: I32  # by need: its number among the events
    awaited: I32  # by need: the place that it waits for
    lasts: I32  # by need: index of the awaited duration, among transfers of instances and durations of operations
    later: F64  # by need: how long its operation ends after the last member's, ns
    posts: I32  # by instance, its posts: their places
    first_post: I32  # by instance: its first post in `posts`
    queued: I32  # by instance: the place of the one before it on its channel, -1 (the last place) for none
    queued_lasts: I32  # by instance: that one's transfer
    causes: (
        I32  # by instance: the places of the instances of other channels that it waits for, -1 without any
    )
    causes_lasts: I32  # by cause: its transfer
    first_cause: I32  # by instance: its first cause in `causes`; after the last instance the number of all
    by_rank: I32  # the needs in order of ranks
    operations: I32  # the operations of these needs
    final: I32  # by rank: the place at which it ends
    marks: I32  # by mark: its place, rank after rank

    def walls(self, begins: F64, gaps: F64, lasts: F64, delay: Delay | None = None) -> F64:
        """Return when each place is reached if ranks begin at `begins`, ns; hosts may `delay` them.

        `gaps`: own time before each event; `lasts`: transfers, then durations.
        """
        wall = np.full(self.bounds[-1][3] + 1, -np.inf)  # the last is the place of an absent predecessor
        wall[: len(begins)] = begins
        # numpy takes indices of this type alone quickly
        places = self.earlier, self.awaited, self.posts, self.queued, self.causes
        earlier, awaited, posts, queued, causes = (p.astype(np.intp) for p in places)
        late = bool(self.later.any())
        gap, wait = gaps[self.gap], lasts[self.lasts]
        queue, cause = lasts[self.queued_lasts], lasts[self.causes_lasts]
        waits = np.append(0, np.cumsum(self.causes >= 0)).tolist()  # by cause: how many before it exist
        first_cause, events, needs, instances = self.first_cause.tolist(), 0, 0, 0
        for level, (first, need, instance, end, post, last) in enumerate(self.bounds):
            now = wall.take(earlier[events : events + instance - first])
            now += gap[events : events + instance - first]
            events += instance - first
            if delay:
                delay(level, now)
            if count := instance - need:
                until = wall.take(awaited[needs : needs + count])
                until += wait[needs : needs + count]
                if late:
                    until += self.later[needs : needs + count]
                np.maximum(now[need - first :], until, out=now[need - first :])
                needs += count
            wall[first:instance] = now
            if count := end - instance:
                mine = slice(instances, instances + count)
                latest = np.maximum.reduceat(wall.take(posts[post:last]), self.first_post[mine] - post)
                np.maximum(latest, wall.take(queued[mine]) + queue[mine], out=latest)
                of, upto = first_cause[instances], first_cause[instances + count]
                if waits[of] < waits[upto]:
                    until = wall.take(causes[of:upto]) + cause[of:upto]
                    np.maximum(latest, np.maximum.reduceat(until, self.first_cause[mine] - of), out=latest)
                wall[instance:end] = latest
                instances += count
        return wall

    def stood_ns(self, wall: F64, gaps: F64, lasts: F64) -> F64:
        """Return how long each of `operations` held its rank up, ns; `wall` comes from `walls`."""
        arrived = wall[self.earlier[self.needs]] + gaps[self.gap[self.needs]]
        until = wall[self.awaited] + lasts[self.lasts] + self.later
        return np.maximum(until - arrived, 0.0)[self.by_rank]


def levels_of(
    timelines: Sequence[RankTimeline], instance: I64, fixed: F64, before: I64, later: F64, caused: I64
) -> Levels | None:
    """Return the levels of one run; arguments as in StepModel. None where the order of events depends on times."""
    if not any(len(line.kinds) for line in timelines):
        return None  # nothing to lay out
    events = events_of(timelines, instance, fixed, before)
    if events is None or not order_is_told(events, before):
        return None
    depths = depths_of(events, before, caused)
    return None if depths is None else _laid_out(timelines, events, before, later, caused, *depths)


def _laid_out(
    timelines: Sequence[RankTimeline], events: Events, before: I64, later: F64, caused: I64, depth: I32,
    started: I64,
) -> Levels:  # fmt: skip
    """Return every event and instance at its place; `depth` is the level of events, `started` that of instances."""
    ranks, count = len(timelines), len(events.kind)
    numbers = np.flatnonzero(started >= 0)
    key = np.concatenate([3 * depth + (events.kind == NEED), _small(3 * started[numbers] + 2)])
    order, place, edges = _in_order(key, ranks)
    at = np.full(len(before) + 1, -1, np.int32)
    at[numbers] = place[count:]
    of_events, of_instances = order[order < count], numbers[order[order >= count] - count]
    del key, order  # memory is scarcest here
    first, stop = events.first[:-1], events.first[1:]
    earlier, some = np.roll(place[:count], 1), np.flatnonzero(first < stop)
    earlier[first[some]] = some
    rows, first_post = _posts(events, of_instances)
    needs = _small(np.flatnonzero(events.kind[of_events] == NEED))
    mine, after = of_events[needs], events.after[of_events[needs]]
    causes, first_cause = _causes(caused, of_instances, len(before))
    return Levels(
        bounds=_bounds(edges, ranks, np.append(first_post, len(rows))),
        earlier=_small(earlier[of_events]),
        gap=_small(events.gap[of_events]),
        needs=needs,
        awaited=np.where(after >= 0, place[after], at[events.awaits[mine]]),
        lasts=_small(events.lasts[mine]),
        later=compact(np.where(events.alone[mine], 0.0, later[events.event[mine]])),
        posts=_small(place[rows]),
        first_post=_small(first_post),
        queued=_small(np.where(before >= 0, at[before], -1)[of_instances]),
        queued_lasts=_small(before[of_instances]),
        causes=_small(np.where(causes >= 0, at[causes], -1)),
        causes_lasts=_small(causes),
        first_cause=_small(first_cause),
        by_rank=_small(np.argsort(mine)),
        operations=_small(events.event[np.sort(mine)]),
        final=_small(np.where(first < stop, place[stop - 1], np.arange(ranks))),
        marks=_small(place[:count][events.kind == MARK]),
    )


def _small(numbers: I32 | I64) -> I32:
    """Return places and numbers, which memory bounds far below 2^31, in half the memory."""
    return numbers.astype(np.int32, copy=False)


def _in_order(key: I32, ranks: int) -> tuple[I32, I32, I64]:
    """Return (events and instances in order of `key`, the place of each, the first place of each key less `ranks`)."""
    order = _small(np.argsort(key, kind="stable"))
    place = np.empty(len(order), np.int32)
    place[order] = np.arange(ranks, ranks + len(order), dtype=np.int32)
    ends = np.arange(int(key.max()) // 3 * 3 + 4, dtype=key.dtype)
    return order, place, np.searchsorted(key[order], ends)


def _posts(events: Events, numbers: I64) -> tuple[I64, I64]:
    """Return (all posts, grouped by instance in the order of `numbers`; the first post of each instance)."""
    turn = np.empty(len(events.expected), np.int64)
    turn[numbers] = np.arange(len(numbers))
    rows = np.flatnonzero(events.posts >= 0)
    count = events.expected[numbers]
    return rows[np.argsort(turn[events.posts[rows]], kind="stable")], np.cumsum(count) - count


def _causes(caused: I64, numbers: I64, count: int) -> tuple[I64, I64]:
    """Return (causes of each of the instances `numbers`, -1 without any; the first cause of each, and the end)."""
    turn = np.full(count, -1)
    turn[numbers] = np.arange(len(numbers))
    known = caused[:, turn[caused[0]] >= 0]
    without = np.flatnonzero(np.bincount(turn[known[0]], minlength=len(numbers)) == 0)
    of = np.concatenate([turn[known[0]], without])
    cause = np.concatenate([known[1], np.full(len(without), -1)])[np.argsort(of, kind="stable")]
    return cause, np.append(0, np.cumsum(np.bincount(of, minlength=len(numbers))))


def _bounds(edges: I64, ranks: int, first_post: I64) -> list[tuple[int, ...]]:
    """Return `Levels.bounds`; `edges` are the first events, needs and instances of each level, one after the other."""
    starting = np.append(0, np.cumsum(edges[3::3] - edges[2::3]))
    post = first_post[starting]
    places = [(ranks + edges[i:][::3][: len(post) - 1]).tolist() for i in range(4)]
    return list(zip(*places, post[:-1].tolist(), post[1:].tolist(), strict=True))
