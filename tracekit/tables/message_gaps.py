"""Messages between linked ones: a kernel that both sends and receives may end with neither of its counterparts.

Where all linked messages of one stream and direction go to one stream of one other rank, messages stay in order there:
those behind or before a linked message are counterparts of those behind or before its other end.
"""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np

from tracekit.tables.clock import Clocks
from tracekit.tables.match import Operations
from tracekit.tables.open_messages import told
from tracekit.tables.operation_names import RECEIVES, SENDS
from tracekit.tables.operations import RankOps

Lane = tuple[int, int, int]
"""A rank, a stream of it, and a direction: SENDS or RECEIVES."""
_OPEN: Final = -1


@dataclass(frozen=True)
class _Messages:
    """The messages on one lane in order: rows of the rank's operations, and the number of each, −1 where it is open."""

    rows: list[int]
    numbers: list[int]


def filled(ops: Operations, clocks: Clocks, tolerance_ns: float) -> list[RankOps]:
    """The operations of all ranks, with the open messages that stand between linked ones linked in their order.

    No message is received before it was sent, up to `tolerance_ns` on the common clock; such lanes stay as they are.
    """
    lanes = {lane: m for rank in ops.ranks for lane, m in _lanes(ops.per_rank[rank]).items()}
    number = 1 + max((n for m in lanes.values() for n in m.numbers), default=_OPEN)
    learnt: dict[int, dict[int, tuple[str, int, int, int]]] = defaultdict(dict)
    for one, two in _partners(lanes):
        pairs = _between(lanes[one], lanes[two])
        if not all(_follows(ops, clocks, one[0], i, two[0], j, tolerance_ns) for i, j in pairs):
            continue
        for i, j in pairs:
            learnt[one[0]][i] = ("send", one[0], two[0], number)
            learnt[two[0]][j] = ("recv", one[0], two[0], number)
            number += 1
    return [told(ops.per_rank[rank], learnt.get(rank, {})) for rank in ops.ranks]


def _lanes(rank: RankOps) -> dict[Lane, _Messages]:
    """The lanes of a rank that hold linked and open messages; only messages whose direction is known."""
    if rank.message is None or rank.stream is None or rank.way is None:
        return {}
    kinds = np.array(rank.op, str)
    ways = np.where(kinds == "send", SENDS, np.where(kinds == "recv", RECEIVES, rank.way))
    found: dict[Lane, _Messages] = defaultdict(lambda: _Messages([], []))
    for row in np.flatnonzero(np.isin(kinds, ("send", "recv", "send_recv")) & (ways != 0)).tolist():
        lane = found[rank.rank, int(rank.stream[row]), int(ways[row])]
        lane.rows.append(row)
        lane.numbers.append(int(rank.message[row]) if kinds[row] != "send_recv" else _OPEN)
    return {lane: m for lane, m in found.items() if _OPEN in m.numbers and any(n != _OPEN for n in m.numbers)}


def _partners(lanes: Mapping[Lane, _Messages]) -> list[tuple[Lane, Lane]]:
    """(lane that sends, lane that receives) of all lanes whose linked messages are all of each other."""
    where: dict[int, set[Lane]] = defaultdict(set)
    for lane, messages in lanes.items():
        for number in messages.numbers:
            where[number].add(lane)
    met: dict[Lane, set[Lane]] = defaultdict(set)
    for lane, messages in lanes.items():
        for number in messages.numbers:
            if number != _OPEN:
                met[lane] |= where[number] - {lane} or {lane}  # itself where the other end is on no such lane
    pairs = []
    for lane, others in sorted(met.items()):
        (other,) = others if len(others) == 1 else (lane,)
        if lane[2] == SENDS and other[2] == RECEIVES and met[other] == {lane}:
            pairs.append((lane, other))
    return pairs


def _between(sends: _Messages, receives: _Messages) -> list[tuple[int, int]]:
    """(row of the sender, row of the receiver) of open messages that stand in order between linked ones.

    Between two linked messages there must be equally many on either side; before the first and behind the last one,
    those next to it count.
    """
    place = {n: i for i, n in enumerate(receives.numbers) if n != _OPEN}
    anchors = [(i, place[n]) for i, n in enumerate(sends.numbers) if n in place]
    if [j for _, j in anchors] != sorted(j for _, j in anchors):
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
    ops: Operations, clocks: Clocks, one: int, send: int, two: int, receive: int, tolerance: float
) -> bool:
    """Whether the message is not received before it was sent."""
    began = clocks.align(one, ops.per_rank[one].start[send : send + 1])[0]
    came = clocks.align(two, ops.per_rank[two].end[receive : receive + 1])[0]
    return bool(came >= began - tolerance)
