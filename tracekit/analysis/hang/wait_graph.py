"""The wait-for graph across groups, and the ranks that wait for no other rank.

A rank with an outstanding call waits for every member that has not issued that call (its host is behind), or, if all
have and some are done, for its own device. Chains of waiting lead through groups to ranks that stopped by
themselves: these are the culprits, and every rank on the way is a victim. A call that fell out of a ring is unknown: it
makes an edge, never a culprit. Second step of `hang`.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from tracekit.analysis.hang.agreement import synchronising
from tracekit.analysis.hang.frontier import Frontier, Group
from tracekit.dumps.fields import p2p_ends
from tracekit.dumps.rank_dump import RankDump


@dataclass(frozen=True, slots=True)
class PendingCall:
    """One outstanding call of one group: the ranks that wait in it, and those they may wait for."""

    group: int  # number of the group
    seq: int
    waiting: list[int]
    behind: list[int]  # known not to have issued it
    missing: list[int]  # without a dump
    unknown: list[int]  # neither the ring nor the status shows it
    done: list[int]

    @property
    def in_flight(self) -> bool:
        """Whether every member issued it and none has finished it."""
        return not (self.behind or self.missing or self.unknown or self.done)


class Moving(NamedTuple):
    """A call that one member has done and another has not issued: their dumps are of different times."""

    group: int
    seq: int
    done_by: int
    not_issued_by: int


@dataclass
class Graph:
    """The pending calls, and for every rank the calls that it waits in or delays; calls are indices into `pending`."""

    pending: list[PendingCall] = field(default_factory=list)
    waits: dict[int, set[int]] = field(default_factory=lambda: defaultdict(set))
    """rank → calls that it waits in."""
    pairs: dict[int, set[int]] = field(default_factory=lambda: defaultdict(set))
    """rank → peers of its outstanding sends and receives."""
    behind_in: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))
    """rank → calls that it has not issued and others wait in."""
    awaited: dict[int, set[int]] = field(default_factory=lambda: defaultdict(set))
    """rank → ranks with sends or receives that it has not joined."""
    device: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))
    """rank → calls that its device has not done though others' have."""
    busy: set[int] = field(default_factory=set)
    """Ranks with something outstanding that the dump does not name."""
    moving: list[Moving] = field(default_factory=list)
    stale: frozenset[int] = frozenset()
    """Ranks with dumps that are older than their peers', cut off, or damaged at their end."""

    def idle(self, rank: int) -> bool:
        """Whether nothing of this rank is outstanding: it waits for no communication."""
        return not self.waits.get(rank) and not self.pairs.get(rank) and rank not in self.busy

    @property
    def stuck(self) -> set[int]:
        """Ranks with anything outstanding."""
        return {r for r, h in self.waits.items() if h} | {r for r, p in self.pairs.items() if p} | self.busy


def build_graph(
    groups: list[Group], dumps: Mapping[int, RankDump], stale: frozenset[int] = frozenset()
) -> Graph:
    """Give the wait-for graph of all groups; of `stale` ranks only the calls they issued count, not those they lack."""
    graph = Graph(stale=stale | {r for r, d in dumps.items() if d.truncated or d.damaged_end})
    for number, group in enumerate(groups):
        graph.moving.extend(_moving(number, group))
        for call in _pending(number, group, dumps):
            _add(graph, group, call)
    _add_messages(graph, groups, dumps)
    graph.busy.update(_in_unknown_groups(groups, dumps))
    return graph


def _in_unknown_groups(groups: list[Group], dumps: Mapping[int, RankDump]) -> Iterator[int]:
    """Yield the ranks that wait in a call of a group without listed members in their dumps."""
    known = {id(f.tail) for group in groups for f in group.frontiers.values()}
    for rank, dump in dumps.items():
        others = (t for t in dump.groups if len(t.ranks) != 1 and id(t) not in known)
        if any(t.entry_completed < t.entry_enqueued for t in others):
            yield rank


def _pending(number: int, group: Group, dumps: Mapping[int, RankDump]) -> Iterator[PendingCall]:
    """Yield the calls of one group in which some member waits, by sequence number."""
    rows = list(group.frontiers.values())
    fronts: dict[int, list[int]] = defaultdict(list)
    for row in rows:
        if row.waiting:
            fronts[row.front].append(row.rank)
    if not fronts:
        return
    missing = [r for r in group.ranks if r not in dumps]
    unseen = [r for r in group.ranks if r in dumps and _unknown(group, r)]
    for seq, waiting in sorted(fronts.items()):
        lacking = [f for f in rows if 0 <= f.enqueued < seq]
        unproven = [f.rank for f in rows if f.completed >= seq > f.proven]
        yield PendingCall(
            group=number,
            seq=seq,
            waiting=waiting,
            behind=[f.rank for f in lacking if not f.stale],
            missing=missing,
            unknown=[*unseen, *unproven, *(f.rank for f in lacking if f.stale)],
            done=[f.rank for f in rows if f.proven >= seq],
        )


