"""Dumps that are older than their peers': what lies behind their horizon is unknown, not missing.

A rank that died, or whose interpreter is never released, leaves the last dump that it could write, while its peers'
dumps show a later state. Where peers finished a call that such a dump does not hold, the rank must have issued it.
If all waiting then starts from one rank the job hangs there; else dumps of a live job were written at different
times. Used by `hang`.
"""

from tracekit.analysis.hang.chains import all_explained
from tracekit.analysis.hang.culprits import Roots, find_roots
from tracekit.analysis.hang.groups import Group
from tracekit.analysis.hang.wait_graph import Graph, build_graph
from tracekit.dumps.load import DumpSet
from tracekit.findings import Quality
from tracekit.mesh import Mesh

_MOST = 0.25
"""More old dumps than this share of all are dumps of a live job."""


Judged = tuple[Graph, Roots, list[Quality]]


def judged(groups: list[Group], graph: Graph, dumps: DumpSet, mesh: Mesh | None) -> Judged:
    """Give the culprits, with the graph they stand in and what was found of old dumps."""
    if graph.moving:
        return _settled(groups, graph, dumps, mesh) or (graph, Roots(), [])
    if not graph.stuck:
        return graph, Roots(), []
    roots = find_roots(groups, graph, dumps, mesh)
    return _one_fault(groups, dumps, mesh, roots) or (graph, roots, [])


def _one_fault(groups: list[Group], dumps: DumpSet, mesh: Mesh | None, roots: Roots) -> Judged | None:
    """Take a device that seems to stall beside another fault for an old dump, if the other fault stands without it.

    An old dump shows calls as outstanding that have been done since: so does a stalled device.
    """
    doubtful = frozenset(r for r, (kind, _, _) in roots.where.items() if kind == "device_stalled")
    if not doubtful or doubtful == roots.where.keys():
        return None
    rows = [row for group in groups for r, row in group.rows.items() if r in doubtful]
    for row in rows:
        row.stale = True
    again = build_graph(groups, dumps, doubtful)
    others = find_roots(groups, again, dumps, mesh)
    if others.where and others.where.keys() <= roots.where.keys() - doubtful:
        return again, others, [_row(dumps, rank) for rank in sorted(doubtful)]
    for row in rows:
        row.stale = False
    return None


def _settled(groups: list[Group], graph: Graph, dumps: DumpSet, mesh: Mesh | None) -> Judged | None:
    """Judge again with what old dumps lack taken as unknown; None where that explains no standstill."""
    proven: dict[tuple[int, int], int] = {}
    for number, seq, _, rank in graph.moving:
        proven[number, rank] = max(seq, proven.get((number, rank), 0))
    stale = frozenset(rank for _, rank in proven)
    if len(stale) > max(1, _MOST * len(dumps.dumps)):
        return None
    before = [(row, row.enqueued) for group in groups for r, row in group.rows.items() if r in stale]
    for row, _ in before:
        row.stale = True
    for (number, rank), seq in proven.items():
        row = groups[number].rows[rank]
        row.enqueued = max(row.enqueued, seq)
    again = build_graph(groups, dumps, stale)
    if again.stuck and not again.moving:
        roots = find_roots(groups, again, dumps, mesh)
        if roots.where and all_explained(groups, again, dumps, roots.where):
            return again, roots, [_row(dumps, rank) for rank in sorted(stale)]
    for row, enqueued in before:
        row.stale, row.enqueued = False, enqueued
    return None


def _row(dumps: DumpSet, rank: int) -> Quality:
    detail = f"rank {rank} wrote it before its peers' last calls, it seems: what it did after that is unknown"
    return Quality("stale_dump", dumps.dumps[rank].path, 1, detail)
