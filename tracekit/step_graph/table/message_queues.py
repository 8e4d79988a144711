"""Which messages of an operation table ran one behind the other in both directions, as on one stream of two ranks."""

from collections import defaultdict

import numpy as np

from tracekit.step_graph.table.recording import Operation, Recording
from tracekit.thresholds.slowrank import QUEUED_NS


def message_queues(recording: Recording) -> list[list[int]]:
    """Return the messages of each rank with another rank, in order, where the times of both show one stream for them.

    On one stream no two overlap in any step, and one begins on either rank when one of the other direction ends.
    """
    ends: dict[tuple[int, int], list[int]] = defaultdict(list)
    for i, operation in enumerate(recording.operations):
        if operation.meeting is not None and _sends(operation) is not None:
            ends[operation.meeting].append(i)
    between: dict[tuple[int, ...], dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    for both in ends.values():
        ranks = tuple(sorted(recording.operations[i].rank for i in both))
        for i in both:
            between[ranks][recording.operations[i].rank].append(i)
    queues = []
    for by_rank in between.values():
        rows = [np.array(mine)[np.argsort(recording.start[mine, 0])] for mine in by_rank.values()]
        idle = [recording.start[mine[1:]] - recording.end[mine[:-1]] for mine in rows]
        turns = [np.diff([_sends(recording.operations[i]) is True for i in mine]) != 0 for mine in rows]
        apart = len(rows) > 1 and all((gap >= -QUEUED_NS).all() for gap in idle)
        if apart and any((gap[turn] <= QUEUED_NS).any() for gap, turn in zip(idle, turns, strict=True)):
            queues += [mine.tolist() for mine in rows]
    return queues


def _sends(operation: Operation) -> bool | None:
    """Return whether an operation sends a message, or receives one; None for any other."""
    return {"send": True, "recv": False}.get(operation.name.rpartition("-")[2])
