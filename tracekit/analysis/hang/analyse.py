"""Who never came: from dumps to one verdict.

Certain culprits are, in this order: members whose call does not match the others', ranks whose own device
has not done what its peers finished, and ranks that others wait for while nothing of their own is
outstanding. Where no rank present explains the standstill, a single rank without a dump may; where nothing
does, the answer is inconclusive and says why. The chain: `hang_model` → `hang_graph` → `hang_mismatch` →
here → `report.hang`.
"""

from collections.abc import Sequence

from tracekit.analysis.hang.call_order import Item, first_of
from tracekit.analysis.hang.culprits import Roots
from tracekit.analysis.hang.describe import Describer, mesh_of
from tracekit.analysis.hang.groups import Group, build
from tracekit.analysis.hang.late import late_ranks
from tracekit.analysis.hang.stale import judged
from tracekit.analysis.hang.wait_graph import Graph, build_graph
from tracekit.dumps.load import DumpSet
from tracekit.findings import Quality, RankCoverage
from tracekit.findings.hang import Culprit, HangFinding, HangVerdict


def analyse(
    dumps: DumpSet, mesh: dict[str, int] | None = None, order: Sequence[str] | None = None
) -> HangFinding:
    """Give the verdict on a set of dumps.

    `mesh` and `order` override what the groups tell; MeshError where they do not fit.
    """
    groups = build(dumps)
    layout, finding, notes = mesh_of(groups, dumps, mesh, order)
    quality = [*dumps.quality, *late_ranks(groups)]
    if any(g.guessed for g in groups):
        quality.append(
            Quality(
                "unknown_members", detail="pg_config lists no members: taken as the ranks that use the name"
            )
        )
    graph, roots, old = judged(groups, build_graph(groups, dumps), dumps, layout)
    describe = Describer(groups, graph, dumps, layout)
    missing = tuple(r for r in dumps.world if r not in dumps.dumps)
    culprits = tuple(
        describe.culprit(r, *roots.where[r], roots.sides.get(r), roots.calls.get(r))
        for r in sorted(roots.where)
    )
    verdict, reason = _verdict(groups, graph, roots, culprits, dumps, describe, missing)
    first = describe.first(culprits)
    return HangFinding(
        ranks=RankCoverage(len(dumps.world), len(dumps.dumps), missing, dumps.rejected),
        mesh=finding,
        verdict=verdict,
        reason=reason,
        culprits=culprits,
        first_group=first,
        victims=tuple(sorted(graph.stuck - set(roots.where))) if culprits else (),
        quality=(*quality, *old),
        groups=describe.frontiers(),
        last_done=describe.last_done(),
        notes=(*notes, *roots.notes),
    )


def _verdict(
    groups: list[Group],
    graph: Graph,
    roots: Roots,
    culprits: tuple[Culprit, ...],
    dumps: DumpSet,
    describe: Describer,
    missing: tuple[int, ...],
) -> tuple[HangVerdict, str]:
    if graph.moving:
        number, seq, done, not_issued = graph.moving[0]
        return "none", (
            f"the job was moving: rank {done} had finished call {seq} of group {groups[number].name}, "
            f"which the earlier dump of rank {not_issued} has not issued"
        )
    if not graph.stuck:
        if not any(d.entries or d.has_status for d in dumps.dumps.values()):
            return (
                "inconclusive",
                "the dumps hold no calls at all; was the flight recorder on (TORCH_FR_BUFFER_SIZE)?",
            )
        left = f"; {len(missing)} ranks left no dump" if missing else ""
        return "none", f"no call is outstanding on any of {len(dumps.dumps)} ranks{left}"
    if culprits:
        verdict: HangVerdict = "mismatch" if all(c.kind == "mismatched_call" for c in culprits) else "hang"
        return verdict, describe.sentence(culprits)
    if roots.doubts:
        return "inconclusive", roots.doubts[0]
    flying = [Item(h.group, h.seq) for h in graph.hubs if h.in_flight]
    if flying:
        first = first_of(groups, flying)
        group = groups[first.group]
        return "inconclusive", (
            f"all {len(group.ranks)} members of group {group.name} ({group.desc}) issued call {first.seq} and "
            "none has finished it: the network or a device is stuck, or the job moves; with start times recorded "
            "(TORCH_NCCL_ENABLE_TIMING=1) the dumps would tell which device never began it"
        )
    return "inconclusive", "every rank that others wait for waits itself; nothing tells who stopped first"
