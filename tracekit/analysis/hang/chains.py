"""Whether all waiting of a job starts from certain ranks: chains of what each rank waits for first.

A rank waits first of all for its oldest outstanding call; what it issued after that waits behind it. Used by
`hang_roots` and `hang_stale`.
"""

from collections import defaultdict
from collections.abc import Iterable

from tracekit.analysis.hang.groups import Group
from tracekit.analysis.hang.wait_graph import Graph
from tracekit.dumps.load import DumpSet

_Wait = tuple[bool, int]
"""An outstanding call (False, number of the hub) or a message (True, the rank at its other end)."""


def all_explained(groups: list[Group], graph: Graph, dumps: DumpSet, culprits: Iterable[int]) -> bool:
    """Whether every waiting rank waits first of all for a culprit, or for a rank that does.

    Linear in ranks and hubs: each is reached once.
    """
    first = {rank: _first_waits(groups, graph, dumps, rank) for rank in graph.stuck}
    users: dict[_Wait, list[int]] = defaultdict(list)
    for rank, waits in first.items():
        for wait in waits:
            users[wait].append(rank)
    lacked: dict[int, list[int]] = defaultdict(list)  # rank → hubs that it has not come to
    for at, hub in enumerate(graph.hubs):
        for rank in {*hub.behind, *hub.missing, *hub.unknown}:
            lacked[rank].append(at)
    open_ = {rank: len(waits) for rank, waits in first.items()}
    reached: set[int] = set()
    explained: set[_Wait] = set()
    news = list(culprits)
    while news:
        rank = news.pop()
        if rank in reached:
            continue
        reached.add(rank)
        own = first.get(rank, set())
        beside = {(False, at) for at in graph.waits.get(rank, ())} - own if own else set()
        for wait in {(True, rank), *((False, at) for at in lacked[rank])} | beside:
            if wait not in explained:
                explained.add(wait)
                for user in users.get(wait, ()):
                    open_[user] -= 1
                    if not open_[user]:
                        news.append(user)
    return graph.stuck <= reached


def _first_waits(groups: list[Group], graph: Graph, dumps: DumpSet, rank: int) -> set[_Wait]:
    """Give a rank's oldest outstanding call; several where the ring has lost them: any may be the oldest."""
    waits: list[tuple[int, _Wait]] = []
    for at in graph.waits.get(rank, ()):
        hub = graph.hubs[at]
        waits.append((groups[hub.group].rows[rank].created(hub.seq) or 0, (False, at)))
    dump = dumps.dumps[rank]
    for op in dump.p2p:
        members = dump.groups[op.group].ranks
        if op.peer < len(members) and members[op.peer] in graph.pairs.get(rank, ()):
            waits.append((op.created, (True, members[op.peer])))
    oldest = min((made for made, _ in waits), default=0)
    return {wait for made, wait in waits if made == oldest}
