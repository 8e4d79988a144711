"""Messages with kernels that do not end together, joined by their order on streams, or between linked messages.

A send that went to a buffer ends before its receive is posted, or together with a receive that waited for it. On lanes
(one stream, one direction) of two ranks that carry the same messages, kernels that end together have a constant
distance in order, and no message is received before it was sent.

Messages between two streams stay in order, so the messages before and after a linked one are the counterparts of the
messages before and after its other end. A stream that serves several ranks does so in the same order in every step.
"""

from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np

from tracekit.inference.peers.directed_messages import places
from tracekit.inference.peers.open_messages import BOTH, Link, OpenKernels, with_messages
from tracekit.matching.clock import Clocks
from tracekit.matching.match import Operations
from tracekit.rank_events.coded_words import among
from tracekit.rank_events.operation_names import MESSAGES, RECEIVES, SENDS, UNDIRECTED
from tracekit.rank_events.rank_ops import RankOps
from tracekit.rank_events.step_marks import NO_STEP
from tracekit.thresholds.tables import (
    BOTH_WAYS_SHARE,
    COMMON_ENDS_LEAST,
    COMMON_ENDS_SHARE,
    LANE_ENDS_SHARE,
    LANE_RIVAL,
    MAX_LANES,
)
from tracekit.units import I32, I64


@dataclass(frozen=True)
class PairOfRanks:
    """The open kernels of two ranks that may exchange messages, on one clock, and its tolerance in ns."""

    one: OpenKernels
    two: OpenKernels
    tolerance: int


@dataclass(frozen=True)
class _Lanes:
    """A lane of each of two ranks, with the kernels that would carry the same messages."""

    ranks: tuple[int, int]
    lanes: tuple[int, int]
    score: float  # share of the messages with kernels that end together
    kernels: tuple[I64, I64]  # numbers on their ranks
    ways: I64  # of each message, as in Link

    @property
    def ends(self) -> set[tuple[int, int]]:
        """(rank, lane) of both."""
        return set(zip(self.ranks, self.lanes, strict=True))


def in_order(pairs: Sequence[PairOfRanks], taken: Collection[tuple[int, int]]) -> list[Link]:
    """Return the links between lanes of the `pairs` of ranks, without the `taken` lanes (rank, lane).

    A lane that fits two others nearly equally well stays open.
    """
    found = [lanes for pair in pairs for lanes in _of_pair(pair, taken)]
    found.sort(key=lambda f: (-f.score, f.ranks, f.lanes))
    links: list[Link] = []
    while found:
        best, rest = found[0], found[1:]
        rivals = [f for f in rest if f.ends & best.ends]
        if all(f.score <= LANE_RIVAL * best.score for f in rivals):
            each = zip(best.kernels[0].tolist(), best.kernels[1].tolist(), best.ways.tolist(), strict=True)
            links += [Link(best.ranks, (i, j), way) for i, j, way in each]
        found = [f for f in rest if not f.ends & best.ends]
    return links


def _of_pair(pair: PairOfRanks, taken: Collection[tuple[int, int]]) -> list[_Lanes]:
    """The lanes of both ranks that may carry the same messages."""
    mine, theirs = (
        [n for n in np.unique(k.lane).tolist() if (k.rank, n) not in taken] for k in (pair.one, pair.two)
    )
    if len(mine) > MAX_LANES or len(theirs) > MAX_LANES:
        return []
    found = (_matched(pair, u, v) for u in mine for v in theirs)
    return [lanes for lanes in found if lanes is not None]


