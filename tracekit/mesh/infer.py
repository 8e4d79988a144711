"""Infers the mesh from process-group membership: every axis is a partition of the world into equal groups.

Families of groups (one partition each) are formed by description, rank pattern and use; the smallest mutually
orthogonal ones are the axes, joins of them (dp×cp, tp×cp, model parallel) are recognised as unions, and a note names
families that fit neither. Where descriptions alone give a mesh, groups without one add no axis. Nothing here assumes
strides: any numbering of ranks gives the same mesh.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

from tracekit.axes import AXES, DATA
from tracekit.errors import MeshError, MeshUnknownError
from tracekit.mesh.axis_names import name_axes
from tracekit.mesh.families import Blocks, Family, GroupUse, families, join, orthogonal, refines
from tracekit.mesh.grid import Mesh
from tracekit.mesh.group_descriptions import hinted_dims, is_foreign, mentions_part
from tracekit.mesh.parts import with_parts


@dataclass(frozen=True)
class Inference:
    """A mesh, and in words the assumptions made and the groups ignored."""

    mesh: Mesh
    notes: tuple[str, ...]
    flat: bool  # no group structure was seen: the world is one data-parallel group
    rest: int = 0  # size of the axis without groups of its own, inferred from the ranks that the others leave
    ignored: bool = False  # groups are along no axis


def infer(
    uses: Sequence[GroupUse],
    world: Sequence[int],
    order: Sequence[str] | None = None,
    programs: Mapping[int, object] | None = None,
    *,
    whole: bool = True,
) -> Inference:
    """Return the mesh of `world` (all ranks of the job), from its process groups.

    `order` names the axes inner to outer if descriptions do not. `programs` are given if messages have no known
    peer: what each rank runs, equal for ranks of one pipeline stage. `whole` says that `uses` are all groups of the
    job, so that one axis may have none. Raises MeshUnknownError when the groups do not determine a mesh, MeshError
    when they contradict each other.
    """
    found = _of_axes(uses, tuple(sorted(world)), order, programs, whole=whole)
    mesh = with_parts(found.mesh, uses)
    return replace(found, mesh=mesh, notes=(*_foreign(uses, mesh), *found.notes))


def _foreign(uses: Sequence[GroupUse], mesh: Mesh) -> list[str]:
    """A note on the groups that are along no axis of the mesh by their descriptions, if there are any."""
    few = {
        u.ranks: u
        for u in uses
        if 2 <= len(u.ranks) < mesh.world_size and not u.partial and is_foreign(u.descs)
    }
    placed = {
        r for r, u in few.items() if mesh.parts and mentions_part(u.descs) and mesh.dims_of(r) is not None
    }
    left = [u for ranks, u in few.items() if ranks not in placed]
    text = ", ".join(sorted({d for u in left for d in u.descs})[:3])
    return [f"{len(left)} process groups beside the axes ignored ({text})"] if left else []


def _of_axes(
    uses: Sequence[GroupUse],
    ranks: tuple[int, ...],
    order: Sequence[str] | None,
    programs: Mapping[int, object] | None,
    *,
    whole: bool,
) -> Inference:
    """The mesh of the axes that no other one holds. Arguments and errors as of `infer`."""
    ignored, notes = list[str](), list[str]()
    axes = _by_description(uses, ranks)
    if not axes:
        axes = _with_rest(_axes(families(uses, ranks, ignored), ranks, ignored), ranks, notes, whole=whole)
    axes = [_with_messages(a, [u for u in uses if u.partial]) for a in axes]
    if not axes:
        dim = _world_dim(uses, ranks)
        if dim is not None:
            return Inference(_flat(ranks, dim), tuple(ignored), flat=False, ignored=bool(ignored))
        return Inference(
            _flat(ranks),
            (*ignored, "no group divides the world: taken as one data-parallel group"),
            flat=True,
            ignored=bool(ignored),
        )
    rest = next(
        (a.size for a in axes if not (a.hints or any(g.named or g.collectives or g.p2p for g in a.groups))), 0
    )
    named = name_axes(_described(axes, uses, ranks), order, notes, programs)
    return Inference(_build(named, ranks), (*ignored, *notes), flat=False, rest=rest, ignored=bool(ignored))


def _by_description(uses: Sequence[GroupUse], ranks: tuple[int, ...]) -> list[Family]:
    """Return the axes that descriptions name, each alone, where these make up the world; else none.

    Groups without a description may then be of another mesh of the same ranks, as that of experts is, with other sizes:
    they show no axis of this one.
    """
    ignored = list[str]()
    named = families([u for u in uses if hinted_dims(u.descs)], ranks, ignored)
    try:
        axes = _with_rest(_axes(named, ranks, ignored), ranks, [], whole=False)
    except MeshUnknownError:
        return []
    return axes if not ignored and all(len(axis.hints) == 1 for axis in axes) else []


def _flat(ranks: tuple[int, ...], dim: str = DATA) -> Mesh:
    sizes = {d: len(ranks) if d == dim else 1 for d in AXES}
    return Mesh(AXES, sizes, {r: tuple(i if d == dim else 0 for d in AXES) for i, r in enumerate(ranks)})


def _world_dim(uses: Sequence[GroupUse], ranks: tuple[int, ...]) -> str | None:
    """The axis that groups of the whole world are described as, where one description is plain."""
    hints = [(hinted_dims(u.descs), u) for u in uses if u.ranks == ranks]
    plain = [(u.collectives + u.p2p, next(iter(h))) for h, u in hints if len(h) == 1]
    return max(plain)[1] if plain and len(ranks) > 1 else None


def _described(axes: list[Family], uses: Sequence[GroupUse], ranks: tuple[int, ...]) -> list[Family]:
    """Return `axes`; those without a description get the only one that a group of all ranks leaves them.

    If the data and context parallel group of a job holds all ranks, there is no other axis.
    """
    dims = {d for u in uses if u.ranks == ranks for d in hinted_dims(u.descs)}
    left = dims - {d for axis in axes if len(axis.hints) == 1 for d in axis.hints}
    if len(left) != 1 or len(dims) == 1:  # one name for all shows no axis inside
        return axes
    return [replace(axis, hints=frozenset(left)) if not axis.hints else axis for axis in axes]


def _axes(found: list[Family], ranks: tuple[int, ...], ignored: list[str]) -> list[Family]:
    """Smallest mutually orthogonal families; a residual axis where a union is known but its part is not.

    ignored: takes a sentence for each family that is along no axis.
    """
    axes: list[Family] = []
    ordered = sorted(found, key=lambda f: (len(f.hints) > 1, f.size, -f.calls - f.p2p, f.stride))
    for family in ordered:
        joined = join([a.blocks for a in axes], ranks) if axes else {r: i for i, r in enumerate(ranks)}
        if (
            axes
            and len({(joined[r], family.blocks[r]) for r in ranks}) == len(set(family.blocks.values()))
            and any(a.blocks != family.blocks for a in axes)
            and refines(joined, family.blocks, ranks)
        ):
            continue  # a union of axes already found (or the same partition again)
        if orthogonal(joined, family.blocks, ranks):
            axes.append(family)
        elif _coarser_than_some(family, axes, ranks):
            inner = [a for a in axes if refines(family.blocks, a.blocks, ranks)]
            residual = _residual(family.blocks, inner, ranks)
            if residual is not None:
                hints = family.hints - frozenset().union(*(a.hints for a in inner))
                axes.append(Family(residual, hints, {r: n for n, g in enumerate(residual) for r in g.ranks}))
        else:
            ignored.append(f"groups of {family.size} ranks that cross the axes ignored")
    return axes


def _with_rest(axes: list[Family], ranks: tuple[int, ...], notes: list[str], *, whole: bool) -> list[Family]:
    """Return `axes`, with another one of the ranks that they leave, if they leave any.

    whole: whether an axis without groups is taken from these. notes: takes a sentence on it.
    """
    if axes and prod(a.size for a in axes) < len(ranks):
        residual = _residual(dict.fromkeys(ranks, 0), axes, ranks) if whole else None
        if residual is None:
            raise MeshUnknownError(
                f"the process groups leave {len(ranks) // prod(a.size for a in axes)} of {len(ranks)} ranks "
                "unexplained"
            )
        axes.append(Family(residual, frozenset(), {r: n for n, g in enumerate(residual) for r in g.ranks}))
        notes.append(
            f"an axis of {len(residual[0].ranks)} ranks without groups of its own is inferred from the rest"
        )
    return axes


def _with_messages(axis: Family, chains: Sequence[GroupUse]) -> Family:
    """`axis` with the messages of those `chains`, known in parts, that lie in its groups.

    A chain may name a rank without a trace, which is in no group.
    """
    inside = [c for c in chains if len({axis.blocks.get(r, -1) for r in c.ranks}) == 1]
    sent: Counter[int] = Counter()
    for chain in inside:
        sent[axis.blocks.get(chain.ranks[0], -1)] += chain.p2p
    groups = [replace(g, p2p=g.p2p + sent[axis.blocks[g.ranks[0]]]) for g in axis.groups]
    return replace(axis, groups=groups)


def _coarser_than_some(family: Family, axes: list[Family], ranks: tuple[int, ...]) -> bool:
    return any(refines(family.blocks, a.blocks, ranks) for a in axes)


def _residual(coarse: Blocks, inner: list[Family], ranks: tuple[int, ...]) -> list[GroupUse] | None:
    """Groups along the axis that is left of `coarse` after the `inner` axes, by rank order within each block."""
    joined = join([a.blocks for a in inner], ranks) if inner else {r: i for i, r in enumerate(ranks)}
    layers: dict[int, dict[int, list[int]]] = {}
    for r in ranks:
        layers.setdefault(coarse[r], {}).setdefault(joined[r], []).append(r)
    groups: list[GroupUse] = []
    sizes = set()
    for block in layers.values():
        columns = list(block.values())
        if len({len(c) for c in columns}) != 1:
            return None
        groups.extend(GroupUse(tuple(line), named=False) for line in zip(*columns, strict=True))
        sizes.add(len(columns))
    return groups if len(sizes) == 1 and sizes != {1} else None


def _build(named: list[tuple[str, list[Family]]], ranks: tuple[int, ...]) -> Mesh:
    """The mesh: a rank's index on an axis numbers the block of all other axes it lies in, by smallest rank."""
    columns: dict[str, Blocks] = {}
    for name, mine in named:
        others = [a.blocks for n, axes in named if n != name for a in axes]
        columns[name] = join(others, ranks) if others else {r: i for i, r in enumerate(ranks)}
        if len(set(columns[name].values())) != prod(a.size for a in mine):
            raise MeshError("the process groups contradict each other")
    present = [name for name, _ in named]
    order = _place(present)
    coordinates = {r: tuple(columns[d][r] if d in columns else 0 for d in order) for r in ranks}
    return Mesh(
        order, {d: max(c[i] for c in coordinates.values()) + 1 for i, d in enumerate(order)}, coordinates
    )


def _place(present: list[str]) -> tuple[str, ...]:
    """Present axes in their order, absent ones (size 1) where the default order has them."""
    order = list(present)
    for dim in AXES:
        if dim not in order:
            after = [order.index(d) for d in AXES[: AXES.index(dim)] if d in order]
            order.insert(max(after, default=-1) + 1, dim)
    return tuple(order)
