"""Process groups as partitions of the world.

A family is one partition of the world into groups of one size. Families are formed by description, by rank pattern and
by use.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from tracekit.disjoint_sets import DisjointSets
from tracekit.mesh.group_descriptions import hinted_dims, is_foreign

Blocks = dict[int, int]
"""rank → number of its block."""


@dataclass(frozen=True)
class GroupUse:
    """A process group and its use in the traces; counts are of one member, zero where unknown."""

    ranks: tuple[int, ...]
    descs: tuple[str, ...] = ()
    collectives: int = 0
    p2p: int = 0
    ops: frozenset[str] = frozenset()
    exposed: float = 0.0  # share of its collectives that compute stood still for
    alternation: float = 0.0  # share of its collectives that differ in kind from the one before
    named: bool = True  # the files name it; else only its messages or common ends show it
    partial: bool = False  # it may have further members, which left no trace
    ring: bool = False  # its messages go round in a ring
    dealt: bool = False  # its all-to-alls bring other numbers of elements each time, as tokens of experts do


@dataclass
class Family:
    """Disjoint groups of one size: a partition of (the seen part of) the world."""

    groups: list[GroupUse]
    hints: frozenset[str]
    blocks: Blocks = field(default_factory=dict)  # rank → number of its block

    @property
    def size(self) -> int:
        """Ranks in a group."""
        return len(self.groups[0].ranks)

    @property
    def p2p(self) -> int:
        """Messages along the groups."""
        return sum(g.p2p for g in self.groups)

    @property
    def ring(self) -> bool:
        """Whether most messages go round in rings, as in ring attention, and not to and fro."""
        return 2 * sum(g.p2p for g in self.groups if g.ring) > self.p2p

    @property
    def calls(self) -> float:
        """Collectives of a group, on average."""
        return sum(g.collectives for g in self.groups) / len(self.groups)

    @property
    def regular(self) -> bool:
        """Whether all groups have one pattern of ranks."""
        return len({_pattern(g.ranks) for g in self.groups}) == 1

    @property
    def stride(self) -> float:
        """Mean distance between neighbours in a group, in ranks."""
        return sum((g.ranks[-1] - g.ranks[0]) / max(1, len(g.ranks) - 1) for g in self.groups) / len(
            self.groups
        )


def families(uses: Sequence[GroupUse], world: tuple[int, ...], ignored: list[str]) -> list[Family]:
    """Return the partitions of `world` among the groups: by description and size, else by rank pattern, else by use.

    ignored: takes a sentence for every kind of group that is ignored.
    """
    inside = set(world)
    seen: dict[tuple[int, ...], GroupUse] = {}
    for use in uses:
        fits = 2 <= len(use.ranks) < len(world) and inside.issuperset(use.ranks) and not use.partial
        if fits and not is_foreign(use.descs):
            seen[use.ranks] = use
    rest = list(seen.values())
    found: list[Family] = []
    keys = {u.ranks: (len(u.ranks), tuple(sorted(hinted_dims(u.descs)))) for u in rest}
    for key in sorted(set(keys.values())):
        found.extend(_split([u for u in rest if keys[u.ranks] == key], frozenset(key[1])))
    whole = []
    for family in _merge(found):
        for number, group in enumerate(sorted(family.groups, key=lambda g: g.ranks)):
            family.blocks.update(dict.fromkeys(group.ranks, number))
        if len(family.blocks) < len(world):
            _complete(family, world)
        if len(family.blocks) == len(world):
            whole.append(family)
        else:
            ignored.append(
                f"groups of {family.size} ranks that cover {len(family.blocks)} of {len(world)} ranks ignored"
            )
    return whole


def _merge(parts: list[Family]) -> list[Family]:
    """Join families of one size with disjoint groups: partitions seen in parts."""
    merged: list[Family] = []
    for family in parts:
        members = {r for g in family.groups for r in g.ranks}
        for other in merged:
            theirs = {r for g in other.groups for r in g.ranks}
            same_hint = family.hints == other.hints or not (family.hints and other.hints)
            if (
                other.size == family.size
                and same_hint
                and not (members & theirs)
                and _pattern_set(family) == _pattern_set(other)
            ):
                other.groups.extend(family.groups)
                break
        else:
            merged.append(family)
    return merged


def _pattern_set(family: Family) -> set[tuple[int, ...]]:
    return {_pattern(g.ranks) for g in family.groups}


def _pattern(ranks: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(r - ranks[0] for r in ranks)


def _disjoint(groups: Iterable[GroupUse]) -> bool:
    seen: set[int] = set()
    for group in groups:
        if not seen.isdisjoint(group.ranks):
            return False
        seen.update(group.ranks)
    return True


def _split(groups: list[GroupUse], hints: frozenset[str]) -> list[Family]:
    """Groups of one size and description as partitions."""
    if _disjoint(groups):
        return [Family(groups, hints)]
    everybody = {r for g in groups for r in g.ranks}
    for key in (lambda g: _pattern(g.ranks), _use):
        parts: dict[object, list[GroupUse]] = {}
        for group in groups:
            parts.setdefault(key(group), []).append(group)
        whole = [k for k, p in parts.items() if _disjoint(p) and len(p) * len(p[0].ranks) == len(everybody)]
        if whole:  # the rest (ends of the pipeline that share embeddings, say) forms families of its own
            rest = [g for k, p in parts.items() if k not in whole for g in p]
            return [Family(parts[k], hints) for k in sorted(whole, key=repr)] + (
                _split(rest, hints) if rest else []
            )
    return _two_colour(groups, hints)


def _use(group: GroupUse) -> object:
    return group.p2p > 0, tuple(sorted(group.ops))


def _two_colour(groups: list[GroupUse], hints: frozenset[str]) -> list[Family]:
    """Put each group into the first partition that it does not overlap, preferring one of the same use."""
    found: list[Family] = []
    for group in sorted(groups, key=lambda g: (repr(_use(g)), -g.collectives, g.ranks)):
        fits = [f for f in found if _disjoint([*f.groups, group])]
        alike = [f for f in fits if _use(f.groups[0]) == _use(group)]
        chosen = alike or fits
        if chosen:
            chosen[0].groups.append(group)
        else:
            found.append(Family([group], hints))
    return found


def _complete(family: Family, world: tuple[int, ...]) -> None:
    """Add the blocks that no read rank belongs to, where the pattern of the others leaves one way only."""
    pattern = _pattern(family.groups[0].ranks)
    if any(_pattern(g.ranks) != pattern for g in family.groups):
        return
    left = set(world) - set(family.blocks)
    number = len(family.groups)
    for first in sorted(left):
        if first not in left:
            continue
        block = {first + p for p in pattern}
        if not block <= left:
            return
        family.blocks.update(dict.fromkeys(block, number))
        number += 1
        left -= block


def join(blocks: Sequence[Blocks], ranks: tuple[int, ...]) -> Blocks:
    """Return the connected components of ranks that share a block of any partition, numbered by smallest rank."""
    sets = DisjointSets(ranks)
    for partition in blocks:
        first: Blocks = {}
        for r in ranks:
            sets.join(first.setdefault(partition[r], r), r)
    numbers: Blocks = {}
    return {r: numbers.setdefault(sets.find(r), len(numbers)) for r in ranks}


def orthogonal(a: Blocks, b: Blocks, ranks: tuple[int, ...]) -> bool:
    """Whether blocks of `a` and `b` share at most one rank each, and together form the full product of both."""
    pairs = {(a[r], b[r]) for r in ranks}
    if len(pairs) != len(ranks):
        return False
    size = (len(ranks) // len(set(a.values()))) * (len(ranks) // len(set(b.values())))
    counts: Blocks = {}
    for number in join([a, b], ranks).values():
        counts[number] = counts.get(number, 0) + 1
    return set(counts.values()) == {size}


def refines(coarse: Blocks, fine: Blocks, ranks: tuple[int, ...]) -> bool:
    """Whether every block of `fine` lies within one block of `coarse`."""
    home: Blocks = {}
    return all(home.setdefault(fine[r], coarse[r]) == coarse[r] for r in ranks)