def _unknown(group: Group, rank: int) -> bool:
    frontier = group.frontiers.get(rank)
    return frontier is None or frontier.enqueued < 0


def _add(graph: Graph, group: Group, call: PendingCall) -> None:
    """Enter one pending call into the graph: the ranks that wait in it, that are behind, and with devices that lag."""
    at = len(graph.pending)
    graph.pending.append(call)
    for rank in call.waiting:
        graph.waits[rank].add(at)
    for rank in call.behind:
        graph.behind_in[rank].append(at)
    if call.done and not call.behind:
        furthest = max(group.frontiers[r].proven for r in call.done)
        for rank in call.waiting:
            if _device_lags(group, group.frontiers[rank], furthest):
                graph.device[rank].append(at)


def _device_lags(group: Group, frontier: Frontier, furthest: int) -> bool:
    """Return whether some call that this rank issued but has not done is done elsewhere, and needed this rank.

    `furthest` is the last call that any member has done. If the rings have lost the calls, one of them needed this
    rank if they are more than the group ever makes in a row without a call that synchronises.
    """
    span = range(frontier.front, min(furthest, frontier.enqueued) + 1)
    tail = frontier.tail
    if any(synchronising(c) for s, c in zip(tail.seq, tail.calls, strict=True) if s in span):
        return True
    if synchronising(group.call(frontier.front)):
        return True
    longest = _longest_unsynchronised(group)
    lost = not any(frontier.call(s) or group.call(s) for s in span)
    return longest is not None and lost and len(span) > longest + 1


def _longest_unsynchronised(group: Group) -> int | None:
    """Count the calls of the longest run without one that synchronises; None where no ring holds one that does."""
    longest, synchronised = 0, False
    for frontier in group.frontiers.values():
        run = 0
        for call in frontier.tail.calls:
            meets = synchronising(call)
            run = 0 if meets else run + 1
            synchronised, longest = synchronised or meets, max(longest, run)
    return longest if synchronised else None


def _moving(number: int, group: Group) -> list[Moving]:
    """List calls done by one member and not issued by another: dumps written at different times."""
    known = [f for f in group.frontiers.values() if f.enqueued >= 0]
    if len(known) < 2:
        return []
    last = max(known, key=lambda f: f.proven)
    return [
        Moving(number, last.proven, last.rank, first.rank)
        for first in known
        if not first.stale
        and last.proven > first.enqueued
        and synchronising(last.call(first.enqueued + 1) or group.call(last.proven))
    ]


def _add_messages(graph: Graph, groups: list[Group], dumps: Mapping[int, RankDump]) -> None:
    """Enter sends and receives: the n-th outstanding send of a pair meets the n-th outstanding receive of its peer."""
    ends: dict[tuple[int, tuple[int, ...], int, bool], int] = defaultdict(int)  # rank, members, peer, send
    for rank, dump in dumps.items():
        for op in dump.p2p:
            members = dump.groups[op.group].ranks
            if op.peer < len(members) and op.me < len(members):
                ends[rank, members, members[op.peer], op.send] += 1
    for (rank, members, peer, send), count in ends.items():
        if rank in graph.stale:
            continue
        graph.pairs[rank].add(peer)
        if ends.get((peer, members, rank, not send), 0) < count:
            if peer in dumps and _may_have_lost(dumps[peer], members, rank, send=not send):
                graph.busy.add(peer)
            else:
                graph.awaited[peer].add(rank)
    for group in groups:
        if group.mixed:
            graph.busy.update(f.rank for f in group.frontiers.values() if _lost_messages(f, dumps[f.rank]))


def _may_have_lost(dump: RankDump, members: tuple[int, ...], peer: int, *, send: bool) -> bool:
    """Return whether a ring has overwritten all messages of this rank to (or from) `peer`: one may be outstanding.

    A channel completes in order, so that a later message in the ring vouches for the lost ones.
    """
    if not (dump.wrapped and dump.finished):
        return False
    groups = {number for number, tail in enumerate(dump.groups) if tail.ranks == members}
    ends = (send, members.index(dump.rank), members.index(peer))
    log = dump.messages
    made = zip(log.group.tolist(), log.names, strict=True)
    return not any(group in groups and p2p_ends(name) == ends for group, name in made)


def _lost_messages(frontier: Frontier, dump: RankDump) -> bool:
    """Return whether messages are outstanding that the ring has lost: they still show in the status.

    A dump of outstanding calls alone leaves out only what is done.
    """
    outstanding_only = not (dump.gapless or dump.finished)
    lossy = (dump.wrapped and not outstanding_only) or dump.truncated
    current = not frontier.stale or dump.truncated
    return lossy and current and 0 <= frontier.tail.status_completed < frontier.tail.status_enqueued
