"""Devices that have not done a call which their peers have done."""

from collections import defaultdict
from typing import Final

from tracekit.analysis.hang.program_order import first_missed, oldest_wait
from tracekit.analysis.hang.rules.rule import Accusation, Found
from tracekit.analysis.hang.scene import Scene
from tracekit.analysis.hang.wait_graph import PendingCall

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
