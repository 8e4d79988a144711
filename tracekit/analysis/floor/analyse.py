"""The waterfall of the step from peak to achieved FLOP/s: from an ingested run to a finding."""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import numpy as np

from tracekit.analysis.breakdown.parts import added, steps_of, waits_told
from tracekit.analysis.floor.kernels import at_best
from tracekit.analysis.floor.work import RankWork, work_of
from tracekit.analysis.slowrank.analyse import opened, quality_of, ranks_of
from tracekit.analysis.slowrank.case import Case
from tracekit.analysis.slowrank.gaps.evidence_gaps import coverage
from tracekit.errors import UsageError
from tracekit.findings import StepsFinding, TimeParts
from tracekit.findings.floor import FloorFinding, FloorLimit, FloorPart
from tracekit.intervals import I64
from tracekit.store import Run
from tracekit.steps.steps import F64
from tracekit.timing.measured import StepRange
from tracekit.units import NS_PER_S, ms

_REMEDY: Final = {
    "recomputation": "keep more activations: recompute attention alone, or fewer layers",
    "small_kernels": "fuse small kernels (torch.compile) or launch them in CUDA graphs",
    "slow_kernels": "compare the slower ranks' devices with the rank that runs the same kernels fastest",
    "imbalance": "find the late ranks with tracekit slowrank, and level data and stages",
    "bubble": "run more micro-batches, or a schedule with a smaller bubble (reftrain plan)",
    "launch_gaps": "launch earlier: fewer synchronisations, CUDA graphs, an asynchronous data loader",
}
_TERA: Final = 1e12


def floor(
    run: Run,
    mesh: dict[str, int] | None = None,
    order: Sequence[str] | None = None,
    steps: Sequence[StepRange] | None = None,
    progress: Callable[[int, int], None] | None = None,
    *,
    flops: float | None = None,
    peak_tflops: float | None = None,
) -> FloorFinding:
    """Return the parts of the step (ns, they add up to it), what the step shortens without each, and the limits (ms).

    `flops` are of one step of the whole job, `peak_tflops` of one device. `mesh`, `order`, `steps` and `progress` are as
    for `tracekit.slowrank`. Raises UsageError where mesh, order, job or FLOPs contradict the run; MeshError and InputError
    as `tracekit.slowrank` does.
    """
    case, choice = opened(run, mesh, order, steps, progress)
    known = waits_told(case)
    cells = [cell for rank in case.ops.ranks for cell in steps_of(case, rank, known).cells]
    works = [work for rank in case.ops.ranks if (work := work_of(case, rank))]
    best = at_best(case, works)
    total = added(cell.parts for cell in cells)
    world = ranks_of(case).expected
    useful = flops / (peak_tflops * _TERA * world) * NS_PER_S if flops and peak_tflops else None
    amounts = _amounts(total, works, best.slow, None if useful is None else round(useful * len(cells)))
    saved = _savings(case, works, best.slow)
    step = total.step_ns / max(len(cells), 1)
    return FloorFinding(
        ranks_of(case), choice.finding,
        StepsFinding(case.steps.numbers, ms(float(np.nanmedian(case.steps.wall)))),
        ms(step), ms(case.residual_ns), len(cells), total.step_ns, flops, peak_tflops,
        None if useful is None or not step else useful / step,
        tuple(_part(name, ns, total.step_ns, len(cells), saved) for name, ns in amounts.items()),
        (
            FloorLimit("no_waiting", "no rank works longer than usual", ms(step - saved["imbalance"])),
            FloorLimit("best_kernels", "each class of kernel at its best rate", ms(step - saved["slow_kernels"])),
            FloorLimit("roofline", "only the model's FLOPs, at peak", None if useful is None else ms(useful),
                       "" if useful is not None else "needs the model's FLOPs and the device's peak"),
        ),
        best.classes, coverage(case), quality_of(case, choice), choice.notes,
    )  # fmt: skip


def _amounts(
    total: TimeParts, works: Sequence[RankWork], slow: Mapping[int, I64], useful: int | None
) -> dict[str, int]:
    """Return the parts of the summed steps by name; they add up to `total.step_ns`."""
    again, small = (sum(int(getattr(w, kind).sum()) for w in works) for kind in ("recomputed", "small"))
    slower = sum(int(ns.sum()) for ns in slow.values())
    rest = total.compute_ns - again - small - slower
    if useful is not None and useful > rest:
        raise UsageError("the FLOPs given need longer at peak than the ranks computed; correct FLOPs or peak")
    work = {"compute": rest} if useful is None else {"model": useful, "other_work": rest - useful}
    exposed = {
        f"{e.axis} {kind}": ns
        for e in total.exposed
        for kind, ns in (("transfer", e.transfer_ns), ("either", e.open_ns))
        if ns
    }
    return {
        **work, "recomputation": again, "small_kernels": small, "slow_kernels": slower,
        "imbalance": total.waiting_ns, **exposed, "bubble": total.bubble_ns, "launch_gaps": total.host_ns,
        "idle": total.idle_ns, "unknown": total.unknown_ns,
    }  # fmt: skip


def _savings(case: Case, works: Sequence[RankWork], slow: Mapping[int, I64]) -> dict[str, float]:
    """Return by how much the replayed step shortens without each part of own time, ns."""
    own = case.steps.own
    level = own.copy()
    for rows in case.stages:
        if len(rows):
            level[rows] = np.fmin(own[rows], np.nanmedian(own[rows], axis=0)[None, :])

    def without(taken: Mapping[int, I64]) -> F64:
        less = own.copy()
        for w in works:
            row = case.steps.row(w.rank)
            less[row, w.columns] = np.maximum(own[row, w.columns] - taken[w.rank], 0)
        return less

    changed = {
        "imbalance": level,
        "recomputation": without({w.rank: w.recomputed for w in works}),
        "small_kernels": without({w.rank: w.small for w in works}),
        "slow_kernels": without(slow),
    }
    base = case.model.recorded_ns
    share = case.step_ns / base if base > 0 else 0.0
    return {name: max(base - case.model.step_ns(to), 0.0) * share for name, to in changed.items()}


def _part(name: str, ns: int, step_ns: int, cells: int, saved: Mapping[str, float]) -> FloorPart:
    mean = ns / max(cells, 1)
    kept = name in {"model", "compute", "other_work", "unknown"}
    brings = None if kept else ms(saved.get(name, mean))
    remedy = _REMEDY.get(name, "overlap the transfer with compute" if name.endswith("transfer") else "")
    return FloorPart(name, ns, ms(mean), ns / max(step_ns, 1), brings, name in saved, remedy)
