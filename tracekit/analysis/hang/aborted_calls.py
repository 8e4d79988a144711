"""Calls that read as done because a time-out ended them: they are taken back, so that they count as outstanding.

A time-out aborts a rank's communicators, and their kernels end. A dump written afterwards shows all its outstanding
calls as completed. The same call may be aborted on some members and outstanding in the earlier dumps of others. Part of
`groups`.
"""

from tracekit.analysis.hang.frontier import Frontier, Group
from tracekit.dumps.rank_dump import DONE, STARTED


def undo_aborts(group: Group) -> None:
    """Take back, in place, the ends of calls that came as late as a time-out and that no member saw come in time.

    A watchdog that has stopped finds the end of a call as late; its peers then saw it in time.
    """
    in_time = {rank: _done_in_time(frontier) for rank, frontier in group.frontiers.items()}
    for frontier in group.frontiers.values():
        first = frontier.tail.ended_late
        if first < 0 or frontier.completed < first or max(in_time.values()) >= first:
            continue
        frontier.completed = first - 1
        tail = frontier.tail
        tail.state[(tail.seq >= first) & (tail.state == DONE)] = STARTED


def _done_in_time(frontier: Frontier) -> int:
    """Give the last call of a member that is done and did not end late; -1 where none is known."""
    first = frontier.tail.ended_late
    return frontier.completed if first < 0 else min(frontier.completed, first - 1)
