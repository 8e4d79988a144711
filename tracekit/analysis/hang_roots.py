"""Certain culprits: the ranks from which all waiting starts, each with the call where it failed.

In this order: members whose call does not match the others', ranks whose own device has not done what its peers
finished, and ranks that others wait for while nothing of their own is outstanding; then, where no rank present
explains the standstill, a single rank without a dump. Fourth step of `hang`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from tracekit.analysis.hang_graph import Graph
from tracekit.analysis.hang_mismatch import Mismatch, mismatches
from tracekit.analysis.hang_model import Group
from tracekit.analysis.hang_order import left_out, out_of_step
from tracekit.hang_findings import CulpritKind
from tracekit.ingest.flight import DumpSet
from tracekit.ingest.flight_dump import STARTED, Signature
from tracekit.mesh import Mesh


@dataclass
class Roots:
    """Culprits with the call (group number, sequence number) where they failed, and words for the reason."""

    where: dict[int, tuple[CulpritKind, int, int]] = field(default_factory=dict)
    sides: dict[int, Mismatch] = field(default_factory=dict)
    calls: dict[int, Signature] = field(default_factory=dict)  # where it is a send or receive: the peer's end
    doubts: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def skipped(self, found: dict[int, tuple[int, int]]) -> None:
        """Take ranks that left a call out."""
        for rank, (group, seq) in found.items():
            self.where[rank] = ("host_stalled", group, seq)
            self.notes.append(f"a circle of waiting: rank {rank} passed a call that its peers make first")

    def silent(self, found: dict[int, tuple[int, int, Signature]]) -> None:
        """Take ranks that left a send or receive out."""
        for rank, (group, seq, call) in found.items():
            self.where[rank] = ("host_stalled", group, seq)
            self.calls[rank] = call
            self.notes.append(f"rank {rank} left out message {seq} ({call[0]}), which its stage makes")


def find_roots(groups: list[Group], graph: Graph, dumps: DumpSet, mesh: Mesh | None) -> Roots:
    """Give the culprits of a job that waits, or the reasons why there are none."""
    roots = Roots()
    for mismatch in mismatches(groups, graph):
        if not mismatch.odd:
            group = groups[mismatch.group]
            names = " and ".join(str(r) for side in mismatch.sides.values() for r in side[:4])
            roots.doubts.append(
                f"ranks {names} call differently in group {group.name} and nothing tells who is right"
            )
        for rank in mismatch.odd:
            kind: CulpritKind = "host_stalled" if mismatch.skipped else "mismatched_call"
            roots.where.setdefault(rank, (kind, mismatch.group, mismatch.seq))
            roots.sides.setdefault(rank, mismatch)
    disputed = {(m.group, m.seq) for m in roots.sides.values()}
    for rank, waits in graph.device.items():
        # what a member called differently may end on one side only: no device is at fault then
        hubs = [h for h in waits if (graph.hubs[h].group, graph.hubs[h].seq) not in disputed]
        if not hubs:
            continue
        if dumps.dumps[rank].backend == "gloo" and rank in graph.behind_in:
            late = graph.hubs[earliest(groups, graph, graph.behind_in[rank])]  # there is no device to stall
            roots.where.setdefault(rank, ("host_stalled", late.group, late.seq))
            continue
        at = graph.hubs[earliest(groups, graph, hubs, rank)]
        roots.where.setdefault(rank, ("device_stalled", at.group, at.seq))
    host = _hosts(groups, graph, dumps, mesh, roots)
    for rank, (number, seq) in host.items():
        roots.where.setdefault(rank, ("host_stalled", number, seq))
    if not roots.where:
        roots.skipped(out_of_step(groups, graph, dumps))
    if not roots.where:
        roots.silent(left_out(groups, dumps))
    paired = {r for g in groups if g.mixed for r in g.rows}
    cut = [r for r, d in dumps.dumps.items() if d.cut and (not d.has_status or r in paired)]
    if not roots.where and cut:
        roots.doubts.append(
            f"the rings of {len(cut)} ranks have lost outstanding calls; record more (TORCH_FR_BUFFER_SIZE)"
        )
    if not roots.where and not roots.doubts:
        _unstarted(groups, graph, dumps, roots)
    if not roots.where and not roots.doubts:
        _missing(graph, dumps, roots)
    return roots


def _hosts(
    groups: list[Group], graph: Graph, dumps: DumpSet, mesh: Mesh | None, roots: Roots
) -> dict[int, tuple[int, int]]:
    """Ranks that others wait for while they wait for nobody."""
    found: dict[int, tuple[int, int]] = {}
    for rank, hubs in graph.behind_in.items():
        if graph.idle(rank) and rank not in roots.where:
            at = graph.hubs[earliest(groups, graph, hubs)]
            found[rank] = (at.group, at.seq)
    for rank, askers in graph.awaited.items():
        if rank in graph.stale:
            continue
        if rank in dumps.dumps and graph.idle(rank) and rank not in roots.where and rank not in found:
            lost = _lost_pair(groups, graph, dumps, rank, askers - roots.where.keys())
            if lost is not None:
                found[rank], roots.calls[rank] = lost
    if not found and not roots.where:
        found = _idle_beside_missing(groups, graph, dumps)
    silent = all(d.backend == "gloo" and not d.p2p for d in dumps.dumps.values())
    if len(found) > 1 and silent and not any(g.mixed for g in groups):
        found = _closest(groups, found, mesh, roots)
    return found


def _lost_pair(
    groups: list[Group], graph: Graph, dumps: DumpSet, rank: int, askers: set[int]
) -> tuple[tuple[int, int], Signature] | None:
    """Find the oldest send or receive that others posted towards `rank` and it never met."""
    best: tuple[int, int, int, Signature] | None = None
    for asker in askers:
        dump = dumps.dumps[asker]
        for op in dump.p2p:
            tail = dump.groups[op.group]
            if tail.ranks[op.peer : op.peer + 1] != (rank,) or rank not in graph.pairs[asker]:
                continue
            number = next(i for i, g in enumerate(groups) if asker in g.rows and g.rows[asker].tail is tail)
            entry = (op.created, op.seq, number, op.call)
            best = entry if best is None else min(best, entry)
    return None if best is None else ((best[2], best[1]), best[3])


def _idle_beside_missing(groups: list[Group], graph: Graph, dumps: DumpSet) -> dict[int, tuple[int, int]]:
    """Find ranks with nothing outstanding in a stuck job some of whose dumps are missing: they stopped.

    Had they come to their next call, it would be outstanding, whether or not a rank without a dump keeps
    it from
    finishing. Those who wait for them directly may be among the ranks without a dump.
    """
    found: dict[int, tuple[int, int]] = {}
    absent = {r for h in graph.hubs for r in h.missing}
    for number, group in enumerate(groups):
        if len(group.ranks) == len(dumps.world) or absent.isdisjoint(group.ranks):
            continue
        for row in group.rows.values():
            if (
                row.enqueued >= 0
                and not row.stale
                and graph.idle(row.rank)
                and dumps.dumps[row.rank].entries + row.enqueued > 0
            ):
                known = found.get(row.rank)
                if known is None or len(groups[known[0]].ranks) > len(group.ranks):
                    found[row.rank] = (number, row.enqueued + 1)
    return found


def _closest(
    groups: list[Group], found: dict[int, tuple[int, int]], mesh: Mesh | None, roots: Roots
) -> dict[int, tuple[int, int]]:
    """Keep those the tightest groups miss: without recorded p2p (Gloo) a rank in a receive looks idle."""

    def rung(rank: int) -> int:
        group = groups[found[rank][0]]
        dims = mesh.dims_of(group.ranks) if mesh is not None else None
        place = {"tp": 0, "cp": 1, "pp": 2, "dp": 3}
        return max((place.get(d, 4) for d in dims), default=4) if dims else 4

    best = min(rung(r) for r in found)
    kept = {r: w for r, w in found.items() if rung(r) == best}
    if len(kept) < len(found):
        roots.notes.append(
            "p2p is not recorded: idle ranks that only wider groups miss may wait in a receive"
        )
    return kept


def _unstarted(groups: list[Group], graph: Graph, dumps: DumpSet, roots: Roots) -> None:
    """Blame devices that have not begun a call which others began, with nothing else to wait for."""
    for rank, hubs in graph.unstarted.items():
        at = earliest(groups, graph, sorted(graph.waits[rank]), rank)
        if at not in hubs:  # something it issued before is outstanding: it may wait there
            continue
        hub = graph.hubs[at]
        own = [graph.hubs[h] for h in graph.waits[rank]]
        began = any(groups[h.group].rows[rank].state(h.seq) == STARTED for h in own)
        issued = groups[hub.group].rows[rank].created(hub.seq)
        before = any(
            issued is None or p.created < issued or p.state == STARTED for p in dumps.dumps[rank].p2p
        )
        if not began and not before:
            roots.where[rank] = ("device_stalled", hub.group, hub.seq)


def _missing(graph: Graph, dumps: DumpSet, roots: Roots) -> None:
    """Blame a rank without a dump, or with too old a one, if it alone explains what nobody present explains."""
    fits: list[set[int]] = []
    place: dict[int, tuple[int, int]] = {}
    for at in graph.hubs:
        unseen = [*at.missing, *(r for r in at.unknown if r in graph.stale)]
        if at.behind or at.done or not unseen:
            continue
        fits.append({*at.missing, *at.unknown})
        if len(fits[-1]) == 1:
            place.setdefault(unseen[0], (at.group, at.seq))
    fits.extend({rank} for rank in graph.awaited if rank not in dumps.dumps or rank in graph.stale)
    if not fits:
        return
    common = set.intersection(*fits)
    if len(common) == 1:
        (rank,) = common
        if rank in place and (rank not in dumps.dumps or rank in graph.stale):
            dump = dumps.dumps.get(rank)
            kind: CulpritKind = "missing_dump" if dump is None or dump.truncated else "host_stalled"
            roots.where[rank] = (kind, *place[rank])
            return
    names = ", ".join(str(r) for r in sorted(set().union(*fits))[:16])
    roots.doubts.append(
        f"no rank that left a dump explains it; one of ranks {names} may, and nothing tells which"
    )


def earliest(groups: list[Group], graph: Graph, hubs: Sequence[int], rank: int | None = None) -> int:
    """Give the hub whose call was issued first (by `rank`, else by who waits), else the smallest group's."""

    def key(at: int) -> tuple[float, int, int]:
        hub = graph.hubs[at]
        group = groups[hub.group]
        askers = [rank] if rank is not None else hub.waiting
        times = [t for r in askers if (t := group.rows[r].created(hub.seq)) is not None]
        return min(times, default=float("inf")), len(group.ranks), at

    return min(hubs, key=key)
