"""Which of several calls comes first in the program, as ranks that make both of them show.

A rank that issued one call and not yet the other, or both at times of its own clock, shows their order; times of two
hosts are never compared. The members of
both groups are witnesses, and for calls that one rank lacks so are its peers, each with the groups in the same place of
its own replica: ranks of one place in the mesh run one program.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from tracekit.analysis.hang.frontier import Issue
from tracekit.analysis.hang.scene import Scene


@dataclass(frozen=True, slots=True)
class CallId:
    """A collective of a group; or, where `rank` is given, the message which that rank would make next there."""

    group: int  # number of the group
    seq: int
    rank: int = -1

    @property
    def is_message(self) -> bool:
        """Whether it is a send or receive."""
        return self.rank >= 0


def oldest_wait(scene: Scene, pending: Sequence[int], rank: int) -> int:
    """Give that of these pending calls in which `rank` has waited longest, by its own clock."""

    def key(at: int) -> tuple[int, int, int]:
        call = scene.graph.pending[at]
        group = scene.groups[call.group]
        # a call that the ring has lost is older than all it holds
        return group.frontiers[rank].created(call.seq) or 0, len(group.ranks), at

    return min(pending, key=key)


def first_in_program(scene: Scene, calls: Iterable[CallId]) -> CallId:
    """Give the collective that comes first for ranks that make several of these; else that of the smallest group."""
    issues: dict[int, list[tuple[CallId, Issue]]] = defaultdict(list)
    kept = list(dict.fromkeys(calls))
    for call in kept:
        frontiers = scene.groups[call.group].frontiers
        for rank, frontier in frontiers.items() if not call.is_message and len(kept) > 1 else ():
            if (issue := frontier.issue(call.seq)) is not None:
                issues[rank].append((call, issue))
    votes: dict[tuple[CallId, CallId], int] = defaultdict(int)
    for several in issues.values():
        for (one, mine), (other, theirs) in combinations(several, 2):
            votes[one, other] += order_of(mine, theirs)
    return _winner(scene, kept, votes)


def first_missed(scene: Scene, rank: int, message: CallId | None = None) -> CallId:
    """Give the first of the calls, `message` among them, that others wait in and `rank` did not make."""
    calls = [CallId(call.group, call.seq) for call in scene.pending(scene.graph.behind_in[rank])]
    return first_lacking(scene, rank, calls if message is None else [*calls, message])


def first_lacking(scene: Scene, rank: int, calls: Sequence[CallId]) -> CallId:
    """Give that of the calls lacking on `rank` which it would have made first."""
    if len(calls) == 1:
        return calls[0]
    own = [scene.groups[number] for number in scene.memberships.get(rank, ())]
    peers = {other for group in own if scene.is_narrow(group) for other in group.ranks}
    witnesses = sorted((peers or set(scene.world)) - {rank})
    votes = {pair: _vote(scene, pair, witnesses) for pair in combinations(calls, 2)}
    return _winner(scene, calls, votes)


def order_of(one: Issue | None, other: Issue | None) -> int:
    """Return 1 if the first was issued before the second, -1 the other way round, 0 if that is unknown."""
    if one is None or other is None:
        return 0
    if one.issued != other.issued:
        return 1 if one.issued else -1
    if one.created is None or other.created is None or one.created == other.created:
        return 0
    return 1 if one.created < other.created else -1


def _winner(scene: Scene, calls: Sequence[CallId], votes: Mapping[tuple[CallId, CallId], int]) -> CallId:
    """Give the call that fewest others precede; among equals that of the smallest group."""
    behind: dict[CallId, int] = dict.fromkeys(calls, 0)
    for (one, other), vote in votes.items():
        if vote:
            behind[other if vote > 0 else one] += 1
    return min(calls, key=lambda c: (behind[c], len(scene.groups[c.group].ranks), c.group, c.seq))


def _vote(scene: Scene, pair: tuple[CallId, CallId], witnesses: Sequence[int]) -> int:
    """Sum the votes on a pair: of the members of both groups; failing these, of `witnesses` with their own groups."""
    if not any(call.is_message for call in pair):
        one, other = (scene.groups[call.group].frontiers for call in pair)
        shared = one.keys() & other.keys()
        vote = sum(order_of(one[r].issue(pair[0].seq), other[r].issue(pair[1].seq)) for r in shared)
        if vote:
            return vote
    return sum(order_of(_issue(scene, r, pair[0]), _issue(scene, r, pair[1])) for r in witnesses)


def _issue(scene: Scene, rank: int, call: CallId) -> Issue | None:
    """Return whether and when a rank issued the call in its own place: in that group, else its only one of that role.

    A message is looked up by its number among the messages of the rank that holds the same position in its group.
    """
    number = scene.own(rank, call.group)
    if number is None or rank not in scene.dumps:
        return None
    frontier = scene.groups[number].frontiers[rank]
    if not call.is_message:
        return frontier.issue(call.seq) if number == call.group or frontier.in_step(call.seq) else None
    ranks, theirs = scene.groups[number].ranks, scene.groups[call.group].ranks
    same = call.rank in theirs and ranks.index(rank) == theirs.index(call.rank)
    dump = scene.dumps[rank]
    local = next(i for i, tail in enumerate(dump.groups) if tail is frontier.tail)
    log = dump.messages
    numbers = log.seq[log.group == local]
    if not same or not len(numbers) or frontier.stale:
        return None
    at = log.place(local, call.seq)
    created = None if at is None else int(log.created[at]) or None
    return Issue(int(numbers.max()) >= call.seq, created)
