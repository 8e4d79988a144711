"""Peers of messages that name the peer's place in a group, but not the group, as calls on Gloo do.

A group is a rank's own if every place is somebody else's, who recorded as many messages the other way in every step.
Where several groups are left, they may still agree about the peer.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from tracekit.store import Group
from tracekit.tables.operation_names import KINDS_BY_WAY, SENDS, UNDIRECTED
from tracekit.tables.operations import RankOps
from tracekit.tables.step_marks import NO_STEP
from tracekit.thresholds.tables import NEARLY_ALL_RANKS

Members = tuple[int, ...]


@dataclass(frozen=True)
class _Told:
    """Rows of a rank's messages that name a place in some group; how many each (direction, place) has in each step."""

    rows: list[int]
    counts: dict[tuple[int, int], Counter[int]]
    steps: set[int]


def with_local_peers(ranks: Sequence[RankOps], groups: Sequence[Group]) -> list[RankOps]:
    """Return the operations of all ranks with the peers that their places in groups tell."""
    told = {r.rank: found for r in ranks if (found := _told(r)).rows}
    left = {
        r: [g.ranks for g in groups if r in g.ranks and _possible(r, g.ranks, t)] for r, t in told.items()
    }
    before = -1
    while before != (before := sum(map(len, left.values()))):
        for rank in sorted(left):
            left[rank] = [members for members in left[rank] if _answered(rank, members, told, left)]
    return [_with_peers(r, told[r.rank], left[r.rank]) if left.get(r.rank) else r for r in ranks]


def _told(ops: RankOps) -> _Told:
    if ops.place is None or ops.way is None:
        return _Told([], {}, set())
    message = np.isin(np.array(ops.op, str), UNDIRECTED) if ops.op else np.zeros(0, bool)
    rows = np.flatnonzero(
        message & (ops.src < 0) & (ops.group < 0) & (ops.place >= 0) & (ops.way != 0)
    ).tolist()
    counts: dict[tuple[int, int], Counter[int]] = {}
    for row in rows:
        key = int(ops.way[row]), int(ops.place[row])
        counts.setdefault(key, Counter())[int(ops.step[row])] += 1
    return _Told(rows, counts, set(np.unique(ops.step[ops.step != NO_STEP]).tolist()))


def _possible(rank: int, members: Members, told: _Told) -> bool:
    """Whether each place that the messages name is another member's."""
    return all(place < len(members) and members[place] != rank for _, place in told.counts)


def _answered(rank: int, members: Members, told: dict[int, _Told], left: dict[int, list[Members]]) -> bool:
    """Whether every member that recorded messages has this group left, and as many messages the other way."""
    mine = told[rank]
    for (way, place), counts in mine.counts.items():
        peer = members[place]
        if peer not in told:
            continue
        theirs = told[peer].counts.get((-way, members.index(rank)), Counter())
        common = mine.steps & told[peer].steps
        alike = sum(counts[s] == theirs[s] for s in common)
        if members not in left[peer] or alike < NEARLY_ALL_RANKS * len(common):
            return False
    return True


def _with_peers(ops: RankOps, told: _Told, groups: Sequence[Members]) -> RankOps:
    """`ops` with the peers about which all `groups` agree."""
    if ops.place is None or ops.way is None:
        return ops
    op, src, dst = list(ops.op), ops.src.copy(), ops.dst.copy()
    for row in told.rows:
        way = int(ops.way[row])
        peers = {members[int(ops.place[row])] for members in groups}
        if len(peers) == 1:
            peer = peers.pop()
            op[row] = KINDS_BY_WAY[way]
            src[row], dst[row] = (ops.rank, peer) if way == SENDS else (peer, ops.rank)
    return replace(ops, op=tuple(op), src=src, dst=dst)
