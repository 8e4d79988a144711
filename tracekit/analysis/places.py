"""What a run holds, without a judgement: its mesh with the groups that show it, and all communication as one table."""

from collections import defaultdict
from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa

from tracekit.analysis.breakdown.parts import waits_known
from tracekit.arrays import from_numpy, from_strings
from tracekit.case.opened import opened, placed
from tracekit.findings.mesh import GroupsAlong, PlacesFinding
from tracekit.findings.shared import RankCoverage
from tracekit.inference.mesh.group_uses import group_uses, world_of
from tracekit.mesh import GroupUse
from tracekit.rank_events.coded_words import Codes, numbered
from tracekit.store import Run
from tracekit.timing.measured import StepRange

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


def operations(
    run: Run,
    mesh: dict[str, int] | None = None,
    order: Sequence[str] | None = None,
    steps: Sequence[StepRange] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> pa.Table:
    """Return the communication of all ranks as an Arrow table, one row an operation, by rank and in order of start.

    `rank`; `step`, null outside every step; `analysed`, whether that step is one that answers rest on; `axis`, as `tp`
    or `cp_dp`; `op`; `start_ns`, `end_ns` on the rank's own clock; `exposed_ns`, for which compute waited;
    `wait_ns`, until the last member came, null if the traces do not show it; `instance`, equal on all members of one
    communication, null if no partner was found; `elements`, null if unknown. Numbers share the memory of the
    analysis; `to_pandas()` copies. `mesh`, `order`, `steps`, `progress` are as for `tracekit.slowrank`.

    Raises UsageError, MeshError and InputError as `tracekit.breakdown` does.
    """
    case, _ = opened(run, mesh, order, steps, progress)
    ops = case.ops
    elements = np.concatenate([ops.per_rank[rank].nelems for rank in ops.ranks])
    return pa.table(
        {
            "rank": from_numpy(ops.rank),
            "step": from_numpy(ops.step, ops.step < 0),
            "analysed": from_numpy(case.analysed),
            "axis": _words(*numbered(case.axis[:])),
            "op": _words(*ops.kinds),
            "start_ns": from_numpy(ops.start),
            "end_ns": from_numpy(ops.end),
            "exposed_ns": from_numpy(ops.exposed),
            "wait_ns": from_numpy(case.waits.held, ~waits_known(case)),
            "instance": from_numpy(ops.instance, ops.instance < 0),
            "elements": from_numpy(elements, elements < 0),
        }
    )


def _words(words: Sequence[str], code: Codes) -> pa.Array:
    """A dictionary array of `words`; `code` is the index of each entry's."""
    return pa.DictionaryArray.from_arrays(from_numpy(code), from_strings(words))
