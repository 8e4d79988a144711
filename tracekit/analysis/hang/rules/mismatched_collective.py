"""Members of one group that made different calls under one number: the ranks that disagree with the rest, and how.

The rest is the majority of the group. Without a majority it is the groups in the same place of other replicas
under the same number, and the past of the group itself.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

from tracekit.analysis.hang.agreement import Version, version_of
from tracekit.analysis.hang.frontier import Frontier, Group
from tracekit.analysis.hang.rules.rule import Accusation, Found, Mismatch
from tracekit.analysis.hang.scene import Scene
from tracekit.analysis.hang.wait_graph import PendingCall
from tracekit.findings.hang import CulpritKind
from tracekit.thresholds.hang import MAX_WITNESSES, NAMED_A_SIDE, PATTERN_CALLS


def mismatched_collectives(scene: Scene, _known: Found) -> Found:
    """Return the ranks with a collective that differs from that of the rest of the group under the same number.

    Looks for: pending calls with several versions (operation, sizes or dtypes that all members must agree on); and
    a lone version if the other members left no dump and replicas agree on another version.
    Excuses: all ranks, with a doubt, if neither a majority, nor replicas, nor the past shows which side is right.
    Returns: `mismatched_call`, or `host_stalled` for a rank that left a call out; the calls in dispute.
    """
    culprits: dict[int, Accusation] = {}
    doubts: list[str] = []
    unsettled: set[int] = set()
    open_: list[Mismatch] = []
    for mismatch in _mismatches(scene):
        if not mismatch.odd:
            open_.append(mismatch)
            doubts.append(_doubt(scene, mismatch))
            unsettled.update(
                r for side in mismatch.sides.values() for r in side if r in scene.groups[mismatch.group].ranks
            )
        kind: CulpritKind = "host_stalled" if mismatch.skipped else "mismatched_call"
        how = "left the call out and made the next one under its number" if mismatch.skipped else None
        for rank in mismatch.odd:
            culprits.setdefault(rank, Accusation(kind, mismatch.group, mismatch.seq, mismatch, how=how))
    disputed = frozenset((accused.group, accused.seq) for accused in culprits.values())
    return Found(
        culprits, disputed=disputed, doubts=tuple(doubts), candidates=frozenset(unsettled), open=tuple(open_)
    )


def _doubt(scene: Scene, mismatch: Mismatch) -> str:
    group = scene.groups[mismatch.group]
    names = " and ".join(str(r) for side in mismatch.sides.values() for r in side[:NAMED_A_SIDE])
    inside = all(r in group.ranks for side in mismatch.sides.values() for r in side)
    where = f"group {group.name}" if inside else f"groups like {group.name}"
    return f"ranks {names} make different calls in {where}, and the dumps do not show which call is right"


@dataclass(frozen=True, slots=True)
class _Dispute:
    """One call, the versions in which members made it, and the groups in the same place of other replicas."""

    number: int
    group: Group
    seq: int
    sides: dict[Version, list[int]]
    replicas: list[Group]  # the group itself among them


def _mismatches(scene: Scene) -> list[Mismatch]:
    """Return the pending calls with a version that members do not agree on."""
    found: list[Mismatch | None] = []
    for call in scene.graph.pending:
        group = scene.groups[call.group]
        sides = versions_at(group, call.seq)
        dispute = _Dispute(call.group, group, call.seq, sides, scene.replicas[call.group])
        if len(sides) > 1:
            found.append(_judge(dispute))
        elif len(sides) == 1 and _others_unseen(scene, call):
            found.append(_judge_alone(dispute) or _judge_beside(scene, dispute))
    return [mismatch for mismatch in found if mismatch is not None]


def _others_unseen(scene: Scene, call: PendingCall) -> bool:
    """Return whether members left no dump, or too old a one, and no rank is known to be behind."""
    return bool(call.missing or scene.graph.stale.intersection(call.unknown)) and not call.behind


def _judge(dispute: _Dispute) -> Mismatch:
    """Find the right one of several versions: the majority's, else by replicas and by the past."""
    counts = {v: len(ranks) for v, ranks in dispute.sides.items()}
    total = sum(counts.values())
    right = next((v for v, n in counts.items() if n > total / 2 and n > 1), None)
    if right is None:
        right = (
            _by_replicas(dispute, same_past_only=True)
            or _by_past(dispute)
            or _by_replicas(dispute, same_past_only=False)
        )
    group, seq = dispute.group, dispute.seq
    if right is None:
        return Mismatch(dispute.number, seq, dispute.sides, [], skipped=False, expected=None)
    odd = sorted(r for v, ranks in dispute.sides.items() if v != right for r in ranks)
    expected = group.frontiers[dispute.sides[right][0]].call(seq)
    wrong = [v for v in dispute.sides if v != right]
    skipped = all(is_followed(group, seq, right, v, dispute.replicas) for v in wrong)
    usual = group.frontiers[dispute.sides[right][0]]
    skipped = skipped and all(_left_one_out(group, group.frontiers[rank], usual, seq) for rank in odd)
    return Mismatch(dispute.number, seq, dispute.sides, odd, skipped, expected)


