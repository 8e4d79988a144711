"""The price of a rank that is slow in some steps only, by comparison with the other steps, without any matching.

If the steps in which it works longer last longer than the others, and no other rank works longer in them, the other
ranks waited for it.
"""

import numpy as np
import numpy.typing as npt

from tracekit.step_graph.statistics import Excess
from tracekit.steps.steps import F64
from tracekit.thresholds.slowrank import MAJORITY, STEP_SHARE
from tracekit.timing.measured import Measured


def struck_ns(run: Measured, found: Excess, rows: npt.NDArray[np.int64]) -> float:
    """The least that slowness of `rows` in some steps costs, ns a step; 0 where their steps do not differ.

    The shortest slow step minus the longest fast step, less the most that another rank works longer in slow steps, and
    at most their own excess.
    """
    value = np.where(np.isfinite(found.value[rows]), found.value[rows], 0.0).sum(axis=0)
    known = np.isfinite(run.steps.own[rows]).all(axis=0)
    most = float(value[known].max(initial=0.0))
    struck = np.flatnonzero(known & (value >= MAJORITY * most))
    quick = np.flatnonzero(known & (value < STEP_SHARE * most))
    if most <= 0 or not len(quick):
        return 0.0
    wall = np.nanmedian(run.steps.wall, axis=0)
    longer = float(wall[struck].min() - wall[quick].max())
    others = np.delete(run.steps.own, rows, axis=0)
    each = min(longer - _more_work(others, struck, quick), float(value[struck].min()))
    return max(each, 0.0) * len(struck) / int(known.sum())


def _more_work(own: F64, struck: npt.NDArray[np.int64], quick: npt.NDArray[np.int64]) -> float:
    """The largest difference of a rank between its longest slow step and its shortest fast step in `own`, ns."""
    known = np.isfinite(own[:, struck]).any(axis=1) & np.isfinite(own[:, quick]).any(axis=1)
    if not known.any():
        return 0.0
    more = np.nanmax(own[known][:, struck], axis=1) - np.nanmin(own[known][:, quick], axis=1)
    return max(float(more.max()), 0.0)
