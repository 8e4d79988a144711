"""Which of several calls comes first in the program, told by ranks that make both; never by clocks of two hosts.

A rank that issued one call and not yet the other, or both at times of its own clock, shows their order. Asked are the
members of both groups, and for the calls that one rank lacks its peers, each about the groups in the same place of its
own: ranks of one place in the mesh run one program. Used by `hang_roots` and `hang_describe`.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Final

from tracekit.analysis.hang.groups import Group, Row
from tracekit.analysis.hang.wait_graph import Graph
from tracekit.dumps.load import DumpSet

ASKED: Final = 64
"""Peers, or groups in the same place of other replicas, that are asked: all run one program."""

Places = dict[int, dict[tuple[str, int], list[int]]]
"""Groups of ranks by what groups in the same place of other replicas share."""
Sight = tuple[bool, int | None]
"""Whether a rank issued a call, and when (ns, its own clock)."""


@dataclass(frozen=True, slots=True)
class Item:
    """A collective of a group, or that message which `rank` would make next there."""

    group: int
    seq: int
    rank: int = -1


def first_wait(groups: list[Group], graph: Graph, hubs: Sequence[int], rank: int) -> int:
    """Give the hub in which `rank` has waited longest, by its own clock."""

    def key(at: int) -> tuple[int, int, int]:
        hub = graph.hubs[at]
        # a call that the ring has lost is older than all it holds
        return groups[hub.group].rows[rank].created(hub.seq) or 0, len(groups[hub.group].ranks), at

    return min(hubs, key=key)


def first_of(groups: list[Group], items: Iterable[Item]) -> Item:
    """Give the collective that comes first for ranks that make several of these; else that of the smallest group."""
    sights: dict[int, list[tuple[Item, Sight]]] = defaultdict(list)
    kept = list(dict.fromkeys(items))
    for item in kept:
        for row in groups[item.group].rows.values() if item.rank < 0 and len(kept) > 1 else ():
            if (seen := sight(row, item.seq)) is not None:
                sights[row.rank].append((item, seen))
    votes: dict[tuple[Item, Item], int] = defaultdict(int)
    for several in sights.values():
        for (one, mine), (other, theirs) in combinations(several, 2):
            votes[one, other] += earlier(mine, theirs)
    return _winner(groups, kept, votes)


def first_lacking(groups: list[Group], dumps: DumpSet, rank: int, items: Sequence[Item]) -> Item:
    """Give that of the calls which `rank` lacks which it would have made first."""
    if len(items) == 1:
        return items[0]
    peers = {
        other
        for group in groups
        if rank in group.ranks and not group.mixed and len(group.ranks) < len(dumps.world)
        for other in group.ranks
    }
    places = places_of(groups, peers or set(dumps.world))
    votes: dict[tuple[Item, Item], int] = {}
    for pair in combinations(items, 2):
        exact = [] if max(i.rank for i in pair) >= 0 else [groups[i.group].rows for i in pair]
        shared = exact[0].keys() & exact[1].keys() if exact else set()
        vote = sum(_vote(sight(exact[0][r], pair[0].seq), sight(exact[1][r], pair[1].seq)) for r in shared)
        for other in () if vote else sorted(places.keys() - {rank}):
            vote += _vote(*(_seen(groups, dumps, places[other], other, item) for item in pair))
        votes[pair] = vote
    return _winner(groups, items, votes)


def _winner(groups: list[Group], items: Sequence[Item], votes: dict[tuple[Item, Item], int]) -> Item:
    behind: dict[Item, int] = dict.fromkeys(items, 0)
    for (one, other), vote in votes.items():
        if vote:
            behind[other if vote > 0 else one] += 1
    return min(items, key=lambda i: (behind[i], len(groups[i.group].ranks), i.group, i.seq))


def places_of(groups: list[Group], ranks: set[int]) -> Places:
    """Groups of each of these ranks by what groups in the same place share."""
    found: Places = {r: defaultdict(list) for r in ranks}
    for number, group in enumerate(groups):
        for rank in ranks.intersection(group.rows):
            found[rank][group.role].append(number)
    return found


def peers_of(groups: list[Group], places: Places, rank: int, world: int) -> list[int]:
    """Ranks that left a dump and run this one's program, those of the smallest groups first, at most `ASKED`.

    They share a group with it that is neither a pipeline's nor that of all `world` ranks.
    """
    near = [n for alike in places[rank].values() for n in alike]
    near = [n for n in near if not groups[n].mixed and len(groups[n].ranks) < world]
    near.sort(key=lambda n: len(groups[n].ranks))
    found = dict.fromkeys(r for n in near for r in sorted(groups[n].rows) if r != rank)
    return list(found)[:ASKED]


def _seen(
    groups: list[Group], dumps: DumpSet, place: dict[tuple[str, int], list[int]], rank: int, item: Item
) -> Sight | None:
    """How a rank sees the call in its own place: in that group itself, else in its only one of that role."""
    alike = place.get(groups[item.group].role, [])
    number = item.group if item.group in alike else alike[0] if len(alike) == 1 else None
    if number is None or rank not in dumps.dumps:
        return None
    row = groups[number].rows[rank]
    if item.rank < 0:
        return sight(row, item.seq)
    same = item.rank in groups[item.group].ranks and groups[number].ranks.index(rank) == groups[
        item.group
    ].ranks.index(item.rank)
    dump = dumps.dumps[rank]
    local = next(i for i, g in enumerate(dump.groups) if g is row.tail)
    log = dump.messages
    numbers = log.seq[log.group == local]
    if not same or not len(numbers) or row.stale:
        return None
    at = log.place(local, item.seq)
    return int(numbers.max()) >= item.seq, int(log.created[at]) or None if at is not None else None


def sight(row: Row, seq: int) -> Sight | None:
    """How the rank of `row` sees its own call with this number; None where its dump does not tell."""
    if row.enqueued < 0 or row.stale:
        return None
    return row.enqueued >= seq, row.created(seq)


def _vote(one: Sight | None, other: Sight | None) -> int:
    return 0 if one is None or other is None else earlier(one, other)


def earlier(one: Sight, other: Sight) -> int:
    """1 where the first was issued before the second, -1 the other way round, 0 where that is not told."""
    if one[0] != other[0]:
        return 1 if one[0] else -1
    if one[1] is None or other[1] is None or one[1] == other[1]:
        return 0
    return 1 if one[1] < other[1] else -1
