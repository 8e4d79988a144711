"""Links for messages between linked ones: a kernel that sends and receives may end with neither of its counterparts.

Messages between two streams stay in order, so the messages before and after a linked one are the counterparts of the
messages before and after its other end. A stream that serves several ranks does so in the same order in every step.
"""

from collections import defaultdict
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np

from tracekit.inference.peers.directed_messages import places
from tracekit.inference.peers.open_messages import with_messages
from tracekit.matching.clock import Clocks
from tracekit.matching.match import Operations
from tracekit.rank_events.coded_words import among
from tracekit.rank_events.operation_names import MESSAGES, RECEIVES, SENDS, UNDIRECTED
from tracekit.rank_events.rank_ops import RankOps
from tracekit.rank_events.step_marks import NO_STEP
from tracekit.units import I32, I64

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
    peer = np.where(linked, np.where(ways == SENDS, rank.dst, rank.src), _OPEN)
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
