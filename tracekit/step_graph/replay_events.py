"""The events of a step model as arrays: their dependencies, and their level in the replay."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from tracekit.step_graph.rank_timeline import NEED, POST, RankTimeline
from tracekit.units import F64, I8, I32, I64, Mask

ARRIVE: Final = 2
"""A rank comes to a need that no rank posts: an event of its own that the need then waits for."""


@dataclass(frozen=True)
class Events:
    """The events of a run, rank after rank, each rank's in order; in 32 bits, because memory holds far fewer."""

    first: I64  # by rank: its first event; behind the last rank the number of all events
    line: I32  # the rank of each event, by its place among the timelines
    kind: I8  # POST, NEED, MARK or ARRIVE
    event: I32  # its operation
    alone: Mask  # whether the operation completes by itself
    gap: I32  # its gap among the gaps of all ranks
    posts: I32  # the instance that it posts, -1 for none
    awaits: I32  # the instance that it needs, -1 for none
    after: I32  # the event of its own rank that it needs instead, -1 for none
    lasts: I32  # of needs: index of the awaited duration, as in `Levels.lasts`
    expected: I64  # by instance: how often it is posted


def events_of(timelines: Sequence[RankTimeline], instance: I64, fixed: F64, before: I64) -> Events | None:
    """Return the events, with one more before each unposted need; None if a rank needs another one's own."""
    sizes = [len(line.kinds) for line in timelines]
    line = np.repeat(np.arange(len(sizes), dtype=np.int32), sizes)
    kind = np.concatenate([t.kinds for t in timelines])
    event = np.concatenate([t.events for t in timelines])
    number, alone = instance.astype(np.int32)[event], (fixed >= 0)[event]
    at = np.arange(len(kind), dtype=np.int32)
    posts = np.where((kind == POST) & (number >= 0), number, -1)
    expected = np.bincount(posts[posts >= 0], minlength=len(before))
    posted = np.full(len(fixed), -1, np.int32)
    posted[event[(kind == POST) & alone]] = at[(kind == POST) & alone]
    mine = np.where((kind == NEED) & alone, posted[event], -1)
    if (line[mine[mine >= 0]] != line[mine >= 0]).any():
        return None
    mine = np.where(mine < at, mine, -1)
    matched = (kind == NEED) & ~alone & (number >= 0)
    awaits = np.where(matched, number, -1)
    awaits[matched] = np.where(expected[number[matched]] > 0, number[matched], -1)
    lasts = np.where(number < 0, len(before) - 1, number)  # unmatched operations take the last
    lasts[alone] = np.where(mine >= 0, len(before) + event, len(before) + len(fixed))[alone]
    del number, posted  # memory is scarcest here
    bare = (kind == NEED) & (mine < 0) & (awaits < 0)
    place = np.cumsum(1 + bare, dtype=np.int32) - 1
    old = np.repeat(at, 1 + bare)
    extra = np.arange(len(old), dtype=np.int32) < place[old]
    first = np.append(0, place + 1)[np.append(0, np.cumsum(sizes, dtype=np.int64))]
    after = np.where(mine >= 0, place[mine], np.where(bare, place - 1, -1))
    gap = np.where(bare[old] & ~extra, len(kind), old)
    del at, mine, place
    line, event, alone = line[old], event[old], alone[old]
    kind = np.where(extra, ARRIVE, kind[old])
    posts, lasts = posts[old], lasts[old]
    awaits = np.where(extra, -1, awaits[old])
    after = np.where(extra, -1, after[old])
    return Events(first, line, kind, event, alone, gap, posts, awaits, after, lasts, expected)


def order_is_told(events: Events, before: I64) -> bool:
    """Whether every rank that posts an instance posts the next one on its channel later, so that it begins first.

    `before` holds for each instance the one before it, -1 for none.
    """
    rows = np.flatnonzero(events.posts >= 0)
    rows = rows[np.argsort(events.posts[rows], kind="stable")]
    numbers = np.flatnonzero((events.expected > 0) & (before >= 0))
    numbers = numbers[events.expected[before[numbers]] > 0]
    if not len(numbers):
        return True
    count = events.expected[before[numbers]]
    first = (np.cumsum(events.expected) - events.expected)[before[numbers]]
    one = np.repeat(first - np.cumsum(count) + count, count) + np.arange(int(count.sum()))
    ranks = len(events.first)
    key = events.posts[rows].astype(np.int64) * ranks + events.line[rows]
    asked = np.repeat(numbers, count) * ranks + events.line[rows[one]]
    last = np.searchsorted(key, asked, side="right") - 1  # post of the later instance by the same rank
    return bool(((key[last] == asked) & (rows[last] > rows[one])).all())


def _between(first: I64, end: I64) -> I64:
    """Return all numbers from each `first` up to its `end`."""
    count = end - first
    return np.repeat(end - np.cumsum(count), count) + np.arange(int(count.sum()))


def depths_of(events: Events, before: I64, caused: I64) -> tuple[I32, I64] | None:
    """Return (level of each event, level at which each instance starts, -1 for none); None for a cycle of waits.

    `caused` holds pairs of instances (two rows): the second, on another channel, starts before the first. Then an
    instance must also start after the one `before` it on its own channel, which may be waiting too.
    """
    begun = np.append(np.zeros(len(events.expected), bool), True)  # an event that awaits nothing may go on
    left, here, end = events.expected.copy(), events.first[:-1].copy(), events.first[1:]
    pairs = _started_before(events, before, caused) if caused.size else np.zeros((2, 0), np.int64)
    np.add.at(left, pairs[1], 1)
    later = pairs[1][np.argsort(pairs[0], kind="stable")]
    first_later = np.searchsorted(np.sort(pairs[0]), np.arange(len(left) + 1))
    depth, started = np.zeros(len(events.kind), np.int32), np.full(len(left), -1)
    active, level, fresh = np.flatnonzero(here < end), 0, np.zeros(0, np.int64)
    while len(active) or len(fresh):
        behind = later[_between(first_later[fresh], first_later[fresh + 1])] if pairs.size else fresh[:0]
        moved = active[begun[events.awaits[here[active]]]]
        if not len(moved) and not len(behind):
            return (depth, started) if not len(active) else None
        depth[here[moved]] = level
        posts = events.posts[here[moved]]
        posts = np.concatenate([posts[posts >= 0], behind])
        np.subtract.at(left, posts, 1)
        fresh = np.unique(posts[left[posts] == 0])
        begun[fresh], started[fresh] = True, level
        here[moved] += 1
        active = active[here[active] < end[active]]
        level += 1
    return depth, started


def _started_before(events: Events, before: I64, caused: I64) -> I64:
    """Return pairs of instances (two rows): the first starts before the second. Arguments as in `depths_of`."""
    queued = np.flatnonzero(before >= 0)
    found = np.concatenate([np.stack([before[queued], queued]), caused[::-1]], axis=1)
    return np.asarray(found[:, (events.expected[found] > 0).all(axis=0)], np.int64)
