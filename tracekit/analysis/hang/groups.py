"""Process groups across ranks, and how far each member is in each; the wait-for graph is built on them.

Groups are identified by their members (names repeat on other ranks with other members); two groups of the same members
are separated by name. First step of `hang`: dumps → groups with frontiers. Gloo marks a call as done when it times out
or when a member dies in it, and notes no end of some calls that no thread waits for: its frontiers are corrected.
"""

from bisect import bisect_left
from collections import defaultdict

from tracekit.analysis.hang.aborted_calls import undo_aborts
from tracekit.analysis.hang.agreement import synchronising, version_of
from tracekit.analysis.hang.frontier import Frontier, Group
from tracekit.dumps.load import DumpSet
from tracekit.dumps.rank_dump import DONE, GroupTail, RankDump
from tracekit.dumps.unpickle import BARE_VERSION
from tracekit.thresholds.dumps import MAX_LEAP

_Key = tuple[tuple[int, ...], str, str]
"""Members, name and description."""
_Uses = list[tuple[RankDump, GroupTail]]
"""The dumps that hold a group, each with its part of it."""


def build_groups(dumps: DumpSet) -> list[Group]:
    """Give all groups of two and more members, ordered by members."""
    keyed: dict[_Key, _Uses] = defaultdict(list)
    nameless: dict[tuple[str, str], _Uses] = defaultdict(list)
    for dump in dumps.dumps.values():
        for tail in dump.groups:
            if dump.version == BARE_VERSION and tail.desc != "default_pg":
                continue  # its number may be that of several groups
            if not tail.ranks:
                nameless[tail.name, tail.desc].append((dump, tail))
            elif len(tail.ranks) > 1 and _is_member(dump.rank, tail.ranks):
                keyed[tail.ranks, tail.name, tail.desc].append((dump, tail))
    groups = [_group(ranks, uses, dumps) for (ranks, _, _), uses in _merged(keyed).items()]
    for uses in nameless.values():
        ranks = tuple(sorted({d.rank for d, _ in uses}))
        if uses[0][1].desc == "default_pg":
            ranks = dumps.world
        if len(ranks) > 1:
            groups.append(_group(ranks, uses, dumps, guessed=True))
    return sorted(groups, key=lambda g: (g.ranks[0], len(g.ranks), g.ranks[-1], g.name))


def _is_member(rank: int, ranks: tuple[int, ...]) -> bool:
    """Return whether `rank` is among the sorted `ranks`."""
    at = bisect_left(ranks, rank)
    return at < len(ranks) and ranks[at] == rank


def _merged(keyed: dict[_Key, _Uses]) -> dict[_Key, _Uses]:
    """Join parts of one group with names that differ by rank: same members and description, and each rank once."""
    by_members: dict[tuple[tuple[int, ...], str], list[_Key]] = defaultdict(list)
    for key in keyed:
        by_members[key[0], key[2]].append(key)
    for keys in by_members.values():
        if len(keys) < 2:
            continue
        ranks = [d.rank for k in keys for d, _ in keyed[k]]
        if len(set(ranks)) == len(ranks):
            first = min(keys)
            for key in keys:
                if key != first:
                    keyed[first].extend(keyed.pop(key))
    return keyed


def _group(ranks: tuple[int, ...], uses: _Uses, dumps: DumpSet, *, guessed: bool = False) -> Group:
    """Return one group with the frontiers of the members that have it in their dumps."""
    guessed = guessed or any(tail.partial for _, tail in uses)
    group = Group(ranks, uses[0][1].name, uses[0][1].desc, guessed=guessed)
    group.mixed = any(t.has_p2p for _, t in uses) or "PIPELINE" in group.desc.upper()
    for dump, tail in uses:
        frontier = Frontier(dump.rank, *_frontier(dump, tail, mixed=group.mixed), tail)
        frontier.stale = (dump.truncated or tail.open_end) and (group.mixed or tail.status_enqueued < 0)
        group.frontiers[dump.rank] = frontier
    _forget_leaps(group)
    undo_aborts(group)
    if any(d.backend == "gloo" for d, _ in uses):
        correct_frontiers(group, uses, member_without_dump=any(r not in dumps.dumps for r in ranks))
    return group


def _forget_leaps(group: Group) -> None:
    """Make unknown what a status alone, not the ring, claims further ahead of all other members than any host runs."""
    claims = {r: f for r, f in group.frontiers.items() if f.tail.entry_enqueued < f.enqueued}
    for rank, frontier in claims.items():
        others = max((f.enqueued for r, f in group.frontiers.items() if r != rank), default=-1)
        if 0 <= others < frontier.enqueued - MAX_LEAP:
            frontier.enqueued = frontier.completed = -1


def _frontier(dump: RankDump, tail: GroupTail, *, mixed: bool) -> tuple[int, int]:
    """Return (enqueued, completed), -1 if neither the ring nor the status shows it.

    Where p2p runs on the group (`mixed`) the status counts messages too, so only the ring counts.
    """
    seen = tail.entry_enqueued >= 0
    if mixed or tail.status_enqueued < 0:
        if seen:
            return tail.entry_enqueued, tail.entry_completed
        whole = dump.entries > 0 and not dump.wrapped and not dump.malformed and not dump.truncated
        counted = dump.has_status and not dump.unmapped_status and not mixed
        # calls under a name that is not listed may be this group's
        return (0, 0) if (whole or counted) and not (mixed or dump.unlisted) else (-1, -1)
    enqueued = max(tail.status_enqueued, tail.entry_enqueued)
    if not seen or dump.truncated or tail.open_end:
        return enqueued, tail.status_completed
    if dump.backend == "gloo":  # calls run on threads and may finish out of order: the oldest open one counts
        return enqueued, tail.entry_completed
    return enqueued, max(tail.status_completed, tail.entry_completed if tail.entry_seen_done else 0)


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