def _left_one_out(group: Group, mine: Frontier, usual: Frontier, seq: int) -> bool:
    """Return whether a member's calls from this number on are the usual ones from the next on, as far as rings reach.

    A call like the one before it is one more round of a loop: a member that makes fewer rounds leaves nothing out.
    """
    calls = dict(zip(usual.tail.seq.tolist(), usual.tail.calls, strict=True))
    own = zip(mine.tail.seq.tolist(), mine.tail.calls, strict=True)
    moved = [(call, calls[at + 1]) for at, call in own if at >= seq and at + 1 in calls]
    alike = all(version_of(one) == version_of(other) for one, other in moved)
    again = (usual.call(seq - 1), usual.stack(seq - 1)) == (calls[seq], usual.stack(seq))
    return alike and not again and not _of_new_place(group, mine, seq)


def _of_new_place(group: Group, mine: Frontier, seq: int) -> bool:
    """Whether a member made this call in a place of the program from which no other member calls, nor it before."""
    stack = mine.stack(seq)
    others = (
        s for frontier in group.frontiers.values() if frontier is not mine for s in frontier.tail.stacks
    )
    own = (s for at, s in zip(mine.tail.seq.tolist(), mine.tail.stacks, strict=False) if at < seq)
    return bool(stack) and stack not in {*others, *own}


def _by_past(dispute: _Dispute) -> Version | None:
    """Find the one version that may follow the call before, by the calls that this group has made.

    A version that was made before, but never behind such a call, does not fit here; the first call of a ring may have
    followed any. Where all fit, the only version that the group has called before is right, unless other groups in its
    place have called another.
    """
    past = versions_before(dispute.group, dispute.seq)
    if not past:
        return None
    before: dict[Version, set[Version]] = defaultdict(set)
    for one, then in pairwise(past):
        before[then].add(one)
    seen = counts_before(dispute.group, dispute.seq)
    known = [v for v in dispute.sides if seen[v]]
    fitting = [v for v in dispute.sides if v == past[0] or not before[v] or past[-1] in before[v]]
    if len(fitting) == 1 and fitting[0] in known:
        return fitting[0]
    if len(known) != 1 or known[0] not in fitting:
        return None
    if past[-1] not in before[known[0]] and _begins_late(dispute.group):
        return None  # only the first call of a ring: what it followed, and what else the group calls, is lost
    # the usual version may have fallen out of a short ring: then others have called both
    elsewhere = [counts_before(other, dispute.seq) for other in dispute.replicas[:MAX_WITNESSES]]
    return None if any(h[v] for h in elsewhere for v in dispute.sides if v != known[0]) else known[0]


def _begins_late(group: Group) -> bool:
    """Return whether the first ring has lost calls of this group."""
    seqs = next(iter(group.frontiers.values())).tail.seq
    return len(seqs) > 0 and int(seqs[0]) > 1


def _by_replicas(dispute: _Dispute, *, same_past_only: bool) -> Version | None:
    """Return the version that groups in the same place call, or only groups with the same calls before.

    The latter show more than the past of this group, because a short ring holds only a part of it.
    """
    votes: set[Version] = set()
    for other in dispute.replicas:
        if other is dispute.group or (same_past_only and not same_past(dispute.group, other, dispute.seq)):
            continue
        theirs = versions_at(other, dispute.seq)
        if len(theirs) == 1:
            votes.update(theirs)
    fitting = [v for v in dispute.sides if v in votes]
    return fitting[0] if len(fitting) == 1 else None


def _judge_alone(dispute: _Dispute) -> Mismatch | None:
    """Judge a call if its other members left no dump (a wrong size can end the peer), by replicas and the past."""
    version, ranks = next(iter(dispute.sides.items()))
    past = counts_before(dispute.group, dispute.seq)
    if len(ranks) != 1 or version in past or not past:
        return None
    votes: Counter[Version] = Counter()
    expected = None
    for other in dispute.replicas:
        theirs = versions_at(other, dispute.seq) if other is not dispute.group else {}
        if len(theirs) == 1 and _is_shown(other, dispute.seq):
            (their,) = theirs
            votes[their] += 1
            expected = other.call(dispute.seq) if their != version else expected
    if votes[version] or len(votes) != 1 or next(iter(votes)) not in past:
        return None
    return Mismatch(dispute.number, dispute.seq, dispute.sides, ranks, skipped=False, expected=expected)


