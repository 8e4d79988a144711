"""Devices that have not begun a call which others began."""

from collections.abc import Set as AbstractSet

from tracekit.analysis.hang.program_order import oldest_wait
from tracekit.analysis.hang.rules.rule import Accusation, Found
from tracekit.analysis.hang.scene import Scene
from tracekit.dumps.rank_dump import STARTED


def unstarted_devices(scene: Scene, _known: Found) -> Found:
    """Give the ranks whose device has not begun a call that others' devices began.

    Looks for: calls that are scheduled on one rank and started on another; only dumps with start times tell.
    Excuses: ranks with anything outstanding that they issued before, or that has begun: the device may wait there.
    Returns: `device_stalled`.
    """
    culprits: dict[int, Accusation] = {}
    for rank, unstarted in scene.graph.unstarted.items():
        waits = scene.graph.waits[rank]
        at = oldest_wait(scene, sorted(waits), rank)
        if at in unstarted and not _busy_before(scene, rank, at, waits):
            call = scene.graph.pending[at]
            culprits[rank] = Accusation("device_stalled", call.group, call.seq)
    return Found(culprits)


def _busy_before(scene: Scene, rank: int, at: int, waits: AbstractSet[int]) -> bool:
    """Whether a call of `waits` has begun on this rank, or a message has, or was issued before the call `at`."""
    own = [scene.graph.pending[w] for w in waits]
    if any(scene.groups[c.group].frontiers[rank].state(c.seq) == STARTED for c in own):
        return True
    call = scene.graph.pending[at]
    issued = scene.groups[call.group].frontiers[rank].created(call.seq)
    messages = scene.dumps[rank].p2p
    return any(issued is None or op.created < issued or op.state == STARTED for op in messages)
