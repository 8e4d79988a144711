"""Certain culprits: the ranks from which all waiting starts, each with the call where it failed.

In this order: members whose call does not match the others', ranks whose own device has not done what its peers
finished, and ranks that others wait for while nothing of their own is outstanding; then, where no rank present
explains the standstill, a single rank without a dump. Fourth step of `hang`.
"""

from collections import defaultdict
from dataclasses import dataclass, field

from tracekit.analysis.hang.absent import Absent
from tracekit.analysis.hang.call_order import Item, first_lacking, first_wait
from tracekit.analysis.hang.chains import all_explained
from tracekit.analysis.hang.circles import left_out, out_of_step
from tracekit.analysis.hang.groups import Group
from tracekit.analysis.hang.messages import lost_message, unlike_messages
from tracekit.analysis.hang.mismatch import Mismatch, mismatches
from tracekit.analysis.hang.wait_graph import Graph
from tracekit.dumps.dump import STARTED, Signature
from tracekit.dumps.load import DumpSet
from tracekit.findings.hang import CulpritKind
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
            where = (
                f"group {group.name}"
                if all(r in group.ranks for side in mismatch.sides.values() for r in side)
                else f"groups like {group.name}"
            )
            roots.doubts.append(f"ranks {names} call differently in {where} and nothing tells who is right")
        for rank in mismatch.odd:
            kind: CulpritKind = "host_stalled" if mismatch.skipped else "mismatched_call"
            roots.where.setdefault(rank, (kind, mismatch.group, mismatch.seq))
            roots.sides.setdefault(rank, mismatch)
    disputed = {(m.group, m.seq) for m in roots.sides.values()}
    excused = _messages(groups, dumps, roots)
    for rank, waits in graph.device.items():
        if rank in excused:
            continue
        # what a member called differently may end on one side only: no device is at fault then
        hubs = [h for h in waits if (graph.hubs[h].group, graph.hubs[h].seq) not in disputed]
        if not hubs:
            continue
        if dumps.dumps[rank].backend == "gloo":  # there is no device to stall
            if rank in graph.behind_in:
                late = _first_lacking(groups, graph, dumps, rank)
                roots.where.setdefault(rank, ("host_stalled", late.group, late.seq))
            continue
        at = graph.hubs[first_wait(groups, graph, hubs, rank)]
        roots.where.setdefault(rank, ("device_stalled", at.group, at.seq))
    host = _hosts(groups, graph, dumps, mesh, roots)
    for rank, (number, seq) in host.items():
        if rank not in excused:
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
        _missing(groups, graph, dumps, roots)
    return roots


def _messages(groups: list[Group], dumps: DumpSet, roots: Roots) -> set[int]:
    """Take ranks that send or receive another size than meets it; give both ends, of which one is a victim."""
    excused: set[int] = set()
    for unlike in unlike_messages(groups, dumps):
        excused.update(unlike.ends)
        mismatch = unlike.mismatch
        if unlike.odd is None:
            names = " and ".join(str(r) for r in unlike.ends)
            roots.doubts.append(
                f"ranks {names} send and receive different sizes in group {groups[mismatch.group].name} and nothing "
                "tells who is right"
            )
            continue
        roots.where.setdefault(unlike.odd, ("mismatched_call", mismatch.group, mismatch.seq))
        roots.sides.setdefault(unlike.odd, mismatch)
        roots.calls.setdefault(unlike.odd, mismatch.calls[unlike.odd])
    return excused