def _is_shown(group: Group, seq: int) -> bool:
    """Return whether two members made this call, or one finished it: a single rank in it may itself be wrong."""
    made = [frontier for frontier in group.frontiers.values() if frontier.call(seq) is not None]
    return len(made) > 1 or any(frontier.proven >= seq for frontier in made)


def _judge_beside(scene: Scene, dispute: _Dispute) -> Mismatch | None:
    """Judge such a call by groups of the rank's own peers with the same past: two or more that call something else.

    With only one such group it is unknown which side is right.
    """
    group, seq = dispute.group, dispute.seq
    version, ranks = next(iter(dispute.sides.items()))
    if group.mixed or len(ranks) != 1:
        return None
    peers = scene.peers(ranks[0], scene.widest)
    near = dict.fromkeys(n for p in peers for n in scene.alike(p, dispute.number) if n != dispute.number)
    alike = [g for n in near if same_past(group, g := scene.groups[n], seq) and versions_at(g, seq)]
    versions = {v for g in alike for v in versions_at(g, seq)}
    if len(versions) != 1 or version in versions:
        return None
    (right,) = versions
    if len(alike) < 2:
        both = {version: ranks, right: [r for side in versions_at(alike[0], seq).values() for r in side]}
        return Mismatch(dispute.number, seq, both, [], skipped=False, expected=None)
    skipped = is_followed(group, seq, right, version, alike)
    return Mismatch(dispute.number, seq, dispute.sides, ranks, skipped, alike[0].call(seq))


# Earlier calls of a group, as versions: the evidence on which of two versions of a call is right.


def versions_at(group: Group, seq: int) -> dict[Version, list[int]]:
    """Give the ranks that made the call with this number, by the version that each made."""
    sides: dict[Version, list[int]] = defaultdict(list)
    known: dict[int, Version] = {}  # by identity: equal calls are one object
    for frontier in group.frontiers.values():
        call = frontier.call(seq)
        if call is not None:
            version = known.get(id(call))
            if version is None:
                version = known[id(call)] = version_of(call)
            sides[version].append(frontier.rank)
    return _undamaged(sides)


def _undamaged(sides: dict[Version, list[int]]) -> dict[Version, list[int]]:
    """Return the versions without damaged ones, if another version of the operation is whole."""
    if len(sides) < 2:
        return sides
    whole = {version[0] for version in sides if not _is_damaged(version)}
    return {v: ranks for v, ranks in sides.items() if not (_is_damaged(v) and (v[0] in whole or not v[0]))}


def _is_damaged(version: Version) -> bool:
    return any(part is None or part == "" for part in version)


def counts_before(group: Group, seq: int) -> Counter[Version]:
    """Count the versions of all calls before this one that any member's ring holds."""
    return Counter(v for frontier in group.frontiers.values() for v in _versions_before(frontier, seq))


def versions_before(group: Group, seq: int) -> list[Version]:
    """Give the versions of all calls before this one, oldest first, as the first member recorded them."""
    return _versions_before(next(iter(group.frontiers.values())), seq)


def same_past(one: Group, other: Group, seq: int) -> bool:
    """Return whether the last calls of two groups before this one agree as far back as both rings reach."""
    mine, theirs = (versions_before(group, seq)[-PATTERN_CALLS:] for group in (one, other))
    both = min(len(mine), len(theirs))
    return both > 0 and mine[-both:] == theirs[-both:]


def is_followed(group: Group, seq: int, first: Version, then: Version, replicas: Iterable[Group]) -> bool:
    """Return whether `then` comes right after `first`: in the later calls of `group`, or anywhere before.

    A rank with the version that should come next has left a call out.
    """
    for other in [group, *(g for g in replicas if g is not group)][:MAX_WITNESSES]:
        for frontier in other.frontiers.values():
            keys = [version_of(c) for c in frontier.tail.calls]
            seqs = [int(s) for s in frontier.tail.seq]
            for i in range(len(keys) - 1):
                usual = seqs[i + 1] == seqs[i] + 1 and keys[i] == first and keys[i + 1] == then
                if usual and (seqs[i] < seq - 1 or (seqs[i] == seq and other is group)):
                    return True
    return False


def _versions_before(frontier: Frontier, seq: int) -> list[Version]:
    tail = frontier.tail
    return [version_of(c) for s, c in zip(tail.seq, tail.calls, strict=True) if s < seq]