def _matched(pair: PairOfRanks, u: int, v: int) -> _Lanes | None:
    """Return lane `u` of one rank beside lane `v` of the other; None if they cannot carry the same messages.

    If the kernels of messages end together, only the trace can show which end sent.
    """
    one, two = pair.one, pair.two
    i, j = np.flatnonzero(one.lane == u), np.flatnonzero(two.lane == v)
    own_way, other_way = int(one.way[i[0]]), int(two.way[j[0]])
    if BOTH in (own_way, other_way) or (own_way and own_way == other_way):
        return None
    ahead = _distance(one.end[i], two.end[j], pair.tolerance)
    if ahead is None:
        return None
    low, high = max(0, -ahead), min(len(i), len(j) - ahead)
    i, j = i[low:high], j[low + ahead : high + ahead]
    sizes = (one.nelems[i] == two.nelems[j]) | (one.nelems[i] < 0) | (two.nelems[j] < 0)
    if not sizes.all():
        return None
    known = own_way or -other_way
    together = np.abs(one.end[i] - two.end[j]) <= pair.tolerance
    sent = one.end[i] <= two.start[j] + pair.tolerance  # before the other rank asked for it
    received = two.end[j] <= one.start[i] + pair.tolerance
    score = float(together.mean())
    tried = [(way, sent if way == SENDS else received, LANE_ENDS_SHARE) for way in (SENDS, RECEIVES)]
    tried = [t for t in tried if t[0] == known] if known else [*tried, (0, sent | received, BOTH_WAYS_SHARE)]
    for way, buffered, least in tried:
        if score >= least and (together | buffered).mean() >= COMMON_ENDS_SHARE:
            ways = np.where(sent, SENDS, RECEIVES) if not way else np.full(len(i), way)
            ways = ways if known else np.where(together, 0, ways)
            return _Lanes((one.rank, two.rank), (u, v), score, (one.kernel[i], two.kernel[j]), ways)
    return None


def _distance(one: I64, two: I64, tolerance: int) -> int | None:
    """Return the shift in `two`, in places, of the kernels that end with those of `one` (ends, ns, sorted).

    None if too few end together, or at differing distances.
    """
    place = np.clip(np.searchsorted(two, one), 1, max(len(two) - 1, 1))
    nearest = np.where(one - two[place - 1] <= two[np.minimum(place, len(two) - 1)] - one, place - 1, place)
    nearest = np.minimum(nearest, len(two) - 1)
    together = np.flatnonzero(np.abs(two[nearest] - one) <= tolerance)
    if len(together) < COMMON_ENDS_LEAST:
        return None
    distances, counts = np.unique(nearest[together] - together, return_counts=True)
    most = int(np.argmax(counts))
    enough = counts[most] >= max(COMMON_ENDS_LEAST, COMMON_ENDS_SHARE * len(together))
    return int(distances[most]) if enough else None


Lane = tuple[int, int, int]
"""A rank, the rank that it exchanges messages with, and a direction: SENDS or RECEIVES."""
_OPEN: Final = -1


@dataclass(frozen=True)
class _Messages:
    """The messages of one lane in order: rows of the rank's operations, and message numbers, −1 where open."""

    rows: list[int]
    numbers: list[int]
    streams: set[int]


def filled(ops: Operations, clocks: Clocks, tolerance_ns: float) -> list[RankOps]:
    """Return the operations of all ranks, with open messages between linked ones linked in their order.

    A lane stays unchanged if a message would arrive more than `tolerance_ns` before it was sent, on the common clock.
    """
    lanes: dict[Lane, _Messages] = {}
    strays: dict[tuple[int, int, int], list[int]] = {}  # by rank, stream and direction
    for rank in ops.ranks:
        _sort(ops.per_rank[rank], lanes, strays)
    _of_the_only_other(lanes, strays)
    number = 1 + max((n for m in lanes.values() for n in m.numbers), default=_OPEN)
    learnt: dict[int, dict[int, tuple[str, int, int, int]]] = defaultdict(dict)
    for (one, two, way), sends in sorted(lanes.items()):
        receives = lanes.get((two, one, RECEIVES))
        if way != SENDS or receives is None or len(sends.streams) > 1 or len(receives.streams) > 1:
            continue
        pairs = _between(sends, receives)
        if not all(_follows(ops, clocks, (one, i), (two, j), tolerance_ns) for i, j in pairs):
            continue
        for i, j in pairs:
            learnt[one][i] = ("send", one, two, number)
            learnt[two][j] = ("recv", one, two, number)
            number += 1
    return [with_messages(ops.per_rank[rank], learnt.get(rank, {})) for rank in ops.ranks]