def _hosts(
    groups: list[Group], graph: Graph, dumps: DumpSet, mesh: Mesh | None, roots: Roots
) -> dict[int, tuple[int, int]]:
    """Ranks that others wait for while they wait for nobody."""
    found: dict[int, tuple[int, int]] = {}
    for rank in sorted(graph.behind_in.keys() | graph.awaited.keys()):
        if rank not in dumps.dumps or not graph.idle(rank) or rank in roots.where:
            continue
        lost = None
        if rank in graph.awaited and rank not in graph.stale:
            lost = lost_message(groups, graph, dumps, rank, graph.awaited[rank] - roots.where.keys())
        if rank in graph.behind_in:
            first = _first_lacking(groups, graph, dumps, rank, None if lost is None else lost[0])
            found[rank] = (first.group, first.seq)
            lost = lost if first.rank >= 0 else None
        if lost is not None:
            found[rank], roots.calls[rank] = (lost[0].group, lost[0].seq), lost[1]
    if not found and not roots.where:
        found = _idle_beside_missing(groups, graph, dumps)
    silent = all(d.backend == "gloo" and not d.p2p for d in dumps.dumps.values())
    if len(found) > 1 and silent and not any(g.mixed for g in groups):
        found = _closest(groups, found, mesh, roots)
    return found


def _first_lacking(
    groups: list[Group], graph: Graph, dumps: DumpSet, rank: int, message: Item | None = None
) -> Item:
    """Give the first of the calls that others wait in and `rank` did not make, the message among them."""
    items = [Item(graph.hubs[h].group, graph.hubs[h].seq) for h in graph.behind_in[rank]]
    return first_lacking(groups, dumps, rank, items if message is None else [*items, message])


def _idle_beside_missing(groups: list[Group], graph: Graph, dumps: DumpSet) -> dict[int, tuple[int, int]]:
    """Find ranks with nothing outstanding in a stuck job some of whose dumps are missing: they stopped.

    Had they come to their next call, it would be outstanding, whether or not a rank without a dump keeps
    it from
    finishing. Those who wait for them directly may be among the ranks without a dump. Where most ranks have nothing
    outstanding the job has ended for them.
    """
    found: dict[int, tuple[int, int]] = {}
    if sum(graph.idle(r) for r in dumps.dumps) > len(graph.stuck):
        return found
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
        at = first_wait(groups, graph, sorted(graph.waits[rank]), rank)
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


def _missing(groups: list[Group], graph: Graph, dumps: DumpSet, roots: Roots) -> None:
    """Blame a rank without a dump, or with too old a one, if it alone explains what nobody present explains."""
    fits: list[set[int]] = []
    places: dict[int, list[Item]] = defaultdict(list)
    for at in graph.hubs:
        unseen = [*at.missing, *(r for r in at.unknown if r in graph.stale)]
        if at.behind or at.done or not unseen:
            continue
        fits.append({*at.missing, *at.unknown})
        if len(fits[-1]) == 1:
            places[unseen[0]].append(Item(at.group, at.seq))
    fits.extend({rank} for rank in graph.awaited if rank not in dumps.dumps or rank in graph.stale)
    if not fits:
        return
    common = set.intersection(*fits)
    if len(common) == 1:
        _only(groups, graph, dumps, roots, min(common), places[min(common)])
        return
    names = ", ".join(str(r) for r in sorted(set().union(*fits))[:16])
    roots.doubts.append(
        f"no rank that left a dump explains it; one of ranks {names} may, and nothing tells which"
    )


def _only(
    groups: list[Group], graph: Graph, dumps: DumpSet, roots: Roots, rank: int, places: list[Item]
) -> None:
    """Blame the only rank without a whole dump that fits, if all waiting starts from it and nothing speaks against."""
    seen = Absent(groups, dumps, rank)
    if passed := seen.passed():
        roots.skipped(passed)
        return
    against = seen.objection(places)
    if against is None:
        absent = set(dumps.world) - dumps.dumps.keys()
        fits = bool(places) and all_explained(groups, graph, dumps, {rank, *absent})
        # where several files are cut, that tells nothing
        cut = {r for r, d in dumps.dumps.items() if d.truncated}
        if fits and (rank not in dumps.dumps or (rank in graph.stale and cut <= {rank})):
            dump = dumps.dumps.get(rank)
            kind: CulpritKind = "missing_dump" if dump is None or dump.truncated else "host_stalled"
            first = first_lacking(groups, dumps, rank, places)
            roots.where[rank] = (kind, first.group, first.seq)
            return
        against = "some of the waiting does not start from it; nothing tells who stopped first"
    roots.doubts.append(f"rank {rank} left no whole dump, but {against}")
