"""Members of one group that made different calls under one number: who disagrees with the rest, and how.

The rest is the majority of the group; in groups too small for one, what the group called before, and what
the groups in the same place of other replicas call under that number. A rank whose call is the one that
should come next has left one out: its host never issued the call the others wait in. Third step of `hang`.
"""

from collections import Counter, defaultdict
from dataclasses import dataclass, field

from tracekit.analysis.hang.call_order import ASKED, Places, peers_of, places_of
from tracekit.analysis.hang.groups import Group, agreement
from tracekit.analysis.hang.wait_graph import Graph
from tracekit.dumps.dump import Signature

_CONTEXT = 12
"""Calls compared when a place in a repeating pattern is looked up: a layer makes about ten on a group."""


@dataclass(slots=True)
class Mismatch:
    """Calls that do not match. `odd` is empty where nothing tells which side is right."""

    group: int
    seq: int
    sides: dict[tuple[object, ...], list[int]]
    odd: list[int]
    skipped: bool  # the odd ones left a call out
    expected: Signature | None
    calls: dict[int, Signature] = field(
        default_factory=dict
    )  # of a send and a receive: what either end called


def mismatches(groups: list[Group], graph: Graph) -> list[Mismatch]:
    """All groups stuck in a call that their members do not agree on."""
    found: list[Mismatch] = []
    roles: dict[tuple[str, int], list[Group]] = defaultdict(list)
    for group in groups:
        roles[group.role].append(group)
    seen: set[tuple[int, int]] = set()
    places = places_of(groups, {rank for group in groups for rank in group.rows})
    world = max((len(group.ranks) for group in groups), default=0)
    for hub in graph.hubs:
        if (hub.group, hub.seq) in seen:
            continue
        seen.add((hub.group, hub.seq))
        group = groups[hub.group]
        sides = _sides(group, hub.seq)
        if len(sides) > 1:
            found.append(_judge(hub.group, group, hub.seq, sides, roles[group.role]))
        elif len(sides) == 1 and (hub.missing or graph.stale.intersection(hub.unknown)) and not hub.behind:
            alone = _alone(hub.group, group, hub.seq, sides, roles[group.role]) or _alone_beside(
                groups, places, world, hub.group, hub.seq, sides
            )
            if alone is not None:
                found.append(alone)
    return found


def _sides(group: Group, seq: int) -> dict[tuple[object, ...], list[int]]:
    sides: dict[tuple[object, ...], list[int]] = defaultdict(list)
    cache: dict[int, tuple[object, ...]] = {}
    for row in group.rows.values():
        call = row.call(seq)
        if call is not None:
            key = cache.get(id(call))
            if key is None:
                key = cache[id(call)] = agreement(call)
            sides[key].append(row.rank)
    return sides


def _judge(
    number: int, group: Group, seq: int, sides: dict[tuple[object, ...], list[int]], sisters: list[Group]
) -> Mismatch:
    counts = {k: len(v) for k, v in sides.items()}
    total = sum(counts.values())
    right = next((k for k, n in counts.items() if n > total / 2 and n > 1), None)
    if right is None:
        right = (
            _by_sisters(group, seq, sides, sisters, alike=True)
            or _by_history(group, seq, sides, sisters)
            or _by_sisters(group, seq, sides, sisters, alike=False)
            or _by_pattern(group, seq, sides)
        )
    if right is None:
        return Mismatch(number, seq, sides, [], skipped=False, expected=None)
    odd = sorted(r for k, v in sides.items() if k != right for r in v)
    expected = next((group.rows[r].call(seq) for r in sides[right]), None)
    wrong = {k for k in sides if k != right}
    skipped = all(_follows(group, seq, right, k, [*sisters]) for k in wrong)
    return Mismatch(number, seq, sides, odd, skipped, expected)


def _history(group: Group, seq: int) -> Counter[tuple[object, ...]]:
    return Counter(
        agreement(c)
        for row in group.rows.values()
        for s, c in zip(row.tail.seq, row.tail.calls, strict=True)
        if s < seq
    )


def _by_history(
    group: Group, seq: int, sides: dict[tuple[object, ...], list[int]], sisters: list[Group]
) -> tuple[object, ...] | None:
    """Find the one version that this group has called before, if no other group in its place has called another."""
    past = _history(group, seq)
    known = [k for k in sides if past[k]]
    if len(known) != 1:
        return None
    # of a short ring the usual may have fallen out: then others have called both
    elsewhere = [_history(other, seq) for other in sisters[:ASKED]]
    return None if any(h[k] for h in elsewhere for k in sides if k != known[0]) else known[0]


