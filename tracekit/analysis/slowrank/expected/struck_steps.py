"""What a rank costs that is slow in some steps only: the job's other steps tell, whatever could be matched.

If the steps in which it works longer last longer than those in which it does not, and nobody else works longer in them,
the others waited for it.
"""

import numpy as np
import numpy.typing as npt

from tracekit.step_graph.statistics import Excess
from tracekit.steps.steps import F64
from tracekit.thresholds.slowrank import MAJORITY, STEP_SHARE
from tracekit.timing.measured import Measured


def struck_ns(run: Measured, found: Excess, rows: npt.NDArray[np.int64]) -> float:
    """The least that slowness of `rows` in some steps costs, ns a step; 0 where their steps do not differ.

    It is by how much the shortest step in which they are slow is longer than the longest one in which they are not,
    less what anybody else works longer in these, and at most their own excess.
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
    """By how much any of the ranks with times `own` works longer in its longest struck step than in a quick one, ns."""
    known = np.isfinite(own[:, struck]).any(axis=1) & np.isfinite(own[:, quick]).any(axis=1)
    if not known.any():
        return 0.0
    more = np.nanmax(own[known][:, struck], axis=1) - np.nanmin(own[known][:, quick], axis=1)
    return max(float(more.max()), 0.0)
