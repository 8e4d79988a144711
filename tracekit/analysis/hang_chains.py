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
    first = {rank: _first_waits(groups, graph, dumps, rank) for rank in graph.stuck}
    reached = set(culprits)
    grown = True
    while grown:
        grown = False
        for rank, waits in first.items():
            if rank in reached or not waits:
                continue
            if all(_starts_from(graph, first, reached, wait) for wait in waits):
                reached.add(rank)
                grown = True
    return all(rank in reached for rank in graph.stuck)


_Wait = tuple[int, frozenset[int]]
"""Hub of an outstanding call (-1 for a message), and who has not come to it."""


def _starts_from(graph: Graph, first: dict[int, list[_Wait]], reached: set[int], wait: _Wait) -> bool:
    hub, lacking = wait
    return bool(lacking & reached) or any(
        peer in reached and bool(first.get(peer)) and wait not in first[peer]
        for peer in (graph.hubs[hub].waiting if hub >= 0 else ())
    )


def _first_waits(groups: list[Group], graph: Graph, dumps: DumpSet, rank: int) -> list[_Wait]:
    """Give a rank's oldest outstanding call; several where the ring has lost them: any may be the oldest."""
    waits: list[tuple[int, _Wait]] = []
    for at in graph.waits.get(rank, ()):
        hub = graph.hubs[at]
        made = groups[hub.group].rows[rank].created(hub.seq)
        waits.append((made or 0, (at, frozenset((*hub.behind, *hub.missing, *hub.unknown)))))
    dump = dumps.dumps[rank]
    for op in dump.p2p:
        members = dump.groups[op.group].ranks
        if op.peer < len(members) and members[op.peer] in graph.pairs.get(rank, ()):
            waits.append((op.created, (-1, frozenset({members[op.peer]}))))
    oldest = min((made for made, _ in waits), default=0)
    return [wait for made, wait in sorted(waits, key=lambda w: (w[0], w[1][0])) if made == oldest]
