"""Calls that read as done because a time-out ended them: they are taken back, so that they count as outstanding.

A time-out aborts a rank's communicators, and their kernels end. A dump written afterwards shows all its outstanding
calls as completed. The same call may be aborted on some members and outstanding in the earlier dumps of others. Part of
`groups`.
"""

from collections.abc import Mapping

from tracekit.analysis.hang.channels import same_group
from tracekit.analysis.hang.frontier import Frontier, Group
from tracekit.dumps.fields import p2p_ends
from tracekit.dumps.rank_dump import DONE, P2P, STARTED, RankDump


def undo_aborts(group: Group) -> None:
    """Take back, in place, the ends of calls that came as late as a time-out and that no member saw come in time.

    A watchdog that has stopped finds the end of a call as late; its peers then saw it in time. Where a later one of
    the rank's calls ended in time nowhere, its device did not finish the calls before it either.
    """
    in_time = max(map(_done_in_time, group.frontiers.values()), default=-1)
    for frontier in group.frontiers.values():
        first = frontier.tail.ended_late
        if first < 0 or frontier.completed < first or in_time >= frontier.completed:
            continue
        frontier.completed = first - 1
        tail = frontier.tail
        tail.state[(tail.seq >= first) & (tail.state == DONE)] = STARTED


def undo_aborted_messages(dumps: Mapping[int, RankDump]) -> None:
    """Take back, in place, the ends of messages that came as late as a time-out, unless the other end came in time."""
    taken = {
        rank: [op for op in dump.aborted if not _met_in_time(dumps, dump, op)]
        for rank, dump in dumps.items()
        if dump.aborted
    }
    for rank, ops in taken.items():
        dumps[rank].p2p = sorted([*dumps[rank].p2p, *ops], key=lambda op: op.created)
        dumps[rank].aborted = []


def end_received_messages(dumps: Mapping[int, RankDump]) -> None:
    """Take out, in place, Gloo's outstanding sends that the other end has received: their ends often go unnoted."""
    whole = {
        rank
        for rank, dump in dumps.items()
        if dump.backend == "gloo" and not (dump.wrapped or dump.malformed)
    }
    kept = {
        rank: [op for op in dumps[rank].p2p if not (op.send and _met_in_time(dumps, dumps[rank], op))]
        for rank in whole
    }
    for rank, ops in kept.items():
        dumps[rank].p2p = ops


def _met_in_time(dumps: Mapping[int, RankDump], dump: RankDump, op: P2P) -> bool:
    """Return whether the other end of a message is done and did not end late.

    If rings have lost older messages, their places are unknown. A peer that waits for another message of the rank has
    then finished this one.
    """
    members = dump.groups[op.group].ranks
    if max(op.peer, op.me) >= len(members) or members[op.peer] not in dumps:
        return False
    peer = dumps[members[op.peer]]
    group = same_group(dump, op.group, peer)
    if group is None:
        return False
    theirs = [o for o in _unended(peer) if (o.group, o.me, o.peer) == (group, op.peer, op.me)]
    if any(d.wrapped or d.malformed for d in (dump, peer)):
        mine = [o for o in _unended(dump) if (o.group, o.me, o.peer) == (op.group, op.me, op.peer)]
        return any(sum(o.send == s for o in theirs) > sum(o.send != s for o in mine) for s in (True, False))
    log = peer.messages
    made = any(
        (log.group[at], log.nth[at], p2p_ends(name)) == (group, op.nth, (not op.send, op.peer, op.me))
        for at, name in enumerate(log.names)
    )
    return made and not any((o.send, o.nth) == (not op.send, op.nth) for o in theirs)


def _unended(dump: RankDump) -> list[P2P]:
    return [*dump.p2p, *dump.aborted]


def _done_in_time(frontier: Frontier) -> int:
    """Give the last call of a member that is done and did not end late; -1 where none is known."""
    first = frontier.tail.ended_late
    return frontier.completed if first < 0 else min(frontier.completed, first - 1)
