"""Earlier calls of a group, as versions: the evidence on which of two versions of a call is right."""

from collections import Counter, defaultdict
from collections.abc import Iterable

from tracekit.analysis.hang.agreement import Version, version_of
from tracekit.analysis.hang.frontier import Frontier, Group
from tracekit.thresholds.hang import MAX_WITNESSES, PATTERN_CALLS


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
    return _told(sides)


def _told(sides: dict[Version, list[int]]) -> dict[Version, list[int]]:
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