def _sort(rank: RankOps, lanes: dict[Lane, _Messages], strays: dict[tuple[int, int, int], list[int]]) -> None:
    """Put the messages of a rank with a known direction on `lanes`, or among `strays` without a known peer."""
    if rank.message is None or rank.stream is None or rank.way is None:
        return
    ways = np.where(among(rank.op, ("recv",)), RECEIVES, rank.way)
    ways = np.where(among(rank.op, ("send",)), SENDS, ways)
    rows = np.flatnonzero(among(rank.op, UNDIRECTED) & (ways != 0))
    linked = among(rank.op, MESSAGES) & (rank.message != _OPEN)
    peer = np.where(among(rank.op, MESSAGES), np.where(ways == SENDS, rank.dst, rank.src), _OPEN)
    for stream in np.unique(rank.stream[rows]).tolist():
        _fill_peers(peer, ways, rank.step, rows[rank.stream[rows] == stream])
    for row in rows.tolist():
        other, way, stream = int(peer[row]), int(ways[row]), int(rank.stream[row])
        if other == _OPEN:
            strays.setdefault((rank.rank, stream, way), []).append(row)
            continue
        lane = lanes.setdefault((rank.rank, other, way), _Messages([], [], set()))
        lane.rows.append(row)
        lane.numbers.append(int(rank.message[row]) if linked[row] else _OPEN)
        lane.streams.add(stream)


def _of_the_only_other(lanes: dict[Lane, _Messages], strays: dict[tuple[int, int, int], list[int]]) -> None:
    """Put strays on the lane to the one rank, among the ranks of their stream, that has more messages with theirs."""
    for (rank, stream, way), rows in sorted(strays.items()):
        served = [
            other
            for (mine, other, direction), m in lanes.items()
            if (mine, direction) == (rank, way) and m.streams == {stream}
        ]
        lacks = [o for o in served if _count(lanes, (o, rank, -way)) > _count(lanes, (rank, o, way))]
        if len(lacks) == 1:
            lane = lanes[rank, lacks[0], way]
            both = sorted([*zip(lane.rows, lane.numbers, strict=True), *((row, _OPEN) for row in rows)])
            lane.rows[:], lane.numbers[:] = [r for r, _ in both], [n for _, n in both]


def _count(lanes: dict[Lane, _Messages], lane: Lane) -> int:
    """Return the number of messages on a lane."""
    return len(lanes[lane].rows) if lane in lanes else 0


def _fill_peers(peer: I64, ways: I64, step: I32, rows: I64) -> None:
    """Fill in the peer of open messages among the `rows` of one stream.

    The peer is that of the same position of other steps, or the only one of the stream's direction.
    """
    for place in places(step, rows):
        here = np.unique(peer[place][peer[place] != _OPEN])
        if len(here) == 1 and len(np.unique(ways[place])) == 1:
            peer[place] = here[0]
    for way in (SENDS, RECEIVES):
        mine = rows[ways[rows] == way]
        known = np.unique(peer[mine][peer[mine] != _OPEN])
        if len(known) == 1:
            peer[mine] = known[0]


def _between(sends: _Messages, receives: _Messages) -> list[tuple[int, int]]:
    """Return (row of the sender, row of the receiver) of open messages that lie in order between linked ones.

    Between two linked messages there must be equally many on either side; before the first and after the last one, the
    messages next to it count.
    """
    place = {n: i for i, n in enumerate(receives.numbers) if n != _OPEN}
    anchors = [(i, place[n]) for i, n in enumerate(sends.numbers) if n in place]
    if not anchors or [j for _, j in anchors] != sorted(j for _, j in anchors):
        return []
    pairs = []
    first, last = anchors[0], anchors[-1]
    before = min(first)
    pairs += [(first[0] - k, first[1] - k) for k in range(1, before + 1)]
    behind = min(len(sends.rows) - last[0], len(receives.rows) - last[1])
    pairs += [(last[0] + k, last[1] + k) for k in range(1, behind)]
    for (i, j), (u, v) in pairwise(anchors):
        if u - i == v - j:
            pairs += [(i + k, j + k) for k in range(1, u - i)]
    return [
        (sends.rows[i], receives.rows[j])
        for i, j in pairs
        if sends.numbers[i] == _OPEN and receives.numbers[j] == _OPEN
    ]


def _follows(
    ops: Operations, clocks: Clocks, send: tuple[int, int], receive: tuple[int, int], tolerance: float
) -> bool:
    """Whether the message is not received before it was sent, nor in another step; ends are (rank, row)."""
    (one, i), (two, j) = send, receive
    steps = {int(ops.per_rank[one].step[i]), int(ops.per_rank[two].step[j])} - {NO_STEP}
    if len(steps) > 1:
        return False
    began = clocks.align(one, ops.per_rank[one].start[i : i + 1])[0]
    came = clocks.align(two, ops.per_rank[two].end[j : j + 1])[0]
    return bool(came >= began - tolerance)
