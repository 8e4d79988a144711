"""Ranks with nothing outstanding beside ranks without a dump: they wait for no rank, and stopped or have ended."""

from tracekit.analysis.hang.frontier import Group
from tracekit.analysis.hang.rules.rule import Accusation
from tracekit.analysis.hang.scene import Scene
from tracekit.dumps.calls import Signature
from tracekit.dumps.fields import p2p_ends


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
