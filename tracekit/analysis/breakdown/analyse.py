"""The parts of a step: from an ingested run to a finding. Opens the run as `slowrank` does."""

from collections.abc import Callable, Sequence

import numpy as np

from tracekit.analysis.breakdown.parts import RankSteps, added, shares_of, steps_of, waits_told
from tracekit.analysis.breakdown.traffic import calls_of, traffic_of
from tracekit.analysis.breakdown.volumes import volumes_of
from tracekit.analysis.slowrank.analyse import opened, quality_of, ranks_of
from tracekit.analysis.slowrank.case import Case
from tracekit.analysis.slowrank.gaps.evidence_gaps import coverage
from tracekit.findings import BreakdownFinding, RankBreakdown, StepsFinding
from tracekit.store import Run
from tracekit.timing.measured import StepRange
from tracekit.units import ms


def analyse(
    run: Run,
    mesh: dict[str, int] | None = None,
    order: Sequence[str] | None = None,
    steps: Sequence[StepRange] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> BreakdownFinding:
    """Return the parts of each recorded step of each rank (ns, they add up to it), and the traffic of each axis.

    `mesh`, `order`, `steps` and `progress` are as for `tracekit.slowrank`. Raises UsageError where mesh, order or job
    contradict the run; MeshError and InputError as `tracekit.slowrank` does.
    """
    case, choice = opened(run, mesh, order, steps, progress)
    known = waits_told(case)
    by_rank = {rank: steps_of(case, rank, known) for rank in case.ops.ranks}
    cells = tuple(cell for found in by_rank.values() for cell in found.cells)
    calls = calls_of(case)
    ranked = [_ranked(case, rank, found) for rank, found in by_rank.items() if found.cells]
    total = added(cell.parts for cell in cells)
    return BreakdownFinding(
        ranks_of(case), choice.finding,
        StepsFinding(case.steps.numbers, ms(float(np.nanmedian(case.steps.wall)))),
        total, shares_of(total, [r.parts for r in ranked], len(cells)),
        tuple(sorted(ranked, key=_waited)),
        cells, traffic_of(case, calls), volumes_of(calls), coverage(case), quality_of(case, choice), choice.notes,
    )  # fmt: skip


def _ranked(case: Case, rank: int, found: RankSteps) -> RankBreakdown:
    """All whole steps of `rank` in one."""
    coords = {axis: at for axis, at in case.mesh.coords(rank).items() if case.mesh.size(axis) > 1}
    host = next((r.host for r in case.run.ranks if r.rank == rank), None)
    parts = added(cell.parts for cell in found.cells)
    return RankBreakdown(rank, host, coords, len(found.cells), parts, found.communication_ns, found.hidden_ns)


def _waited(rank: RankBreakdown) -> tuple[float, int]:
    """The share of its steps for which a rank is known to have waited for others, and the rank: a key to sort by."""
    parts = rank.parts
    return (parts.bubble_ns + parts.waiting_ns) / max(parts.step_ns, 1), rank.rank
