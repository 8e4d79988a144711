"""Which groups, lines or chains of ranks carry the messages between two ranks."""

from collections import Counter, defaultdict
from collections.abc import Collection, Sequence

from tracekit.disjoint_sets import DisjointSets


def carriers(
    groups: Sequence[tuple[int, ...]], pairs: Counter[tuple[int, int]], lines: Collection[tuple[int, ...]]
) -> dict[tuple[int, ...], int]:
    """Return members → number of their messages; a pair belongs to the smallest group, line or chain that holds it."""
    homes: dict[int, set[tuple[int, ...]]] = defaultdict(set)
    inside = {(a, b) for line in lines for a in line for b in line}
    for ranks in {*groups, *lines, *_components(set(pairs) - inside)}:
        for r in ranks:
            homes[r].add(ranks)
    result: Counter[tuple[int, ...]] = Counter()
    for (a, b), count in pairs.items():
        result[min(homes[a] & homes[b], key=lambda g: (len(g), g))] += count
    for line in lines:  # some of its ranks may lack a trace
        result[line] = max(result[line], 1)
    return dict(result)


def holding(groups: Sequence[tuple[int, ...]], pairs: Counter[tuple[int, int]]) -> list[tuple[int, ...]]:
    """Return the groups that hold both ends of some message."""
    home: dict[int, set[tuple[int, ...]]] = defaultdict(set)
    for ranks in groups:
        for r in ranks:
            home[r].add(ranks)
    return sorted({g for a, b in pairs for g in home[a] & home[b]})


def _components(pairs: set[tuple[int, int]]) -> list[tuple[int, ...]]:
    """Return the sets of ranks that messages connect, directly or through others, each sorted."""
    linked = DisjointSets({r for pair in pairs for r in pair})
    for a, b in pairs:
        linked.join(a, b)
    chains: dict[int, list[int]] = defaultdict(list)
    for r in sorted({r for pair in pairs for r in pair}):
        chains[linked.find(r)].append(r)
    return sorted(tuple(c) for c in chains.values())
