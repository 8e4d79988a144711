"""Whether process groups lie along the axes of a mesh: only groups that the files name may contradict one."""

from collections import defaultdict
from collections.abc import Iterator, Sequence

import numpy as np

from tracekit.axes import with_extensions
from tracekit.disjoint_sets import DisjointSets
from tracekit.inference.mesh.group_uses import CHAIN
from tracekit.mesh import GroupUse, Mesh
from tracekit.mesh.families import families
from tracekit.mesh.group_descriptions import hinted_dims, is_foreign
from tracekit.thresholds.slowrank import MEMBERS_LISTED


def shown(use: GroupUse) -> str:
    """Return the members and descriptions of a group as text for messages."""
    members = ", ".join(map(str, use.ranks[:MEMBERS_LISTED])) + (
        ", …" if len(use.ranks) > MEMBERS_LISTED else ""
    )
    return f"[{members}]" + (f" ({', '.join(use.descs)})" if use.descs else "")


def contradiction(mesh: Mesh, uses: Sequence[GroupUse], *, inferred: bool = False) -> GroupUse | None:
    """Return the first group in use that is no line, plane or block of the mesh; None where all fit.

    Groups that no file names do not count, and against a mesh that was inferred neither do chains of messages.

    The two ends of a line fit as well: the first and last stage of a pipeline share a group of their own where they
    share the embedding. So do parts of an axis that connect all of it, as replicas and shards do, together with unused
    ones; unless the mesh is `inferred` from the groups, their descriptions must name that axis.

    Where descriptions name every axis, groups without one may be of another mesh of the same stages, as of experts.
    """
    parts: dict[str, list[tuple[GroupUse, list[int]]]] = defaultdict(list)
    unused: dict[str, list[list[int]]] = defaultdict(list)
    for use in _crossing(mesh, uses, inferred=inferred):
        known = all(r in mesh.coordinates for r in use.ranks)
        if not (use.collectives or use.p2p):
            axis, values = _part(mesh, use, inferred=inferred) if known else ("", [])
            unused[axis] += [values] if values else []
            continue
        if not known:
            return use
        if use.ops == CHAIN and sum(len(set(c)) > 1 for c in _columns(mesh, use)) == 1:
            continue  # messages along one axis, with a rank between that was not recorded
        axis, values = _part(mesh, use, inferred=inferred)
        if values == [0, mesh.sizes.get(axis, 0) - 1]:
            continue
        if not values:
            return use
        parts[axis].append((use, values))
    for axis, found in parts.items():
        whole = DisjointSets(range(mesh.sizes[axis]))
        for values in [*(v for _, v in found), *unused[axis]]:
            for value in values:
                whole.join(values[0], value)
        if any(whole.find(value) for value in range(mesh.sizes[axis])):
            return found[0][0]
    return None


def _crossing(mesh: Mesh, uses: Sequence[GroupUse], *, inferred: bool) -> Iterator[GroupUse]:
    """Yield the groups that may contradict `mesh` and are neither its lines nor of another mesh."""
    beside = _of_another_mesh(mesh, uses)
    for use in uses:
        doubtful = not use.named or (inferred and use.ops == CHAIN)
        if doubtful or len(use.ranks) < 2 or is_foreign(use.descs) or use.ranks in beside:
            continue
        if mesh.dims_of(use.ranks) is None:
            yield use


def _of_another_mesh(mesh: Mesh, uses: Sequence[GroupUse]) -> set[tuple[int, ...]]:
    """Return the groups without a description that part all ranks, each within a stage, and lie along no axis.

    None unless each axis of `mesh` has a group with a description that names it, and the other axes it lies along.
    """
    named = {
        axis
        for use in uses
        if (hints := hinted_dims(use.descs)) and hints == frozenset(mesh.dims_of(use.ranks) or ())
        for axis in hints
    }
    if any(size > 1 and axis not in named for axis, size in mesh.sizes.items()):
        return set()
    bare = [u for u in uses if not hinted_dims(u.descs) and not is_foreign(u.descs)]
    others = [u for u in bare if mesh.dims_of(u.ranks) is None]
    return {
        use.ranks
        for family in families(others, tuple(mesh.coordinates), [])
        for use in family.groups
        if all(len({mesh.stage(rank) for rank in group.ranks}) == 1 for group in family.groups)
    }


def _columns(mesh: Mesh, use: GroupUse) -> list[tuple[int, ...]]:
    """Return for each axis of `mesh.order` the members' indices on it."""
    return list(zip(*(mesh.coordinates[r] for r in use.ranks), strict=True))


def _part(mesh: Mesh, use: GroupUse, *, inferred: bool) -> tuple[str, list[int]]:
    """Return (axis, indices on it) of a group that is part of the line or block of its description; else ("", [])."""
    columns = [sorted(set(c)) for c in _columns(mesh, use)]
    along = {axis for axis, values in zip(mesh.order, columns, strict=True) if len(values) > 1}
    partial = [
        (axis, values)
        for axis, values in zip(mesh.order, columns, strict=True)
        if 1 < len(values) < mesh.sizes[axis]
    ]
    full = int(np.prod([len(values) for values in columns])) == len(use.ranks)
    hints = hinted_dims(use.descs)
    if not full or len(partial) != 1:
        return "", []
    axis, values = partial[0]
    ends = values == [0, mesh.sizes[axis] - 1]
    shards = along == with_extensions(axis)  # FSDP shards over both and is called after one
    plain = inferred and not hints
    agrees = (
        along == hints or (shards and (plain or {axis} == hints)) or (along == {axis} and (ends or plain))
    )
    return (axis, values) if agrees else ("", [])
