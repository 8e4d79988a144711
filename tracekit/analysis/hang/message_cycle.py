"""Ranks that wait for each other in messages: all send first, or all receive first."""

from typing import NamedTuple

from tracekit.analysis.hang.scene import Scene
from tracekit.analysis.hang.wait_chains import first_waits


class MessageCycle(NamedTuple):
    """Ranks that wait in a circle, each first of all in a send to the next (or in a receive from it)."""

    ranks: tuple[int, ...]
    sends: bool


def message_cycle(scene: Scene) -> MessageCycle | None:
    """Return ranks that wait in a circle, each in messages of one direction with one peer; None without a circle.

    Gloo's sends are no waits: they stay outstanding until the program asks for their end.
    """
    facing: dict[int, tuple[int, bool]] = {}
    for rank in sorted(scene.graph.stuck & scene.dumps.keys()):
        if scene.dumps[rank].backend == "gloo":
            continue
        made = _first_messages(scene, rank)
        if len(made) == 1:
            facing[rank] = made.pop()
    for start in facing:
        path = [start]
        while (found := facing.get(path[-1])) is not None and found[0] not in path:
            path.append(found[0])
        if found is not None and found[0] == start and len({facing[rank][1] for rank in path}) == 1:
            return MessageCycle(tuple(path), facing[start][1])
    return None


def _first_messages(scene: Scene, rank: int) -> set[tuple[int, bool]]:
    """Return (peer, whether it is a send) of all messages in the batch that a rank waits in first."""
    dump = scene.dumps[rank]
    peers = {wait.at for wait in first_waits(scene, rank).waits if wait.message}
    ops = [(dump.groups[op.group].ranks[op.peer : op.peer + 1], op) for op in dump.p2p]
    towards = [(ends[0], op) for ends, op in ops if ends and ends[0] in peers]
    first = min((op.created for _, op in towards), default=0)
    batches = {(op.group, op.seq) for _, op in towards if op.created == first}
    return {(peer, op.send) for peer, op in towards if (op.group, op.seq) in batches}
