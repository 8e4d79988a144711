"""Devices that have not done a call which their peers have done."""

from tracekit.analysis.hang.program_order import first_missed, oldest_wait
from tracekit.analysis.hang.rules.rule import Accusation, Found
from tracekit.analysis.hang.scene import Scene


def stalled_devices(scene: Scene, known: Found) -> Found:
    """Give the ranks whose own device has not done a call that every member issued and some have done.

    Looks for: ranks with such a call in the wait-for graph, at the call in which each has waited longest.
    Excuses: calls in dispute, which may end on one side only; ends of unlike messages; and on Gloo, which has no
    device, every rank that is not behind in another call (one that is behind has a stalled host).
    Returns: `device_stalled`; on Gloo `host_stalled`.
    """
    graph = scene.graph
    culprits: dict[int, Accusation] = {}
    for rank, waits in graph.device.items():
        pending = [
            at for at in waits if (graph.pending[at].group, graph.pending[at].seq) not in known.disputed
        ]
        if rank in known.excused or not pending:
            continue
        if scene.dumps[rank].backend != "gloo":
            call = graph.pending[oldest_wait(scene, pending, rank)]
            culprits[rank] = Accusation("device_stalled", call.group, call.seq)
        elif rank in graph.behind_in:
            missed = first_missed(scene, rank)
            culprits[rank] = Accusation("host_stalled", missed.group, missed.seq)
    return Found(culprits)