def _by_pattern(
    group: Group, seq: int, sides: dict[tuple[object, ...], list[int]]
) -> tuple[object, ...] | None:
    """Find the version that followed when the calls before last came in this order (steps repeat)."""
    row = next(iter(group.rows.values()))
    past = [agreement(c) for s, c in zip(row.tail.seq, row.tail.calls, strict=True) if s < seq]
    for length in range(min(_CONTEXT, len(past) // 2), 1, -1):
        context = past[-length:]
        after = {past[i + length] for i in range(len(past) - length) if past[i : i + length] == context}
        fitting = [k for k in sides if k in after]
        if len(after) == 1 and len(fitting) == 1:
            return fitting[0]
    return None


def _by_sisters(
    group: Group, seq: int, sides: dict[tuple[object, ...], list[int]], sisters: list[Group], *, alike: bool
) -> tuple[object, ...] | None:
    """Find the version that groups in the same place call; `alike`: only those whose calls before are the same.

    The latter tell more than what this group called before, of which a short ring holds but a part.
    """
    votes: set[tuple[object, ...]] = set()
    past = _past(group, seq)
    for other in sisters:
        if other is group or (alike and not _same_end(past, _past(other, seq))):
            continue
        theirs = _sides(other, seq)
        if len(theirs) == 1:
            votes.update(theirs)
    fitting = [k for k in sides if k in votes]
    return fitting[0] if len(fitting) == 1 else None


def _same_end(one: list[tuple[object, ...]], other: list[tuple[object, ...]]) -> bool:
    """Whether two pasts agree as far back as both rings reach."""
    both = min(len(one), len(other))
    return both > 0 and one[-both:] == other[-both:]


def _past(group: Group, seq: int) -> list[tuple[object, ...]]:
    """Give the last calls before this one, oldest first, as the first member recorded them."""
    row = next(iter(group.rows.values()))
    calls = [agreement(c) for s, c in zip(row.tail.seq, row.tail.calls, strict=True) if s < seq]
    return calls[-_CONTEXT:]


def _alone(
    number: int, group: Group, seq: int, sides: dict[tuple[object, ...], list[int]], sisters: list[Group]
) -> Mismatch | None:
    """Judge a call whose other members left no dump (a wrong size can end the peer)."""
    key, ranks = next(iter(sides.items()))
    past = _history(group, seq)
    if len(ranks) != 1 or key in past or not past:
        return None
    votes: Counter[tuple[object, ...]] = Counter()
    expected = None
    for other in sisters:
        theirs = _sides(other, seq) if other is not group else {}
        if len(theirs) == 1:
            (their,) = theirs
            votes[their] += 1
            expected = other.call(seq) if their != key else expected
    if votes[key] or len(votes) != 1 or next(iter(votes)) not in past:
        return None
    return Mismatch(number, seq, sides, ranks, skipped=False, expected=expected)


def _alone_beside(
    groups: list[Group],
    places: Places,
    world: int,
    number: int,
    seq: int,
    sides: dict[tuple[object, ...], list[int]],
) -> Mismatch | None:
    """Judge the same by groups of the rank's own peers with the same past: two and more that call something else.

    With one alone nothing tells who is right.
    """
    group = groups[number]
    key, ranks = next(iter(sides.items()))
    if group.mixed or len(ranks) != 1:
        return None
    peers = peers_of(groups, places, ranks[0], world)
    near = dict.fromkeys(n for peer in peers for n in places[peer].get(group.role, []) if n != number)
    past = _past(group, seq)
    alike = [g for n in near if _same_end(past, _past(g := groups[n], seq)) and _sides(g, seq)]
    versions = {v for g in alike for v in _sides(g, seq)}
    if len(versions) != 1 or key in versions:
        return None
    (right,) = versions
    if len(alike) < 2:
        both = {key: ranks, right: [r for at in _sides(alike[0], seq).values() for r in at]}
        return Mismatch(number, seq, both, [], skipped=False, expected=None)
    skipped = _follows(group, seq, right, key, alike)
    return Mismatch(number, seq, sides, ranks, skipped, alike[0].call(seq))


def _follows(
    group: Group, seq: int, first: tuple[object, ...], then: tuple[object, ...], sisters: list[Group]
) -> bool:
    """Tell whether `then` comes after `first`: among the others' later calls, or where the pattern ran before."""
    for other in [group, *(s for s in sisters if s is not group)][:ASKED]:
        for row in other.rows.values():
            keys = [agreement(c) for c in row.tail.calls]
            seqs = [int(s) for s in row.tail.seq]
            for i in range(len(keys) - 1):
                usual = seqs[i + 1] == seqs[i] + 1 and keys[i] == first and keys[i + 1] == then
                if usual and (seqs[i] < seq - 1 or (seqs[i] == seq and other is group)):
                    return True
    return False
