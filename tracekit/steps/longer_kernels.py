"""How the excess of compute in one step is spread over the kernels of a rank: over most of them, or few.

A slower device takes longer for every kernel. An event in one operation lengthens one kernel, and uneven data
lengthens the kernels that depend on the data.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tracekit.steps.step_kernels import StepKernels
from tracekit.thresholds.slowrank import MAJORITY
from tracekit.thresholds.tables import LIKE_SHARE
from tracekit.units import F64


@dataclass(frozen=True)
class LongerKernels:
    """Kernels of one rank in one step that are longer than the same kernels of its peers and of its other steps."""

    ns: float  # excess of all kernels of the step together
    share: float  # part of the usual time in kernels that are longer by a fair part of the common factor
    count: int  # number of such kernels
    whole: float = 0.0  # the usual time of all kernels, ns


def longer_kernels(mine: StepKernels, peers: Sequence[StepKernels], column: int) -> LongerKernels:
    """Return how the kernels of `mine` in the step in `column` (of Steps) exceed their usual length.

    Usual is the longer of two medians of the kernel at the same position (the k-th one of its name): that of `peers`,
    which do the same work, in the same step, and that of the rank's own other steps. Only names that run equally often
    in all these are compared, because else it is unknown which kernels do the same; of a step that all have cut short,
    the kernels that all recorded. A kernel that shares the device with communication for more of its time than usual
    may be longer for that reason, and does not count as longer.
    """
    took, usual = [np.zeros((0, 2))], [np.zeros((0, 2))]
    for name in np.unique(mine.name.astype(str)).tolist():
        own = by_step(mine, name)
        beside = [found[column] for found in (by_step(k, name) for k in peers) if column in found]
        elsewhen = [kernels for c, kernels in own.items() if c != column]
        here = [len(v) for v in (*beside, own.get(column, ()))]
        every = max(len(v) for v in (*own.values(), *beside))
        cut = max(here) < every  # by the ends of windows
        often = {len(v) for v in elsewhen}
        if (
            not beside
            or min(here) < (1 if cut else every)
            or len(often) > 1
            or min(often, default=every) < min(here)
        ):
            continue
        took.append(own[column][: min(here)])
        median = np.median([v[: min(here)] for v in beside], axis=0)
        others = [v[: min(here)] for v in elsewhen]
        usual.append(np.maximum(median, np.median(others, axis=0)) if others else median)
    return _compared(np.concatenate(took), np.concatenate(usual))


def longest_beyond(kernels: StepKernels, column: int) -> float:
    """Return the excess of one kernel of the step in `column` over any of its name in the rank's other steps, ns.

    0 where no kernel is longer. One that other steps do not run, or run less often, counts with its whole length.
    """
    most = 0.0
    for name in set(kernels.name[kernels.column == column].tolist()):
        steps = {c: found[:, 0] for c, found in by_step(kernels, name).items()}
        mine = steps.pop(column)
        more = len(mine) > max(map(len, steps.values()), default=0)
        usual = 0.0 if more else max(float(found.max(initial=0.0)) for found in steps.values())
        most = max(most, float(mine.max()) - usual)
    return most


def by_step(kernels: StepKernels, name: str) -> dict[int, F64]:
    """Return column of Steps → (length in ns, share beside communication) of the kernels of that name in order."""
    where = kernels.name == name
    part = kernels.shared / np.maximum(kernels.lasted, 1.0)
    both = np.stack([kernels.lasted, part], axis=1)
    return {c: both[where & (kernels.column == c)] for c in np.unique(kernels.column).tolist()}


def _compared(took: F64, usual: F64) -> LongerKernels:
    """Return how kernels `took` spread their excess over `usual`, both as from `by_step`."""
    whole, longer = float(usual[:, 0].sum()), float((took - usual)[:, 0].sum())
    if longer <= 0 or whole <= 0:
        return LongerKernels(0.0, 0.0, 0)
    over, beside = (took - usual).T
    fair = (over >= MAJORITY * usual[:, 0] * (longer / whole)) & (beside <= LIKE_SHARE)
    return LongerKernels(longer, float(usual[fair, 0].sum()) / whole, int(fair.sum()), whole)
