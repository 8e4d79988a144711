"""A rank that is alone on its stage: the part of its longer work that its device or its host causes.

No other rank does the same work, so that a longer stage may be one by design. But stages run the same layers: a device
that needs longer for nearly every kind of kernel that all stages run is slow, and a host that launches far more slowly
than the others, or pauses again and again, is late. More layers, or a loss, lengthen none of these kernels. On a CPU,
which launches for itself, only pauses between operators tell.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tracekit.analysis.slowrank.case import Case
from tracekit.analysis.slowrank.hypotheses.host_bound import without_gaps
from tracekit.analysis.slowrank.hypotheses.long_stage import LongStage
from tracekit.analysis.slowrank.hypotheses.suspect_work import features_of, pace_among
from tracekit.causes import CPU_LAUNCH, GPU_COMPUTE, HOST_STALL
from tracekit.findings import Cause
from tracekit.step_graph.replay import StepModel
from tracekit.steps.medians import weighted_median
from tracekit.steps.step_kernels import StepKernels, kernels_in_steps
from tracekit.thresholds.slowrank import (
    FAR_MORE,
    KIND_RATIO,
    MAJORITY,
    MINOR,
    NEARLY_ALL,
    STAGE_TELLING_PEERS,
)
from tracekit.thresholds.tables import LIKE_SHARE


@dataclass(frozen=True)
class LoneFault:
    """A rank (row of Steps) with a slow device or host: the cause, its price (ns a step), and its sign in words."""

    row: int
    cause: Cause
    gain: float
    told: str


def lone_fault(case: Case, stage: LongStage) -> LoneFault | None:
    """The most expensive fault of a rank in `stage`; None where stages hold several ranks, or no rank has a fault."""
    model = case.timeline
    alone = all(len(rows) == 1 for rows in case.stages) and len(case.mesh.coordinates) == len(case.stages)
    if not alone or model is None:
        return None
    others = [r for r in range(len(case.steps.ranks)) if r not in stage.rows]
    if len(others) < STAGE_TELLING_PEERS - 1:
        return None
    found = [
        f
        for row in stage.rows
        for f in (_device(case, model, row, others), _host(case, model, row, others))
        if f
    ]
    return max(found, key=lambda f: f.gain, default=None)


def _on_gpu(case: Case) -> bool:
    return all(r.on_gpu for r in case.ops.per_rank.values())


def _device(case: Case, model: StepModel, row: int, others: Sequence[int]) -> LoneFault | None:
    """The fault of the device of the rank in `row`; None unless nearly all kernels common to all stages are longer."""
    if not _on_gpu(case):
        return None
    kernels = {r: _by_name(kernels_in_steps(case.run, case.ops, case.steps, r)) for r in (row, *others)}
    common = sorted(set.intersection(*(set(k) for k in kernels.values())))
    if not common:
        return None
    lasts = {r: np.array([k[name][0] for name in common]) for r, k in kernels.items()}
    weight = np.array([kernels[row][name][1] for name in common])
    usual = np.median([lasts[r] for r in others], axis=0)
    pace = {r: weighted_median(lasts[r] / usual, weight, 1.0) for r in lasts}
    slow = pace[row] - 1.0
    longer = weight[lasts[row] / usual - 1.0 >= MAJORITY * slow].sum() >= NEARLY_ALL * weight.sum()
    if slow <= FAR_MORE * max(abs(pace[r] - 1.0) for r in others) or not longer:
        return None
    cured = case.steps.own.copy()
    cured[row] -= case.computed[row] * (1.0 - 1.0 / pace[row])
    sign = f"nearly all kinds of kernels that every stage runs take {pace[row]:.2f} times as long"
    return LoneFault(row, GPU_COMPUTE, model.recorded_ns - model.step_ns(cured), sign)


def _by_name(kernels: StepKernels) -> dict[str, tuple[float, float]]:
    """Name → (median, total) length of its kernels that do not share the device with communication; ns."""
    free = kernels.shared <= LIKE_SHARE * kernels.lasted
    found = {}
    for name in sorted(set(kernels.name[free].tolist())):
        lasted = kernels.lasted[free & (kernels.name == name)]
        found[name] = float(np.median(lasted)), float(lasted.sum())
    return found


def _host(case: Case, model: StepModel, row: int, others: Sequence[int]) -> LoneFault | None:
    """The fault of the host of the rank in `row`; None unless its device is idle longer in several steps for it."""
    gaps = case.steps.own - case.computed
    over = np.nan_to_num(np.clip(gaps[row] - np.median(gaps[list(others)], axis=0), 0.0, None))
    recurs = (over >= MINOR * over.max()).sum() > 1 if over.max() > 0 else False
    pace = pace_among(case, (row,), others)
    if not recurs or (pace is None and _on_gpu(case)):
        return None
    cuts = without_gaps(case, model, [row], over)
    gain = model.recorded_ns - model.rescaled_ns(cuts)
    if pace is not None and pace[0] > KIND_RATIO * pace[1]:
        sign = f"its host needs {pace[0] / pace[1]:.1f} times as long between two launches"
        return LoneFault(row, CPU_LAUNCH, gain, sign)
    return LoneFault(row, HOST_STALL, gain, "its process pauses") if _pauses(case, row, others) else None


def _pauses(case: Case, row: int, others: Sequence[int]) -> bool:
    """Whether most of a device's excess of idle time lies in gaps longer than any gap of the others."""
    mine, theirs = features_of(case, row), [features_of(case, r) for r in others]
    if mine is None or any(f is None for f in theirs):
        return False
    longest = max((float(f.gaps.max(initial=0)) for f in theirs if f is not None), default=0.0)
    usual = float(np.median([f.gap for f in theirs if f is not None])) * len(case.steps.numbers)
    return float(mine.gaps[mine.gaps > longest].sum()) >= MAJORITY * (float(mine.gaps.sum()) - usual)
