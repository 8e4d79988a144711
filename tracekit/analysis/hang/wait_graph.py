"""Who waits for whom: the wait-for graph across groups, and the ranks that wait for nobody.

A rank whose call is outstanding waits for every member that has not issued that call (its host is behind),
or, where all have and some are done, for its own device. Chains of waiting lead through groups to ranks
that stopped by themselves: those are the culprits, everybody on the way is a victim. What fell out of a
ring is unknown: it makes an edge, never a culprit. Second step of `hang`.
"""

from collections import defaultdict
from dataclasses import dataclass, field

from tracekit.analysis.hang.groups import Group, Row, synchronising
from tracekit.dumps.dump import SCHEDULED, STARTED
from tracekit.dumps.load import DumpSet


@dataclass(slots=True)
class Hub:
    """One outstanding call of one group: who waits in it and for whom."""

    group: int
    seq: int
    waiting: list[int]
    behind: list[int]  # known not to have issued it
    missing: list[int]  # without a dump
    unknown: list[int]  # the ring and the status do not tell
    done: list[int]

    @property
    def in_flight(self) -> bool:
        """Everybody issued it and nobody is done."""
        return not (self.behind or self.missing or self.unknown or self.done)


@dataclass
class Graph:
    """Hubs, the ranks that every rank waits for, and what stands out."""

    hubs: list[Hub]
    waits: dict[int, set[int]] = field(default_factory=lambda: defaultdict(set))  # rank → numbers of hubs
    pairs: dict[int, set[int]] = field(
        default_factory=lambda: defaultdict(set)
    )  # rank → peers of outstanding p2p
    behind_in: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))  # rank → hubs
    awaited: dict[int, set[int]] = field(
        default_factory=lambda: defaultdict(set)
    )  # rank → those whose p2p it lacks
    device: dict[int, list[int]] = field(
        default_factory=lambda: defaultdict(list)
    )  # rank → hubs done by others
    unstarted: dict[int, list[int]] = field(
        default_factory=lambda: defaultdict(list)
    )  # rank → hubs others started
    busy: set[int] = field(default_factory=set)  # something is outstanding, but not what
    moving: list[tuple[int, int, int, int]] = field(
        default_factory=list
    )  # group, seq, done by, not issued by
    stale: frozenset[int] = frozenset()  # ranks whose dumps are older than their peers'

    def idle(self, rank: int) -> bool:
        """Whether nothing of this rank is outstanding: it waits for no communication."""
        return not self.waits.get(rank) and not self.pairs.get(rank) and rank not in self.busy

    @property
    def stuck(self) -> set[int]:
        """Ranks with anything outstanding."""
        return {r for r, h in self.waits.items() if h} | {r for r, p in self.pairs.items() if p} | self.busy


def build_graph(groups: list[Group], dumps: DumpSet, stale: frozenset[int] = frozenset()) -> Graph:
    """Give the wait-for graph of all groups; of `stale` ranks only what they issued counts, not what they lack."""
    graph = Graph([], stale=stale | {r for r, d in dumps.dumps.items() if d.truncated})
    timed = {r for r, d in dumps.dumps.items() if d.timed}
    for number, group in enumerate(groups):
        _moving(graph, number, group)
        open_rows = [r for r in group.rows.values() if r.waiting]
        if not open_rows:
            continue
        missing = [r for r in group.ranks if r not in dumps.dumps]
        unknown = [r for r in group.ranks if r in dumps.dumps and _unknown(group, r)]
        fronts: dict[int, list[Row]] = defaultdict(list)
        for row in open_rows:
            fronts[row.front].append(row)
        for seq, rows in sorted(fronts.items()):
            _hub(graph, number, group, seq, rows, missing, unknown, timed)
    _pairs(graph, groups, dumps)
    return graph


def _unknown(group: Group, rank: int) -> bool:
    row = group.rows.get(rank)
    return row is None or row.enqueued < 0


