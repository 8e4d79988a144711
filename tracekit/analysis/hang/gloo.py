"""Corrects frontiers of Gloo groups: its recorder notes ends that did not happen and misses ends that did.

Gloo marks a call as done when it times out or when a member dies in it, and notes no end of some calls that no thread
waits for. Part of `groups`.
"""

from tracekit.analysis.hang.agreement import synchronising, version_of
from tracekit.analysis.hang.frontier import Frontier, Group
from tracekit.dumps.rank_dump import DONE, GroupTail, RankDump


def correct_frontiers(
    group: Group, uses: list[tuple[RankDump, GroupTail]], *, member_without_dump: bool
) -> None:
    """Correct, in place, how far the members of `group` are; `uses` are the dumps that hold the group."""
    _undo_timeouts(group)
    if member_without_dump:
        _undo_resets(group, uses)
    for frontier in group.frontiers.values():
        _pass_over_unnoted(group, frontier)


def _undo_timeouts(group: Group) -> None:
    """Undo completions by timeout: Gloo marks a call as done that another member never issued."""
    known = [f.enqueued for f in group.frontiers.values() if f.enqueued >= 0]
    least = min(known, default=-1)
    for frontier in group.frontiers.values():
        if least >= 0 and frontier.completed == least + 1 and synchronising(frontier.call(least + 1)):
            frontier.completed = least


def _undo_resets(group: Group, uses: list[tuple[RankDump, GroupTail]]) -> None:
    """Undo completions by error: on Gloo a call also reads as done when a member died in it.

    The last call of a rank in a group with a member without a dump therefore counts as done only if another member
    went on after it.
    """
    furthest = max((f.enqueued for f in group.frontiers.values()), default=-1)
    for dump, tail in uses:
        frontier = group.frontiers[dump.rank]
        last = 0 <= dump.last_group < len(dump.groups) and dump.groups[dump.last_group] is tail
        last = last and dump.last_created <= (frontier.created(furthest) or 0)  # no message after it
        at_end = frontier.completed == frontier.enqueued == furthest
        if last and at_end and synchronising(frontier.call(furthest)):
            frontier.completed -= 1
            frontier.reset = True


def _pass_over_unnoted(group: Group, frontier: Frontier) -> None:
    """Count calls as done that other members have done: Gloo has no device that could lag, and some ends go unnoted.

    A call that members do not agree on may end on one side only; it is not passed over.
    """
    others = max(
        (f.completed for f in group.frontiers.values() if f is not frontier and not f.stale), default=-1
    )
    open_ = frontier.tail.seq[frontier.tail.state != DONE]
    while frontier.waiting and frontier.front <= others and synchronising(frontier.call(frontier.front)):
        calls = [c for f in group.frontiers.values() if (c := f.call(frontier.front)) is not None]
        if len({version_of(c) for c in calls}) > 1:
            break
        later = open_[open_ > frontier.front]
        frontier.completed = int(later[0]) - 1 if len(later) else frontier.enqueued
