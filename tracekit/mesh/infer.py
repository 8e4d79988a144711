"""Infers the mesh from process-group membership: every axis is a partition of the world into equal groups.

Families of groups (one partition each) are formed by description, rank pattern and use; the smallest mutually
orthogonal ones are the axes, joins of them (dp×cp, tp×cp, model parallel) are recognised as unions, and what fits
neither is ignored with a word. Nothing here assumes strides: any numbering of ranks gives the same mesh.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import prod

from tracekit.errors import MeshError
from tracekit.mesh.grid import DIMS, Mesh
from tracekit.mesh.names import hinted_dims, is_foreign

_MANY_CALLS = 24
_MOSTLY = 0.6
_ALTERNATING = 0.93


@dataclass(frozen=True)
class GroupUse:
    """A process group and what the traces show it doing (counts over one member, zero where unknown)."""

    ranks: tuple[int, ...]
    descs: tuple[str, ...] = ()
    collectives: int = 0
    p2p: int = 0
    ops: frozenset[str] = frozenset()
    exposed: float = 0.0  # share of its collectives that compute stood still for
    alternation: float = 0.0  # share of its collectives that differ in kind from the one before


@dataclass
class _Family:
    """Disjoint groups of one size: a partition of (the seen part of) the world."""

    groups: list[GroupUse]
    hints: frozenset[str]
    blocks: dict[int, int] = field(default_factory=dict)  # rank → number of its block

    @property
    def size(self) -> int:
        return len(self.groups[0].ranks)

    @property
    def p2p(self) -> int:
        return sum(g.p2p for g in self.groups)

    @property
    def calls(self) -> float:
        return sum(g.collectives for g in self.groups) / len(self.groups)

    @property
    def regular(self) -> bool:
        return len({_pattern(g.ranks) for g in self.groups}) == 1

    @property
    def stride(self) -> float:
        return sum((g.ranks[-1] - g.ranks[0]) / max(1, len(g.ranks) - 1) for g in self.groups) / len(
            self.groups
        )


@dataclass(frozen=True)
class Inference:
    """A mesh, and in words what was assumed or ignored on the way."""

    mesh: Mesh
    notes: tuple[str, ...]
    flat: bool  # no group structure was seen: the world is one data-parallel group


def infer(uses: Sequence[GroupUse], world: Sequence[int], order: Sequence[str] | None = None) -> Inference:
    """The mesh of `world` (all ranks of the job, sorted) from its process groups.

    `order` names the axes inner to outer where descriptions do not. Raises MeshError, naming the flag to give,
    when the groups do not determine a mesh.
    """
    ranks = tuple(sorted(world))
    notes: list[str] = []
    families = _families(uses, ranks, notes)
    axes = _axes(families, ranks, notes)
    if not axes:
        dim = _world_dim(uses, ranks)
        if dim is not None:
            return Inference(_flat(ranks, dim), tuple(notes), flat=False)
        return Inference(
            _flat(ranks), (*notes, "no group divides the world: taken as one data-parallel group"), flat=True
        )
    named = _name(axes, order, notes)
    return Inference(_build(named, ranks), tuple(notes), flat=False)


def _flat(ranks: tuple[int, ...], dim: str = "dp") -> Mesh:
    sizes = {d: len(ranks) if d == dim else 1 for d in DIMS}
    return Mesh(DIMS, sizes, {r: tuple(i if d == dim else 0 for d in DIMS) for i, r in enumerate(ranks)})


def _world_dim(uses: Sequence[GroupUse], ranks: tuple[int, ...]) -> str | None:
    """The axis that groups of the whole world are described as, where one description is plain."""
    told = [(hinted_dims(u.descs), u) for u in uses if u.ranks == ranks]
    plain = [(u.collectives + u.p2p, next(iter(h))) for h, u in told if len(h) == 1]
    return max(plain)[1] if plain and len(ranks) > 1 else None


def _families(uses: Sequence[GroupUse], world: tuple[int, ...], notes: list[str]) -> list[_Family]:
    """Partitions among the groups: by description and size, else by rank pattern, else by use."""
    inside = set(world)
    seen: dict[tuple[int, ...], GroupUse] = {}
    for use in uses:
        if 2 <= len(use.ranks) < len(world) and inside.issuperset(use.ranks):
            seen[use.ranks] = use
    foreign = [u for u in seen.values() if is_foreign(u.descs)]
    if foreign:
        text = ", ".join(sorted({d for u in foreign for d in u.descs})[:3])
        notes.append(f"{len(foreign)} process groups beside the four axes ignored ({text})")
    rest = [u for u in seen.values() if not is_foreign(u.descs)]
    families: list[_Family] = []
    keys = {u.ranks: (len(u.ranks), tuple(sorted(hinted_dims(u.descs)))) for u in rest}
    for key in sorted(set(keys.values())):
        families.extend(_split([u for u in rest if keys[u.ranks] == key], frozenset(key[1])))
    whole = []
    for family in _merge(families):
        for number, group in enumerate(sorted(family.groups, key=lambda g: g.ranks)):
            family.blocks.update(dict.fromkeys(group.ranks, number))
        if len(family.blocks) < len(world):
            _complete(family, world)
        if len(family.blocks) == len(world):
            whole.append(family)
        else:
            notes.append(
                f"groups of {family.size} ranks that cover {len(family.blocks)} of {len(world)} ranks ignored"
            )
    return whole


def _merge(families: list[_Family]) -> list[_Family]:
    """Joins families of one size whose groups are disjoint: partitions seen in parts."""
    merged: list[_Family] = []
    for family in families:
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


def _pattern_set(family: _Family) -> set[tuple[int, ...]]:
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


def _split(groups: list[GroupUse], hints: frozenset[str]) -> list[_Family]:
    """Groups of one size and description as partitions."""
    if _disjoint(groups):
        return [_Family(groups, hints)]
    everybody = {r for g in groups for r in g.ranks}
    for key in (lambda g: _pattern(g.ranks), _use):
        parts: dict[object, list[GroupUse]] = {}
        for group in groups:
            parts.setdefault(key(group), []).append(group)
        whole = [k for k, p in parts.items() if _disjoint(p) and len(p) * len(p[0].ranks) == len(everybody)]
        if whole:  # the rest (ends of the pipeline that share embeddings, say) forms families of its own
            rest = [g for k, p in parts.items() if k not in whole for g in p]
            return [_Family(parts[k], hints) for k in sorted(whole, key=repr)] + (
                _split(rest, hints) if rest else []
            )
    return _two_colour(groups, hints)


def _use(group: GroupUse) -> object:
    return group.p2p > 0, tuple(sorted(group.ops))


def _two_colour(groups: list[GroupUse], hints: frozenset[str]) -> list[_Family]:
    """Puts each group into the first partition it does not overlap, likest use first (any numbering of ranks)."""
    families: list[_Family] = []
    for group in sorted(groups, key=lambda g: (repr(_use(g)), -g.collectives, g.ranks)):
        fits = [f for f in families if _disjoint([*f.groups, group])]
        alike = [f for f in fits if _use(f.groups[0]) == _use(group)]
        chosen = alike or fits
        if chosen:
            chosen[0].groups.append(group)
        else:
            families.append(_Family([group], hints))
    return families


def _complete(family: _Family, world: tuple[int, ...]) -> None:
    """Adds the blocks that no read rank belongs to, where the pattern of the others leaves one way only."""
    pattern = _pattern(family.groups[0].ranks)
    if any(_pattern(g.ranks) != pattern for g in family.groups):
        return
    left, inside = sorted(set(world) - set(family.blocks)), set(world)
    number = len(family.groups)
    while left:
        block = {left[0] + p for p in pattern}
        if not (block <= inside and block <= set(left)):
            return
        family.blocks.update(dict.fromkeys(block, number))
        number += 1
        left = [r for r in left if r not in block]


def _join(blocks: Sequence[dict[int, int]], ranks: tuple[int, ...]) -> dict[int, int]:
    """Connected components when ranks in one block of any partition are joined; numbered by smallest rank."""
    parent = {r: r for r in ranks}

    def find(r: int) -> int:
        while parent[r] != r:
            parent[r] = parent[parent[r]]
            r = parent[r]
        return r

    for partition in blocks:
        first: dict[int, int] = {}
        for r in ranks:
            a, b = find(first.setdefault(partition[r], r)), find(r)
            parent[max(a, b)] = min(a, b)
    numbers: dict[int, int] = {}
    return {r: numbers.setdefault(find(r), len(numbers)) for r in ranks}


def _orthogonal(a: dict[int, int], b: dict[int, int], ranks: tuple[int, ...]) -> bool:
    """Whether blocks of `a` and `b` share at most one rank, and their join is their full product."""
    pairs = {(a[r], b[r]) for r in ranks}
    if len(pairs) != len(ranks):
        return False
    size = (len(ranks) // len(set(a.values()))) * (len(ranks) // len(set(b.values())))
    counts: dict[int, int] = {}
    for number in _join([a, b], ranks).values():
        counts[number] = counts.get(number, 0) + 1
    return set(counts.values()) == {size}


def _axes(families: list[_Family], ranks: tuple[int, ...], notes: list[str]) -> list[_Family]:
    """Smallest mutually orthogonal families; a residual axis where a union is known but its part is not."""
    axes: list[_Family] = []
    ordered = sorted(families, key=lambda f: (len(f.hints) > 1, f.size, -f.calls - f.p2p, f.stride))
    for family in ordered:
        joined = _join([a.blocks for a in axes], ranks) if axes else {r: i for i, r in enumerate(ranks)}
        if (
            axes
            and len({(joined[r], family.blocks[r]) for r in ranks}) == len(set(family.blocks.values()))
            and any(a.blocks != family.blocks for a in axes)
            and _refines(joined, family.blocks, ranks)
        ):
            continue  # a union of axes already found (or the same partition again)
        if _orthogonal(joined, family.blocks, ranks):
            axes.append(family)
        elif _coarser_than_some(family, axes, ranks):
            residual = _residual(
                family.blocks, [a for a in axes if _refines(family.blocks, a.blocks, ranks)], ranks
            )
            if residual is not None:
                hints = family.hints - frozenset().union(*(a.hints for a in axes))
                axes.append(_Family(residual, hints, {r: n for n, g in enumerate(residual) for r in g.ranks}))
        else:
            notes.append(f"groups of {family.size} ranks that cross the axes ignored")
    if axes and prod(a.size for a in axes) < len(ranks):
        residual = _residual(dict.fromkeys(ranks, 0), axes, ranks)
        if residual is None:
            raise MeshError(
                f"the process groups leave {len(ranks) // prod(a.size for a in axes)} of {len(ranks)} ranks "
                "unexplained; give the mesh, as in --mesh tp=2,cp=1,pp=2,dp=4"
            )
        axes.append(_Family(residual, frozenset(), {r: n for n, g in enumerate(residual) for r in g.ranks}))
        notes.append(
            f"an axis of {len(residual[0].ranks)} ranks without groups of its own is inferred from the rest"
        )
    return axes


def _refines(coarse: dict[int, int], fine: dict[int, int], ranks: tuple[int, ...]) -> bool:
    """Whether every block of `fine` lies within one block of `coarse`."""
    home: dict[int, int] = {}
    return all(home.setdefault(fine[r], coarse[r]) == coarse[r] for r in ranks)


def _coarser_than_some(family: _Family, axes: list[_Family], ranks: tuple[int, ...]) -> bool:
    return any(_refines(family.blocks, a.blocks, ranks) for a in axes)


def _residual(coarse: dict[int, int], inner: list[_Family], ranks: tuple[int, ...]) -> list[GroupUse] | None:
    """Groups along the axis that is left of `coarse` after the `inner` axes, by rank order within each block."""
    joined = _join([a.blocks for a in inner], ranks) if inner else {r: i for i, r in enumerate(ranks)}
    layers: dict[int, dict[int, list[int]]] = {}
    for r in ranks:
        layers.setdefault(coarse[r], {}).setdefault(joined[r], []).append(r)
    groups: list[GroupUse] = []
    sizes = set()
    for block in layers.values():
        columns = list(block.values())
        if len({len(c) for c in columns}) != 1:
            return None
        groups.extend(GroupUse(tuple(line)) for line in zip(*columns, strict=True))
        sizes.add(len(columns))
    return groups if len(sizes) == 1 and sizes != {1} else None


def _name(
    axes: list[_Family], order: Sequence[str] | None, notes: list[str]
) -> list[tuple[str, list[_Family]]]:
    """Axis names inner to outer: description first, then behaviour, then position; equal names are merged."""
    if all(a.regular for a in axes):
        inner_first = sorted(axes, key=lambda a: (round(a.stride, 6), a.size))
    else:  # ranks numbered otherwise: the axis that communicates most often is the inner one
        inner_first = sorted(axes, key=lambda a: (-a.calls - a.p2p, a.size, a.groups[0].ranks))
    names: dict[int, str] = {}
    for i, axis in enumerate(inner_first):
        if len(axis.hints) == 1:
            names[i] = next(iter(axis.hints))
    free = [i for i in range(len(inner_first)) if i not in names]
    if free:
        _guess(inner_first, free, names, order)
        told = ", ".join(f"{names[i]}={inner_first[i].size}" for i in free)
        notes.append(f"axes without a telling description named by their use and position: {told}")
    merged: dict[str, list[_Family]] = {}
    for i, axis in enumerate(inner_first):
        merged.setdefault(names[i], []).append(axis)
    return list(merged.items())


def _guess(axes: list[_Family], free: list[int], names: dict[int, str], order: Sequence[str] | None) -> None:
    """Names for axes that nothing describes: p2p makes a pipeline, the outermost of the rest is data."""
    left = [d for d in (order or DIMS) if d not in names.values()]
    if order is not None and len(left) >= len(free):
        chosen = left if len(left) == len(free) else _likely(left, len(free))
        names.update(zip(free, chosen, strict=True))
        return
    piped = [i for i in free if axes[i].p2p > 0]
    if "pp" in left and piped:
        best = max(piped, key=lambda i: (axes[i].stride, axes[i].p2p))
        names[best] = "pp"
        free = [i for i in free if i != best]
        left = [d for d in left if d != "pp"]
    wanted = _likely([d for d in left if d != "pp"], len(free))
    looks = [_looks(axes[i]) for i in free]
    if len(set(looks)) == len(looks) and set(looks) <= set(left):
        wanted = looks
    if len(wanted) < len(free):
        wanted = [*wanted, *[d for d in left if d not in wanted], *["dp"] * len(free)][: len(free)]
    names.update(zip(free, wanted, strict=True))


def _looks(axis: _Family) -> str:
    """The axis whose habits these are.

    Tensor parallelism alternates gathers and scatters (or all-reduces) many times and waits for them; context
    parallelism gathers layer after layer; data parallelism calls seldom, or behind compute.
    """
    shown = [g for g in axis.groups if g.collectives]
    if not shown or axis.calls < _MANY_CALLS or sum(g.exposed for g in shown) / len(shown) <= _MOSTLY:
        return "dp"
    kinds = frozenset().union(*(g.ops for g in shown))
    alternating = sum(g.alternation for g in shown) / len(shown) > _ALTERNATING
    return "tp" if alternating or "all_reduce" in kinds else "cp"


def _likely(dims: Sequence[str], count: int) -> list[str]:
    """Which `count` axes a job most likely has, in the order given: data, then tensor, pipeline, context."""
    rank = {"dp": 0, "tp": 1, "pp": 2, "cp": 3}
    chosen = set(sorted(dims, key=lambda d: rank[d])[:count])
    return [d for d in dims if d in chosen]


def _build(named: list[tuple[str, list[_Family]]], ranks: tuple[int, ...]) -> Mesh:
    """The mesh: a rank's index on an axis numbers the block of all other axes it lies in, by smallest rank."""
    columns: dict[str, dict[int, int]] = {}
    for name, mine in named:
        others = [a.blocks for n, axes in named if n != name for a in axes]
        columns[name] = _join(others, ranks) if others else {r: i for i, r in enumerate(ranks)}
        if len(set(columns[name].values())) != prod(a.size for a in mine):
            raise MeshError(
                "the process groups contradict each other; give the mesh, as in --mesh tp=2,cp=1,pp=2,dp=4"
            )
    present = [name for name, _ in named]
    order = _place(present)
    coordinates = {r: tuple(columns[d][r] if d in columns else 0 for d in order) for r in ranks}
    return Mesh(
        order, {d: max(c[i] for c in coordinates.values()) + 1 for i, d in enumerate(order)}, coordinates
    )


def _place(present: list[str]) -> tuple[str, ...]:
    """Present axes in their order, absent ones (size 1) where the default order has them."""
    order = list(present)
    for dim in DIMS:
        if dim not in order:
            after = [order.index(d) for d in DIMS[: DIMS.index(dim)] if d in order]
            order.insert(max(after, default=-1) + 1, dim)
    return tuple(order)
