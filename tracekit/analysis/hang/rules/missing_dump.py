"""A rank without a dump, or with too old a one, that alone explains waiting which no rank present explains."""

from collections import defaultdict

from tracekit.analysis.hang.absent_rank import AbsentRank, Objection
from tracekit.analysis.hang.program_order import CallId, first_lacking
from tracekit.analysis.hang.rules.rule import Accusation, Found
from tracekit.analysis.hang.rules.skipped_collective import accuse_skipped
from tracekit.analysis.hang.scene import Scene
from tracekit.analysis.hang.wait_chains import all_explained
from tracekit.dumps.calls import Signature
from tracekit.findings.hang import CulpritKind
from tracekit.thresholds.hang import NAMED_IN_DOUBT


def missing_dump(scene: Scene, _known: Found) -> Found:
    """Return the one rank without a whole dump that every call waits for if no rank with a dump delays it.

    Looks for: pending calls with members that left no dump, or an old one; the rank that is common to all of them.
    Excuses: that rank, if a partner of it left a call out (the partner is named), if the dumps speak against it, or
    if some waiting does not start from it; and all such ranks, if several fit.
    Returns: `missing_dump`, or `host_stalled` if its old dump is whole; else a doubt that names the ranks that fit.
    """
    fits, places = _fitting(scene)
    if not fits:
        return Found()
    if len(scene.dumps) == 1:
        return _one_dump(scene, frozenset().union(*fits))
    common = set.intersection(*fits)
    if len(common) != 1:
        names = ", ".join(str(r) for r in sorted(set().union(*fits))[:NAMED_IN_DOUBT])
        doubt = (
            f"no rank that left a dump explains it; one of ranks {names} may, and the dumps do not show which"
        )
        return Found(doubts=(doubt,), candidates=frozenset().union(*fits))
    rank = min(common)
    absent = AbsentRank(scene, rank)
    if passed := absent.partners_that_skipped():
        return accuse_skipped(scene, passed)
    objection = _unlisted(scene, rank, places[rank]) or absent.objection(places[rank])
    if objection is None:
        accusation = _accuse(scene, rank, places[rank])
        if accusation is not None:
            return Found({rank: accusation})
        objection = Objection(
            "some ranks wait without depending on it; the dumps do not show which rank stopped first"
        )
    return Found(
        doubts=(f"rank {rank} left no whole dump, but {objection.text}",), candidates=objection.ranks
    )


def _unlisted(scene: Scene, rank: int, places: list[CallId]) -> Objection | None:
    """Return the objection that no dump lists the members of these groups: more ranks than this one may be missing."""
    groups = [scene.groups[call.group] for call in places]
    listed = any(f.tail.ranks for group in groups for f in group.frontiers.values())
    if listed or not groups:
        return None
    text = "these dumps list no members of groups, so that further ranks may be missing; add the dumps of all ranks"
    return Objection(text, frozenset({rank}))


def _one_dump(scene: Scene, absent: frozenset[int]) -> Found:
    """Give the doubt of a single dump: its rank may have made a call that the others never make."""
    (rank,) = scene.dumps
    doubt = (
        f"either the ranks without a dump did not come to the call in which rank {rank} waits, or only this rank makes "
        "that call"
    )
    return Found(doubts=(doubt,), candidates=absent | {rank})


def _fitting(scene: Scene) -> tuple[list[set[int]], dict[int, list[CallId]]]:
    """Return the ranks that fit each call that no rank with a dump delays, and the calls that only one rank fits."""
    fits: list[set[int]] = []
    places: dict[int, list[CallId]] = defaultdict(list)
    stale = scene.graph.stale
    for call in scene.graph.pending:
        unseen = [*call.missing, *(r for r in call.unknown if r in stale)]
        if call.behind or call.done or not unseen:
            continue
        fits.append({*call.missing, *call.unknown})
        if len(fits[-1]) == 1:
            places[unseen[0]].append(CallId(call.group, call.seq))
    fits.extend({rank} for rank in scene.graph.awaited if rank not in scene.dumps or rank in stale)
    return fits, places


def _accuse(scene: Scene, rank: int, places: list[CallId]) -> Accusation | None:
    """Accuse the only rank that fits, at the first call it lacks; None where some waiting does not start from it."""
    absent = set(scene.world) - scene.dumps.keys()
    if not all_explained(scene, {rank, *absent}):
        return None
    # where several files are cut, an old dump tells nothing
    cut = {r for r, d in scene.dumps.items() if d.truncated}
    if rank in scene.dumps and not (rank in scene.graph.stale and cut <= {rank}):
        return None
    dump = scene.dumps.get(rank)
    if dump is not None and dump.damaged_end and not dump.truncated:
        return None
    kind: CulpritKind = "missing_dump" if dump is None or dump.truncated else "host_stalled"
    if not places:
        return _at_message(scene, rank, kind)
    first = first_lacking(scene, rank, places)
    return Accusation(kind, first.group, first.seq)


def _at_message(scene: Scene, rank: int, kind: CulpritKind) -> Accusation | None:
    """Accuse a rank at the oldest message that another one still receives from it; None without one."""
    found = [
        (op.created, waiter, op)
        for waiter in sorted(scene.graph.awaited.get(rank, ()))
        for op in scene.dumps[waiter].p2p
        if not op.send and scene.dumps[waiter].groups[op.group].ranks[op.peer : op.peer + 1] == (rank,)
    ]
    if not found:
        return None
    _, waiter, op = min(found, key=lambda one: one[:2])
    tail = scene.dumps[waiter].groups[op.group]
    own = [n for n in scene.memberships[waiter] if scene.groups[n].frontiers[waiter].tail is tail]
    return Accusation(kind, own[0], op.seq, call=Signature("send", "", "", "", "")) if own else None
