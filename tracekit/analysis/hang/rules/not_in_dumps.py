"""Waiting that starts outside these dumps: calls lost from rings, members of another job, ranks without a dump.

Trainers that send weights to an engine make a group with its processes. Dumps number its members from 0, as if they
were ranks of the trainers, or list none. Ranks that wait for such a rank, and the rank itself, have done nothing wrong.
"""

from collections.abc import Iterator

from tracekit.analysis.hang.frontier import Group
from tracekit.analysis.hang.remedies import LONGER_RINGS, OUTSIDE
from tracekit.analysis.hang.rules.rule import Accusation, Found
from tracekit.analysis.hang.scene import Scene
from tracekit.analysis.hang.wait_chains import all_explained, unseen_waits
from tracekit.dumps.calls import Signature
from tracekit.dumps.fields import p2p_ends
from tracekit.dumps.rank_dump import GroupTail


def lost_calls(scene: Scene, _known: Found) -> Found:
    """Give the doubt that outstanding calls have fallen out of the rings.

    Looks for: dumps with an outstanding oldest entry, without a `pg_status` that would show their frontiers, or of
    ranks that send and receive (the status does not show messages).
    Excuses: every rank from the rules that follow, because these depend on calls that no ring shows.
    Returns: no culprit; a doubt that says what to record.
    """
    paired = {r for g in scene.groups if g.mixed for r in g.frontiers}
    cut = [r for r, d in scene.dumps.items() if d.cut and (not d.has_status or r in paired)]
    if not cut:
        return Found()
    doubt = f"the rings of {len(cut)} ranks have lost outstanding calls; record more ({LONGER_RINGS})"
    return Found(doubts=(doubt,))


def outside_group(scene: Scene, _known: Found) -> Found:
    """Give no culprit, but the call in which a rank waits for processes that left no dump here.

    Looks for: an outstanding call of a group that no other dump holds, though its members are not listed, or are ranks
    with dumps that list groups.
    Excuses: nothing; without effect where some waiting does not start from these ranks.
    Returns: a doubt that names the call; no rank is a candidate.
    """
    waits = dict(_waits_outside(scene))
    if not waits or not all_explained(scene, waits.keys() | unseen_waits(scene), waits.keys()):
        return Found()
    rank, tail = min(waits.items(), key=lambda one: one[0])
    return Found(doubts=(_doubt(rank, tail),), decide=OUTSIDE)


def _waits_outside(scene: Scene) -> Iterator[tuple[int, GroupTail]]:
    """Yield the ranks with such a call, and the group."""
    for rank, dump in scene.dumps.items():
        for tail in dump.groups:
            waits = 0 <= tail.entry_completed < tail.entry_enqueued
            if waits and len(tail.ranks) != 1 and _without_peers(scene, rank, tail):
                yield rank, tail


def _without_peers(scene: Scene, rank: int, tail: GroupTail) -> bool:
    """Whether every other dump that may hold the group lists its groups, and lacks this one."""
    others = [scene.dumps.get(r) for r in (tail.ranks or scene.world) if r != rank]
    return bool(others) and all(
        other is not None
        and not (other.unlisted or other.truncated)
        and any(known.ranks for known in other.groups)
        and all((known.name, known.desc) != (tail.name, tail.desc) for known in other.groups)
        for other in others
    )


def _doubt(rank: int, tail: GroupTail) -> str:
    """Return the sentence about the call that the rank has waited in longest."""
    at = int((tail.seq <= tail.entry_completed).sum())
    known = at < len(tail.calls)
    op = tail.calls[at].op.lstrip("_") if known else "call"
    place = (
        next((frame for frame in tail.stacks[at] if "/torch/" not in frame), "")
        if known and tail.stacks
        else ""
    )
    return (
        f"rank {rank} waits in {op} {tail.entry_completed + 1} of group {tail.name}{f', at {place},' if place else ''} "
        "and no other dump here holds that group: its other members are processes of another job, such as an engine"
    )


def idle_beside_missing(scene: Scene) -> dict[int, Accusation]:
    """Return idle ranks that make calls together with a rank without a dump, each accused at its next call there.

    If they had come to their next call, it would be outstanding, whether or not the other rank prevents its end. The
    ranks that wait for them directly may be among the ranks without a dump. If more ranks have nothing outstanding than
    wait, the job has ended for them: then none is returned.
    """
    found: dict[int, Accusation] = {}
    graph = scene.graph
    if len(scene.idle) > len(graph.stuck):
        return {}
    absent = {r for call in graph.pending for r in call.missing} | (graph.awaited.keys() - scene.dumps.keys())
    for number in sorted(range(len(scene.groups)), key=lambda n: len(scene.groups[n].ranks)):
        group = scene.groups[number]
        for rank in sorted(scene.idle & group.frontiers.keys() - found.keys()):
            facing = _message_partners(scene, group, rank) if group.mixed else set(group.ranks)
            narrow = group.mixed or len(group.ranks) < len(scene.world)
            accusation = _at_next_call(scene, number, rank) if narrow and facing & absent else None
            if accusation is not None:
                found[rank] = accusation
    return found


def _message_partners(scene: Scene, group: Group, rank: int) -> set[int]:
    """The ranks with which `rank` exchanged messages in this group; all members where it made none yet."""
    log, local = scene.dumps[rank].messages, _in_its_dump(scene, group, rank)
    names = {name for name, at in zip(log.names, log.group.tolist(), strict=True) if at == local}
    return {group.ranks[ends[2]] for name in names if (ends := p2p_ends(name)) is not None} or {*group.ranks}


def _in_its_dump(scene: Scene, group: Group, rank: int) -> int:
    """The index of this group in the dump of `rank`."""
    return next(i for i, tail in enumerate(scene.dumps[rank].groups) if tail is group.frontiers[rank].tail)


def _at_next_call(scene: Scene, number: int, rank: int) -> Accusation | None:
    """Return the accusation of an idle rank at its next call or message in a group; None where that is unknown."""
    group = scene.groups[number]
    if group.mixed:
        log = scene.dumps[rank].messages
        made = log.seq[log.group == _in_its_dump(scene, group, rank)]
        message = Signature("message", "", "", "", "")
        return Accusation("host_stalled", number, int(made.max(initial=0)) + 1, call=message)
    enqueued = group.frontiers[rank].enqueued
    return Accusation("host_stalled", number, enqueued + 1) if enqueued >= 0 else None
