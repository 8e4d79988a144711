"""The time that communication on the same device adds to the kernels of a whole stage.

Ranks of one stage are compared with each other, so that common effects cancel. Stages differ: one overlaps its compute
with long collectives, another with none, which lengthens the kernels of the former without more work. A kernel that
shares the device is compared with undisturbed kernels at the same place of the program: on its own stage, or on other
stages, scaled to the pace of its own.
"""

from collections.abc import Mapping

import numpy as np

from tracekit.intervals import I64
from tracekit.steps.step_kernels import StepKernels, kernels_in_steps
from tracekit.steps.steps import F64
from tracekit.steps.weighted_median import weighted_median
from tracekit.thresholds.slowrank import PEERS_SAMPLED
from tracekit.thresholds.tables import LIKE_SHARE, MOST_STRETCHED
from tracekit.timing.measured import Measured

_Place = tuple[str, str, str]
"""The names of a kernel, its predecessor and its successor: kernels of one name may do work of several sizes."""


def stage_contention(run: Measured, stages: list[I64]) -> F64:
    """Return the time that communication adds to the compute of a typical rank of each stage, stages × steps, ns.

    stages: rows of Steps of each. Reads the ranks with own times nearest to the stage's lower median. 0 where no kernel
    at the same place runs without communication.
    """
    read = [
        [kernels_in_steps(run.run, run.ops, run.steps, row) for row in _middle(run, rows)] for rows in stages
    ]
    free = [_free(kernels) for kernels in read]
    found = np.zeros((len(stages), len(run.steps.numbers)))
    for stage, kernels in enumerate(read):
        if not kernels:
            continue
        alone = _with_others(free[stage], [f for i, f in enumerate(free) if i != stage])
        found[stage] = np.median([_stretched(k, alone, found.shape[1]) for k in kernels], axis=0)
    return found


def _middle(run: Measured, rows: I64) -> list[int]:
    """The few of `rows` with own times nearest to their lower median; none of rows that recorded no step whole."""
    rows = rows[np.isfinite(run.steps.own[rows]).any(axis=1)]
    if not len(rows):
        return []
    own = np.nanmean(run.steps.own[rows], axis=1)
    middle = float(np.sort(own)[(len(own) - 1) // 2])
    near: list[int] = rows[np.lexsort((rows, np.abs(own - middle)))][:PEERS_SAMPLED].tolist()
    return near


def _places(kernels: StepKernels) -> list[_Place]:
    """The place of each kernel."""
    names = ["", *kernels.name.tolist(), ""]
    return list(zip(names[1:-1], names[:-2], names[2:], strict=True))


def _is_free(kernels: StepKernels) -> list[bool]:
    """Whether each kernel shares the device with communication for at most LIKE_SHARE of its length."""
    free: list[bool] = (kernels.shared <= LIKE_SHARE * kernels.lasted).tolist()
    return free


def _free(read: list[StepKernels]) -> dict[_Place, float]:
    """The median length of a stage's undisturbed kernels at each place, ns."""
    lasted: dict[_Place, list[float]] = {}
    for kernels in read:
        rows = zip(_places(kernels), kernels.lasted.tolist(), _is_free(kernels), strict=True)
        for place, ns, alone in rows:
            if alone:
                lasted.setdefault(place, []).append(ns)
    return {place: float(np.median(ns)) for place, ns in lasted.items()}


def _with_others(mine: Mapping[_Place, float], others: list[dict[_Place, float]]) -> dict[_Place, float]:
    """`mine`, completed at missing places by the times of `others`, scaled to the pace of `mine`; ns."""
    elsewhere: dict[_Place, list[float]] = {}
    for stage in others:
        for place, ns in stage.items():
            elsewhere.setdefault(place, []).append(ns)
    usual = {place: float(np.median(ns)) for place, ns in elsewhere.items()}
    common = sorted(place for place in usual.keys() & mine.keys() if usual[place] > 0)
    if not common:
        return dict(mine)
    weight = np.array([usual[place] for place in common])
    pace = weighted_median(np.array([mine[place] for place in common]) / weight, weight, 1.0)
    return {place: pace * ns for place, ns in usual.items()} | dict(mine)


def _stretched(kernels: StepKernels, alone: Mapping[_Place, float], steps: int) -> F64:
    """The excess of a rank's device-sharing kernels over the times `alone` at their places, by step, ns."""
    usual = np.array([alone.get(place, np.inf) for place in _places(kernels)])
    beside = ~np.array(_is_free(kernels), bool) & np.isfinite(usual) & kernels.counts
    over = np.clip(kernels.lasted[beside] - usual[beside], 0.0, MOST_STRETCHED * kernels.shared[beside])
    longer = np.zeros(steps)
    np.add.at(longer, kernels.column[beside], over)
    return longer
