"""Axes inside others: groups of experts, which cut the ranks of a pipeline stage into equal parts.

The description of a group tells that experts are spread over it; of groups without one, all-to-alls that bring other
numbers of elements each time do. Like any axis, this one is taken from membership: the groups must part all ranks of
the mesh and stay within a stage. They need not lie along `dp` alone: Megatron folds context parallelism, and tensor
parallelism where experts are not cut, into them, and so does torchtitan.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from tracekit.axes import PARTS, PIPELINE, TABLE
from tracekit.disjoint_sets import DisjointSets
from tracekit.errors import MeshError
from tracekit.mesh.families import GroupUse
from tracekit.mesh.grid import Mesh, Part
from tracekit.mesh.group_descriptions import hinted_dims, hinted_part, is_copies, is_foreign

Members = tuple[int, ...]
ALL_TO_ALL: Final = "all_to_all"
"""The operation that sends tokens to experts."""


def with_parts(mesh: Mesh, uses: Sequence[GroupUse]) -> Mesh:
    """Return `mesh` with the axes inside others that the groups in use tell; as it is where they tell none."""
    parts = {name: Part(groups) for name in PARTS if (groups := _groups_of(mesh, uses, name))}
    return replace(mesh, parts=parts) if parts else mesh


def given_parts(mesh: Mesh, sizes: Mapping[str, int], uses: Sequence[GroupUse]) -> Mesh:
    """Return `mesh` with the axes inside others that a user gives among `sizes`, and with those that the groups tell.

    Where no group tells them, they are those of the usual numbering. Raises MeshError where a size does not divide the
    ranks of a stage, or the groups tell another one.
    """
    parts = {}
    for name in PARTS:
        of_axis = _groups_of(mesh, uses, name)
        size = sizes.get(name, len(of_axis[0]) if of_axis else 1)
        if of_axis and len(of_axis[0]) != size:
            raise MeshError(f"{name}={size}, but the groups of {name} have {len(of_axis[0])} ranks")
        sending = sorted({u.ranks for u in uses if ALL_TO_ALL in u.ops and len(u.ranks) == size})
        if size > 1:
            parts[name] = Part(of_axis or _whole(mesh, sending) or _numbered(mesh, name, size))
    return replace(mesh, parts=parts) if parts else mesh


def _groups_of(mesh: Mesh, uses: Sequence[GroupUse], axis: str) -> tuple[Members, ...]:
    """The groups of an axis inside another as descriptions tell them, else the use; empty if nothing does."""
    described = {u.ranks for u in uses if len(u.ranks) > 1 and hinted_part(u.descs) == axis}
    dealing = {
        u.ranks
        for u in uses
        if len(u.ranks) > 1
        and PARTS[axis].deals_tokens
        and u.dealt
        and not is_foreign(u.descs)
        and hinted_dims(u.descs) <= {PARTS[axis].inside}
    }
    sending = {
        u.ranks for u in uses if u.ranks in described and ALL_TO_ALL in u.ops
    }  # copies may be called alike
    for some in (described, sending, dealing):
        for size in sorted({len(ranks) for ranks in some}, reverse=True):
            groups = _whole(mesh, [ranks for ranks in sorted(some) if len(ranks) == size])
            if groups:
                return _aligned(groups, [u.ranks for u in uses if is_copies(u.descs)])
    return ()


def _aligned(groups: tuple[Members, ...], copies: Sequence[Members]) -> tuple[Members, ...]:
    """`groups` in whose order ranks of one group of `copies` have one place; as they are where copies tell no order."""
    sets = DisjointSets(rank for group in groups for rank in group)
    for ranks in copies:
        for rank in ranks:
            sets.join(ranks[0], rank)
    place: dict[int, int] = {}
    for group in groups:
        held = [sets.find(rank) for rank in group]
        if len(set(held)) < len(held) or 0 < sum(one in place for one in held) < len(held):
            return groups
        place |= {one: at for at, one in enumerate(held) if one not in place}
    return tuple(tuple(sorted(group, key=lambda rank: place[sets.find(rank)])) for group in groups)


def _whole(mesh: Mesh, groups: Sequence[Members]) -> tuple[Members, ...]:
    """`groups` with those of ranks that left no trace, each in the order of coordinates; empty unless they part a mesh.

    What is missing is placed as the others are, where one way to do so is left.
    """
    ranks = [rank for group in groups for rank in group]
    if not ranks or not set(ranks) <= mesh.coordinates.keys() or len(set(ranks)) < len(ranks):
        return ()
    if any(len({mesh.stage(rank) for rank in group}) > 1 for group in groups):
        return ()
    ordered = [_ordered(mesh, group) for group in groups]
    seen = set(ranks)
    left = {place: rank for rank, place in mesh.coordinates.items() if rank not in seen}
    offsets = {tuple(_offset(mesh.coordinates[g[0]], mesh.coordinates[r]) for r in g) for g in ordered}
    if left and len(offsets) > 1:
        return ()
    by = next(iter(offsets))
    while left:
        first = min(left, key=lambda place: place[::-1])
        places = [tuple(a + b for a, b in zip(first, offset, strict=True)) for offset in by]
        if not left.keys() >= set(places):
            return ()
        ordered.append(tuple(left.pop(place) for place in places))
    return tuple(ordered)


def _numbered(mesh: Mesh, axis: str, size: int) -> tuple[Members, ...]:
    """Groups of `size` neighbours of a stage: of ranks that hold the same dense layers, else of all.

    Raises MeshError where neither can be parted so.
    """
    dividing = {row.name for row in TABLE if row.divides_model}
    for free in ([d for d in mesh.order if d not in dividing], [d for d in mesh.order if d != PIPELINE]):
        lines = sorted({mesh.line(rank, free) for rank in mesh.coordinates})
        if len(lines[0]) % size == 0:
            ordered = [_ordered(mesh, line) for line in lines]
            return tuple(line[at : at + size] for line in ordered for at in range(0, len(line), size))
    raise MeshError(f"{axis}={size} does not divide the {len(lines[0])} ranks of a pipeline stage")


def _ordered(mesh: Mesh, group: Iterable[int]) -> Members:
    """Members by their coordinates, the outer axis first, so that equal indices lie alike in all groups."""
    return tuple(sorted(group, key=lambda rank: mesh.coordinates[rank][::-1]))


def _offset(start: tuple[int, ...], end: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(b - a for a, b in zip(start, end, strict=True))
