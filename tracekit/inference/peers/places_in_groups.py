"""Peers of messages with titles or calls that count within an unnamed group, by the groups that the files list.

Up to torch 2.3 no message names its group, and its title `nccl:send 0->1` gives the places of both ranks in it. Several
groups of a rank may be as large and have it at that place; the peer's own titles show which one is right. On Gloo the
inputs of the call give the place of the peer alone.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

import numpy as np

from tracekit.inference.peers.directed_messages import ways, with_peers, without_peer
from tracekit.matching.clock import Clocks
from tracekit.matching.match import Operations
from tracekit.rank_events.coded_words import among
from tracekit.rank_events.operation_names import MESSAGES, SENDS
from tracekit.rank_events.rank_ops import RankOps
from tracekit.schema import Group

_Peers = dict[int, dict[int, int]]
"""Rank → row of a message → its peer."""
_GROUPS: Final = ((True, False), (False, True), (True, True))
"""Whether group ranks may refer to the pipeline's group, and whether to the world."""


class _Said(NamedTuple):
    """What titles or calls of a rank record of messages in one direction: group ranks, and the size of the group."""

    own: int  # -1 where only a call names the peer
    peer: int
    way: int
    size: int  # -1 unknown


def with_places_in_groups(ranks: Sequence[RankOps], groups: Iterable[Group]) -> list[RankOps]:
    """Return `ranks` with the peers of messages with places that fit only one of the `groups`, for both ends.

    A peer without a trace contradicts nothing.
    """
    rows = {rank.rank: _rows(rank) for rank in ranks}
    known = {rank.rank: _known(rank) for rank in ranks}
    mine: dict[int, list[Group]] = defaultdict(list)
    for group in groups if any(rows.values()) else ():
        for member in group.ranks:
            mine[member].append(group)
    result = []
    for rank in ranks:
        filled = rank
        for said, at in rows[rank.rank].items():
            fits = [g for g in mine[rank.rank] if _fits(rank.rank, said, g, rows, known)]
            if len(fits) == 1:
                filled = _in_group(filled, at, fits[0], said.peer)
        result.append(filled)
    return result


def _in_group(rank: RankOps, rows: list[int], group: Group, peer: int) -> RankOps:
    """Return `rank` with messages in `rows` that are exchanged with the member at the place `peer` of `group`.

    They get the same fields as messages with titles that fit only one group.
    """
    filled = with_peers(rank, rows, [group.ranks[peer]] * len(rows))
    number = filled.group.copy()
    number[rows] = group.group
    token = list(filled.token)
    for row in rows:
        token[row] = f"p2p/{token[row].partition('/')[2]}"
    return replace(filled, group=number, token=tuple(token))


def _rows(rank: RankOps) -> dict[_Said, list[int]]:
    """Return the messages of a rank without a peer, by the group ranks and size in their titles."""
    found: dict[_Said, list[int]] = defaultdict(list)
    if rank.place is None or rank.own is None:
        return found
    size = np.full(len(rank.op), -1) if rank.group_size is None else rank.group_size
    way = ways(rank)
    for row in without_peer(rank).tolist():
        said = _Said(int(rank.own[row]), int(rank.place[row]), int(way[row]), int(size[row]))
        if said.peer >= 0:
            found[said].append(row)
    return found


def _known(rank: RankOps) -> set[tuple[int, int]]:
    """Return (peer, direction) of the messages of a rank that name their peer."""
    named = np.flatnonzero(among(rank.op, MESSAGES) & (rank.src >= 0) & (rank.dst >= 0))
    way = ways(rank)
    peer = np.where(rank.src == rank.rank, rank.dst, rank.src)
    return set(zip(peer[named].tolist(), way[named].tolist(), strict=True))


def _fits(
    rank: int,
    said: _Said,
    group: Group,
    rows: Mapping[int, Mapping[_Said, list[int]]],
    known: Mapping[int, set[tuple[int, int]]],
) -> bool:
    """Return whether a group may be the title's: its members have these places, and the peer has such messages."""
    members = group.ranks
    own = members.index(rank)
    if said.size not in {-1, len(members)} or said.own not in {-1, own} or said.peer >= len(members):
        return False
    peer = members[said.peer]
    if peer == rank:
        return False
    if peer not in rows:
        return True
    answers = {
        (s.peer, s.way) for s in rows[peer] if s.size in {-1, len(members)} and s.own in {-1, said.peer}
    }
    return (own, -said.way) in answers or (rank, -said.way) in known[peer]


# Peers of messages that name the peer's place in an unnamed group: the pipeline's, or the world.
#
# The inputs of `c10d::send` and the title `nccl:send 0->1` count within the process group. Up to torch 2.3
# nothing names that group; along the lines of a known pipeline only neighbours are possible, and both ends
# must agree.


def with_recorded_places(
    ops: Operations, _: Clocks, lines: Iterable[tuple[int, ...]]
) -> tuple[list[RankOps], int]:
    """Return (operations of all ranks with the peers from their places, their number) along the pipelines `lines`.

    `lines` hold ranks in the order of their stages. The places of a line count in its own group, in the world, or
    some in either. Its messages stay open if one of them has no or several neighbours at its place, if both ends record
    different numbers in a step, or if two ways to count give different peers.
    """
    filled = dict(ops.per_rank)
    count = 0
    for line in sorted(lines):
        recorded = [rank for rank in line if rank in filled]
        ways_to_read = ({rank: _peers(filled[rank], line, *of) for rank in recorded} for of in _GROUPS)
        agreed = [peers for peers in ways_to_read if any(peers.values()) and _agree(filled, peers)]
        if not agreed or any(peers != agreed[0] for peers in agreed):
            continue
        for rank, mine in agreed[0].items():
            filled[rank] = with_peers(filled[rank], list(mine), list(mine.values()))
            count += len(mine)
    return [filled[r] for r in ops.ranks], count


def _peers(source: RankOps, line: tuple[int, ...], of_line: bool, of_world: bool) -> dict[int, int]:
    """Return the peer of each open message of a rank; -1 if its place in the line or world gives none or several."""
    at = line.index(source.rank)
    beside = {line[at - 1], line[(at + 1) % len(line)]} - {source.rank}
    found: dict[int, int] = {}
    for row in without_peer(source).tolist():
        place = -1 if source.place is None else int(source.place[row])
        inside = of_line and 0 <= place < len(line)
        fits = {*([place] if of_world else ()), *([line[place]] if inside else ())} & beside
        found[row] = fits.pop() if len(fits) == 1 else -1
    return found


def _agree(ranks: dict[int, RankOps], peers: _Peers) -> bool:
    """Return whether every message has one peer, and both ends record equally many in each common step."""
    if any(peer < 0 for mine in peers.values() for peer in mine.values()):
        return False
    sent: Counter[tuple[int, int, int]] = Counter()
    taken: Counter[tuple[int, int, int]] = Counter()
    for rank, mine in peers.items():
        way, step = ways(ranks[rank]), ranks[rank].step
        for row, peer in mine.items():
            if peer in peers and step[row] in ranks[peer].step:
                ends = (rank, peer) if way[row] == SENDS else (peer, rank)
                (sent if way[row] == SENDS else taken)[*ends, int(step[row])] += 1
    return sent == taken
