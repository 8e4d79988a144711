"""Meshes and orders of axes as a user writes them on a command line."""

from collections.abc import Mapping, Sequence
from math import prod

from tracekit.axes import AXES, DATA, PARTS, TABLE
from tracekit.errors import MeshError, UsageError
from tracekit.mesh.families import GroupUse
from tracekit.mesh.grid import Mesh, from_sizes
from tracekit.mesh.group_descriptions import hinted_dims, is_foreign
from tracekit.mesh.infer import infer
from tracekit.text import whole_number
from tracekit.thresholds.ingest import MAX_PLACES


def parse_sizes(text: str) -> dict[str, int]:
    """Sizes of the axes that `text` names, as in `tp=2,dp=4`, in the order written (inner to outer).

    Case and blanks do not matter. Raises UsageError where a name is no axis or is given twice, or a size is no positive
    integer.
    """
    sizes: dict[str, int] = {}
    for part in text.split(","):
        name, _, value = (piece.strip() for piece in part.partition("="))
        name = name.lower()
        if name not in AXES and name not in PARTS:
            known = ", ".join((*AXES, *PARTS))
            raise UsageError(f"--mesh: unknown axis {name!r} in {text!r}; the axes are {known}")
        if name in sizes:
            raise UsageError(f"--mesh: axis {name} is given twice in {text!r}")
        size = whole_number(value, MAX_PLACES)
        if not size:
            raise UsageError(
                f"--mesh: size of {name} must be an integer from 1 to {MAX_PLACES}, as in {name}=2; got {value[:40]!r}"
            )
        sizes[name] = size
    return sizes


def parse_mesh(text: str) -> dict[str, int]:
    """Sizes of all axes, as in `tp=8,cp=1,pp=16,dp=128`, in the order written (inner to outer).

    Axes that `text` does not name have size 1 and are outermost, in the default order; one inside another, such as
    `ep`, is there only if named. Raises UsageError as `parse_sizes` does.
    """
    sizes = parse_sizes(text)
    return {**sizes, **{axis: 1 for axis in AXES if axis not in sizes}}


def parse_order(text: str) -> tuple[str, ...]:
    """All axes of the mesh, inner to outer, from `tp,cp,dp,pp`; axes left out are appended in the default order.

    Raises UsageError where a name is no axis or is given twice, or none is given.
    """
    names = [n.strip().lower() for n in text.split(",") if n.strip()]
    for name in names:
        if name in PARTS:
            raise UsageError(
                f"--order: {name} divides the ranks of {PARTS[name].inside} and has no place; leave it out"
            )
        if name not in AXES:
            raise UsageError(f"--order: unknown axis {name!r}; the axes are {', '.join(AXES)}")
    if len(set(names)) != len(names):
        raise UsageError(f"--order: an axis is given twice in {text!r}")
    if not names:
        raise UsageError("--order: no axis given; write it inner to outer, as in tp,cp,pp,dp")
    return (*names, *(axis for axis in AXES if axis not in names))


def ranks_in(sizes: Mapping[str, int]) -> int:
    """Return how many ranks a mesh of these `sizes` has; an axis inside another one adds none."""
    return prod(sizes.get(axis, 1) for axis in AXES)


def mesh_remedy(world_size: int, *, known: bool = True) -> str:
    """Return what to do if traces do not show the mesh: an example that has as many ranks as the whole job.

    world_size: ranks of the job; unless it is `known`, it follows from the largest rank that anything names.
    """
    sizes = dict.fromkeys(AXES, 1)
    for axis in (row.name for row in TABLE if row.divides_model):
        if world_size % (2 * prod(sizes.values())) == 0:
            sizes[axis] = 2
    sizes[DATA] = world_size // prod(sizes.values())
    whole = (
        f"give the mesh of all {world_size} ranks"
        if known
        else (
            f"the traces do not show how many ranks the job has (at least {world_size}): give its whole mesh"
        )
    )
    return f"{whole}, as in --mesh " + ",".join(f"{a}={n}" for a, n in sizes.items())


# A mesh or an order of axes that the user gives, beside what the process groups say.


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
    """Return the mesh in the groups' descriptions, as the option that a user would give; empty without one."""
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
