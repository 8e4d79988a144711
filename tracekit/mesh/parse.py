"""Meshes and orders of axes as a user writes them on a command line."""

from collections.abc import Mapping
from math import prod

from tracekit.axes import AXES, DATA, PARTS, TABLE
from tracekit.errors import UsageError
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
