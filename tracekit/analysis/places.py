"""The mesh of a run, and the process groups that show it: from an ingested run to a finding."""

from collections import defaultdict
from collections.abc import Callable, Sequence

from tracekit.analysis.slowrank.opened import placed
from tracekit.findings.mesh import GroupsAlong, PlacesFinding
from tracekit.findings.shared import RankCoverage
from tracekit.inference.mesh.group_uses import group_uses, world_of
from tracekit.mesh import GroupUse
from tracekit.store import Run

_Kind = tuple[tuple[str, ...] | None, int, bool]
"""Axes that groups lie along (None: no choice of axes gives their members), their size, and whether files name them."""


def places(
    run: Run,
    mesh: dict[str, int] | None = None,
    order: Sequence[str] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> PlacesFinding:
    """The mesh of `run`, the groups along its axes, and the place of each rank.

    `mesh`, `order` and `progress` are as for `tracekit.slowrank`. Raises UsageError where they contradict the input,
    MeshError where process groups contradict each other, MeshUnknownError where nothing determines the mesh.
    """
    run, ops, choice = placed(run, mesh, order, progress)
    kinds: dict[_Kind, list[GroupUse]] = defaultdict(list)
    for use in group_uses(run, ops):
        if len(use.ranks) > 1:
            kinds[choice.mesh.dims_of(use.ranks), len(use.ranks), use.named].append(use)
    world = world_of(run, ops)
    missing = tuple(sorted(set(world) - set(ops.ranks)))
    inner_first = sorted(
        kinds, key=lambda k: (k[0] is None, _depths(k[0] or (), choice.mesh.order), k[1], not k[2])
    )
    return PlacesFinding(
        RankCoverage(len(world), len(ops.ranks), missing, run.rejected),
        choice.finding,
        tuple(_along(kind[0] or (), kinds[kind]) for kind in inner_first),
        {rank: choice.mesh.coords(rank) for rank in world},
        (*run.quality, *choice.quality),
        choice.notes,
    )


def _depths(axes: Sequence[str], order: Sequence[str]) -> tuple[int, ...]:
    """Return the number of axes, and their places in the order: single axes first, the inner ones before the outer.

    Axes inside others, and their copies, come last.
    """
    return (len(axes), *(order.index(axis) if axis in order else len(order) for axis in axes))


def _along(axes: tuple[str, ...], uses: Sequence[GroupUse]) -> GroupsAlong:
    first = min(uses, key=lambda use: use.ranks)
    return GroupsAlong(
        axes,
        len(first.ranks),
        len({use.ranks for use in uses}),
        first.ranks,
        tuple(sorted({desc for use in uses for desc in use.descs})),
        tuple(sorted({op for use in uses for op in use.ops})),
        max(use.collectives for use in uses),
        max(use.p2p for use in uses),
        first.named,
    )
