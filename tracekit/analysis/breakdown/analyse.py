"""The parts of a step: from an ingested run, opened as `slowrank` does, to a finding; volumes beside formulas.

A volume is the elements that a rank sends in a step. Sources of the formulas: ring all-reduce 2Φ(N−1)/N and ZeRO 3Φ
(Rajbhandari et al., "ZeRO", section 7); tensor parallelism by two all-reduces a layer in each direction and the
vocabulary-parallel loss (Shoeybi et al., "Megatron-LM", section 3). Φ is taken from the recording itself: formulas show
which scheme moves that much, not whether the model is right.
"""

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from tracekit.analysis.breakdown.parts import RankSteps, added, shares_of, steps_of, waits_told
from tracekit.analysis.breakdown.traffic import Calls, calls_of, traffic_of
from tracekit.analysis.slowrank.analyse import opened, quality_of, ranks_of
from tracekit.analysis.slowrank.case import Case
from tracekit.analysis.slowrank.gaps.evidence_gaps import coverage
from tracekit.axes import DATA, TENSOR, along
from tracekit.findings import BreakdownFinding, RankBreakdown, StepsFinding, Volume
from tracekit.matching.ring import ring_share
from tracekit.store import Run
from tracekit.thresholds.breakdown import SIZES_SHOWN, VOLUME_ERROR
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


_GATHERS: Final = ("all_gather", "reduce_scatter", "all_reduce")
_REDUCES: Final = ("reduce_scatter", "all_reduce")
_GRADIENTS: Final = (
    ("2Φ(N−1)/N", "a ring all-reduce, ZeRO-1 and ZeRO-2", 2),
    ("3Φ(N−1)/N", "ZeRO-3", 3),
)
_LAYER: Final = 8
"""Four all-reduces of Φ = b·s·h, two in each direction, send 2Φ(N−1)/N each; so do pairs of gather and scatter."""
_MEGATRON: Final = ("8Φ(N−1)/N", "a layer and micro-batch of Megatron, Φ = b·s·h")
_LOSS: Final = ("Φ + N", "a micro-batch of a vocabulary-parallel loss, if Φ = b·s")


def volumes_of(calls: Calls) -> tuple[Volume, ...]:
    """Return volumes along each axis with a known formula, gradients first; none where sizes are unknown."""
    gradients: list[Volume] = []
    others: list[Volume] = []
    for axis in sorted({str(a) for a in calls.axis.tolist()}):
        mine = calls.of((calls.axis == axis) & np.isin(calls.op.astype(str), _GATHERS))
        if len(np.unique(mine.members)) != 1 or (mine.elements < 0).any():
            continue  # groups of several sizes share no formula, and unknown sizes none
        if along(axis, DATA):
            gradients += _gradients(axis, mine)
        elif axis == TENSOR:
            others += _activations(axis, mine)
    most = max((v.phi for v in gradients), default=0)
    return (*(v for v in gradients if v.phi > VOLUME_ERROR * most), *others)  # a loss is no gradient


def _gradients(axis: str, calls: Calls) -> list[Volume]:
    """The volumes of summed gradients and gathered parameters along the axis: Φ are the elements summed in a step."""
    summed = np.isin(calls.op.astype(str), _REDUCES)
    steps = len(np.unique(calls.rank_step))
    phi = float(calls.elements[summed].sum()) / steps
    if phi < 1:
        return []
    recorded, found = _sent(calls), []
    for formula, scheme, times in _GRADIENTS:
        expected = times * phi * ring_share("all_gather", int(calls.members[0]))
        error = abs(recorded / expected - 1)
        found.append(
            Volume(
                axis, "gradients", round(phi), recorded, formula, scheme, expected, recorded / expected,
                error <= VOLUME_ERROR,
            )
        )  # fmt: skip
    return found


def _activations(axis: str, calls: Calls) -> list[Volume]:
    """Return what tensor parallelism moves: Φ is the size of message that moves most elements in sum."""
    sizes, code = np.unique(calls.elements, return_inverse=True)
    phi = int(sizes[np.argmax(np.bincount(code, calls.elements * calls.factor))])
    if phi < 1:
        return []
    recorded = _sent(calls.of(calls.elements == phi))
    layer = _LAYER * phi * ring_share("all_gather", int(calls.members[0]))
    return [
        Volume(axis, "activations", phi, recorded, *_MEGATRON, layer, recorded / layer, None),
        *_values(axis, calls, phi),
    ]


def _values(axis: str, calls: Calls, phi: int) -> list[Volume]:
    """The volumes of all-reduces of a size that divides Φ = b·s·h: one value a token (a loss) or a channel (norms)."""
    part = calls.of((calls.op == "all_reduce") & (calls.elements > 1) & (calls.elements < phi))
    sizes = [n for n in np.unique(part.elements).tolist() if phi % n == 0]
    found = []
    for size in sizes:
        mine = part.of(part.elements == size)
        summed = float(mine.elements.sum()) / len(np.unique(mine.rank_step))
        expected = float(size + int(calls.members[0]))
        found.append(Volume(axis, "loss", size, summed, *_LOSS, expected, summed / expected, None))
    return sorted(found, key=lambda v: (-v.recorded, v.phi))[:SIZES_SHOWN]


def _sent(calls: Calls) -> float:
    """The elements that a rank sends in a step by a ring."""
    return float((calls.elements * calls.factor).sum()) / max(len(np.unique(calls.rank_step)), 1)
