"""A mesh or an order of axes that the user gives, beside what the process groups say."""

from collections.abc import Sequence

from tracekit.errors import MeshError
from tracekit.mesh.families import GroupUse
from tracekit.mesh.grid import Mesh, from_sizes
from tracekit.mesh.group_descriptions import hinted_dims, is_foreign
from tracekit.mesh.infer import infer


def misnamed(mesh: Mesh, uses: Sequence[GroupUse]) -> tuple[GroupUse, str] | None:
    """Return the first group with a description that names an axis along which its members do not lie, and the axis."""
    for use in uses:
        hints = hinted_dims(use.descs)
        if len(use.ranks) < 2 or len(hints) != 1 or is_foreign(use.descs):
            continue
        (axis,) = hints
        places = [mesh.coordinates.get(rank) for rank in use.ranks]
        if len({None if place is None else place[mesh.order.index(axis)] for place in places}) < 2:
            return use, axis
    return None


def reordered(mesh: Mesh, order: Sequence[str] | None) -> bool:
    """Return whether `order` (inner to outer) numbers the ranks otherwise than `mesh`, if its ranks have an order."""
    if order is None or from_sizes(mesh.sizes, mesh.order).coordinates != mesh.coordinates:
        return False
    given = from_sizes(mesh.sizes, order)
    at = [given.order.index(axis) for axis in mesh.order]
    return any(tuple(given.coordinates[r][i] for i in at) != place for r, place in mesh.coordinates.items())


def said(uses: Sequence[GroupUse], world: tuple[int, ...]) -> str:
    """Return the mesh in the groups' descriptions, as the option that a user would give; empty if there is none."""
    try:
        found = infer(uses, world)
    except MeshError:
        return ""
    if found.flat:
        return ""
    return f"the groups say --mesh {written(found.mesh)}"


def written(mesh: Mesh) -> str:
    """Return a mesh as the option `--mesh` takes it, inner to outer."""
    return ",".join(f"{axis}={mesh.size(axis)}" for axis in (*mesh.order, *mesh.parts))
