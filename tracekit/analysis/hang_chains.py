"""Whether all waiting of a job starts from certain ranks: chains of what each rank waits for first.

A rank waits first of all for its oldest outstanding call; what it issued after that waits behind it. Used by
`hang_roots` and `hang_stale`.
"""

from collections.abc import Iterable

from tracekit.analysis.hang_graph import Graph
from tracekit.analysis.hang_model import Group
from tracekit.ingest.flight import DumpSet


def all_explained(groups: list[Group], graph: Graph, dumps: DumpSet, culprits: Iterable[int]) -> bool:
    """Whether every waiting rank waits first of all for a culprit, or for a rank that does."""
    first = {rank: _first_wait(groups, graph, dumps, rank) for rank in graph.stuck}
    reached = set(culprits)
    grown = True
    while grown:
        grown = False
        for rank, wait in first.items():
            if rank in reached or wait is None:
                continue
            hub, lacking = wait
            if lacking & reached or any(
                peer in reached and first.get(peer) is not None and first[peer] != wait
                for peer in (graph.hubs[hub].waiting if hub >= 0 else ())
            ):
                reached.add(rank)
                grown = True
    return all(rank in reached for rank in graph.stuck)


def _first_wait(
    groups: list[Group], graph: Graph, dumps: DumpSet, rank: int
) -> tuple[int, frozenset[int]] | None:
    """Give the hub of a rank's oldest outstanding call (-1 for a message) and who has not come to it."""
    waits: list[tuple[int, int, frozenset[int]]] = []
    for at in graph.waits.get(rank, ()):
        hub = graph.hubs[at]
        made = groups[hub.group].rows[rank].created(hub.seq)
        waits.append((made or 0, at, frozenset((*hub.behind, *hub.missing, *hub.unknown))))
    dump = dumps.dumps[rank]
    for op in dump.p2p:
        members = dump.groups[op.group].ranks
        if op.peer < len(members) and members[op.peer] in graph.pairs.get(rank, ()):
            waits.append((op.created, -1, frozenset({members[op.peer]})))
    if not waits:
        return None
    _, at, lacking = min(waits, key=lambda w: w[:2])
    return at, lacking
