"""Devices that have not done a call which their peers have done, or have not begun a call which others began."""

from collections import defaultdict
from collections.abc import Iterator
from typing import Final, NamedTuple

from tracekit.analysis.hang.program_order import first_missed, oldest_wait
from tracekit.analysis.hang.rules.rule import Accusation, Found
from tracekit.analysis.hang.scene import Scene
from tracekit.analysis.hang.wait_graph import PendingCall
from tracekit.dumps.calls import Signature
from tracekit.dumps.rank_dump import SCHEDULED, STARTED

_MAY_MOVE: Final = (
    "a link inside the group is stuck, or the job moves; dump a second time, to see whether it does"
)


def stalled_devices(scene: Scene, known: Found) -> Found:
    """Return the ranks with a device that has not done a call that every member issued and some have done.

    Looks for: ranks with such a call in the wait-for graph, at the call in which each has waited longest.
    Excuses: calls in dispute, which may end on one side only; calls that more members wait in than have done, since a
    dead link leaves most of a ring waiting, and so do dumps of a live job; if a device lacks only one such call, also
    calls that as many wait in as have done: in a pair the dead end of a link is unknown; members of one group that lag
    at different calls, since a rank that lets peers finish the later call has done the earlier; ends of different
    messages; and on Gloo, which has no device, every rank that is not behind in another call (one that is
    behind has a stalled host).
    Returns: `device_stalled`; on Gloo `host_stalled`; a doubt where most members of a call wait in it.
    """
    graph = scene.graph
    culprits: dict[int, Accusation] = {}
    shared = _of_unlike_times(scene)
    for rank, waits in graph.device.items():
        pending = [
            at for at in waits if (graph.pending[at].group, graph.pending[at].seq) not in known.disputed
        ]
        once = sum(_lacked(scene, rank, graph.pending[at]) for at in pending) == 1
        shared.update(at for at in pending if _most_wait(graph.pending[at], once=once))
        pending = [at for at in pending if at not in shared]
        if rank in known.excused or not pending:
            continue
        if scene.dumps[rank].backend != "gloo":
            call = graph.pending[oldest_wait(scene, pending, rank)]
            culprits[rank] = Accusation("device_stalled", call.group, call.seq)
        elif rank in graph.behind_in:
            missed = first_missed(scene, rank)
            culprits[rank] = Accusation("host_stalled", missed.group, missed.seq)
    doubts = () if culprits or not shared else (_doubt(scene, graph.pending[min(shared)]),)
    waiting = frozenset(r for at in shared for r in graph.pending[at].waiting)
    return Found(culprits, doubts=doubts, candidates=waiting if doubts else frozenset())


def _of_unlike_times(scene: Scene) -> set[int]:
    """Give the pending calls at which members of one group lag, where these are several: their states differ in time.

    A device makes the calls of a group in their order, so that of two of its members only the later can be stuck.
    """
    lags: dict[int, set[int]] = defaultdict(set)
    for waits in scene.graph.device.values():
        for at in waits:
            lags[scene.graph.pending[at].group].add(at)
    return {at for calls in lags.values() if len(calls) > 1 for at in calls}


def _lacked(scene: Scene, rank: int, call: PendingCall) -> int:
    """Count the calls of this group, from this one on, that a rank issued and peers have done."""
    frontiers = scene.groups[call.group].frontiers
    furthest = max(frontiers[peer].proven for peer in call.done)
    return min(furthest, frontiers[rank].enqueued) - call.seq + 1


def _most_wait(call: PendingCall, *, once: bool) -> bool:
    """Whether more members (`once`: as many) wait in a call than may have done it; one without a dump may have."""
    return len(call.waiting) + once > len(call.done) + len(call.missing)


def _doubt(scene: Scene, call: PendingCall) -> str:
    """Say that too many members have not finished a call to blame their devices."""
    group = scene.groups[call.group]
    return (
        f"{len(call.done)} of {len(group.ranks)} members of group {group.name} ({group.desc}) finished call {call.seq} "
        f"and {len(call.waiting)} have not: "
        + ("a link inside the group is stuck, or a device of theirs" if scene.still else _MAY_MOVE)
    )


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