def _hub(
    graph: Graph,
    number: int,
    group: Group,
    seq: int,
    rows: list[Row],
    missing: list[int],
    unknown: list[int],
    timed: set[int],
) -> None:
    behind = [r.rank for r in group.rows.values() if 0 <= r.enqueued < seq and not r.stale]
    done = [r.rank for r in group.rows.values() if r.proven >= seq]
    unknown = unknown + [r.rank for r in group.rows.values() if r.completed >= seq > r.proven]
    unknown = unknown + [r.rank for r in group.rows.values() if 0 <= r.enqueued < seq and r.stale]
    hub = Hub(number, seq, [r.rank for r in rows], behind, missing, unknown, done)
    at = len(graph.hubs)
    graph.hubs.append(hub)
    for row in rows:
        graph.waits[row.rank].add(at)
    for rank in behind:
        graph.behind_in[rank].append(at)
    if done and not behind:
        for row in rows:
            if _device(group, row, max(group.rows[r].proven for r in done)):
                graph.device[row.rank].append(at)
    # a device that has not begun what others began tells so even if some member left no dump
    if not (hub.behind or hub.done) and graph.stale.issuperset(hub.unknown):
        states = {r.rank: r.state(seq) for r in rows if r.rank in timed}
        if STARTED in states.values():
            for rank, state in states.items():
                if state == SCHEDULED:
                    graph.unstarted[rank].append(at)


def _device(group: Group, row: Row, furthest: int) -> bool:
    """Tell whether some call that this rank issued but has not done is done elsewhere, and needed it."""
    span = range(row.front, min(furthest, row.enqueued) + 1)
    if any(synchronising(c) for s, c in zip(row.tail.seq, row.tail.calls, strict=True) if s in span):
        return True
    if synchronising(group.call(row.front)):
        return True
    # the ring has lost the calls: more of them than this group ever makes in a row without one that synchronises
    longest = current = 0
    some = False
    for other in group.rows.values():
        for call in other.tail.calls:
            free = not synchronising(call)
            current = current + 1 if free else 0
            some, longest = some or not free, max(longest, current)
        current = 0
    lost = not any(row.call(s) or group.call(s) for s in span)
    return some and lost and len(span) > longest + 1


def _moving(graph: Graph, number: int, group: Group) -> None:
    """Note calls done by one and not issued by another: dumps written at different times."""
    known = [r for r in group.rows.values() if r.enqueued >= 0]
    if len(known) < 2:
        return
    last = max(known, key=lambda r: r.proven)
    for first in known:
        if first.stale or last.proven <= first.enqueued:
            continue
        if synchronising(last.call(first.enqueued + 1) or group.call(last.proven)):
            graph.moving.append((number, last.proven, last.rank, first.rank))


def _pairs(graph: Graph, groups: list[Group], dumps: DumpSet) -> None:
    """Edges of p2p: the n-th outstanding send of a pair meets the n-th outstanding receive of its peer."""
    ends: dict[tuple[int, tuple[int, ...], int, int, bool], int] = defaultdict(int)
    for rank, dump in dumps.dumps.items():
        for op in dump.p2p:
            members = dump.groups[op.group].ranks
            if op.peer < len(members) and op.me < len(members):
                ends[rank, members, rank, members[op.peer], op.send] += 1
    for (rank, members, _, peer, send), count in ends.items():
        if rank in graph.stale:
            continue
        graph.pairs[rank].add(peer)
        if ends.get((peer, members, peer, rank, not send), 0) < count:
            graph.awaited[peer].add(rank)
    for group in groups:  # what the ring has lost still shows in the status
        if group.mixed:
            graph.busy.update(
                r.rank
                for r in group.rows.values()
                if (not r.stale or dumps.dumps[r.rank].truncated)
                and (dumps.dumps[r.rank].wrapped or dumps.dumps[r.rank].truncated)
                and 0 <= r.tail.status_completed < r.tail.status_enqueued
            )
