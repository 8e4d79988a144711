"""Devices that have not begun a call which others began."""

from collections.abc import Iterator
from typing import NamedTuple

from tracekit.analysis.hang.rules.rule import Accusation, Found
from tracekit.analysis.hang.scene import Scene
from tracekit.analysis.hang.wait_graph import PendingCall
from tracekit.dumps.calls import Signature
from tracekit.dumps.rank_dump import SCHEDULED, STARTED


class _Item(NamedTuple):
    """An outstanding call of a rank: when it was issued, its state, and what it would be accused of."""

    created: int
    state: int
    accusation: Accusation
    call: PendingCall | None  # None for a send or receive
    peer: int  # of a message, else -1


def unstarted_devices(scene: Scene, _known: Found) -> Found:
    """Return the ranks with a device that has not begun a call that others' devices began.

    Looks for: the oldest outstanding call or message of a rank, if its device has not begun it, and the other end or as
    many other members have; only dumps with start times show this.
    Excuses: ranks with anything outstanding that has begun: the device may wait there; ranks with outstanding calls
    that the evidence does not show, because rings have lost them or nothing gives the members of their group.
    Returns: `device_stalled`.
    """
    timed = {rank for rank, dump in scene.dumps.items() if dump.timed}
    if 2 * len(timed) >= len(scene.dumps):  # the job's environment switches start times on, for all ranks
        timed = set(scene.dumps)
    oldest = {rank: item for rank in sorted(timed) if (item := _oldest(scene, rank)) is not None}
    culprits = {
        rank: item.accusation
        for rank, item in oldest.items()
        if item.state == SCHEDULED and _others_began(scene, item, timed)
    }
    return Found(culprits)


def _oldest(scene: Scene, rank: int) -> _Item | None:
    """Give the oldest outstanding item of a rank; None where its ring may have lost it or any of them has begun."""
    if scene.dumps[rank].cut or rank in scene.graph.busy:
        return None
    items = list(_items(scene, rank))
    if not items or any(item.created <= 0 for item in items):
        return None
    oldest = min(items, key=lambda item: (item.created, item.accusation.group, item.accusation.seq))
    begun = any(item.state == STARTED for item in items)
    return None if begun and oldest.state == SCHEDULED else oldest


def _items(scene: Scene, rank: int) -> Iterator[_Item]:
    """Yield the outstanding calls of a rank: of each group the first, and its messages."""
    for at in scene.graph.waits.get(rank, ()):
        call = scene.graph.pending[at]
        frontier = scene.groups[call.group].frontiers[rank]
        state = frontier.state(call.seq)
        accused = Accusation("device_stalled", call.group, call.seq)
        yield _Item(frontier.created(call.seq) or 0, SCHEDULED if state is None else state, accused, call, -1)
    dump = scene.dumps[rank]
    own = (n for alike in scene.places.get(rank, {}).values() for n in alike)
    numbers = {id(scene.groups[number].frontiers[rank].tail): number for number in own}
    for op in dump.p2p:
        tail = dump.groups[op.group]
        number = numbers.get(id(tail))
        if number is not None and op.peer < len(tail.ranks):
            named = Signature(op.call.op, *op.call[1:])
            accused = Accusation("device_stalled", number, op.seq, call=named)
            yield _Item(op.created, op.state, accused, None, tail.ranks[op.peer])


def _others_began(scene: Scene, item: _Item, timed: set[int]) -> bool:
    """Whether the other end of a message has begun something towards it, or as many members the call as have not."""
    if item.call is None:
        peer = scene.dumps.get(item.peer)
        return peer is not None and any(op.state == STARTED for op in peer.p2p)
    call = item.call
    if call.behind or call.done or not scene.graph.stale.issuperset(call.unknown):
        return False
    frontiers = scene.groups[call.group].frontiers
    states = [frontiers[rank].state(call.seq) for rank in call.waiting if rank in timed]
    return 0 < states.count(SCHEDULED) <= states.count(STARTED)
