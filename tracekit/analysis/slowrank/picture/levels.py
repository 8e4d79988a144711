"""The spread of the excess over the indices of each axis, down the path that the finding names."""

from collections.abc import Sequence

import numpy as np

from tracekit.analysis.slowrank.case import Case
from tracekit.axes import LEVELS, PARTS
from tracekit.findings import PathLevel
from tracekit.findings.picture import Level
from tracekit.thresholds.report import LEVEL_INDICES
from tracekit.units import NS_PER_MS

_QUANTILES = (0.0, 0.25, 0.5, 0.75, 1.0)


def levels(case: Case, path: Sequence[PathLevel]) -> tuple[Level, ...]:
    """Return a level for each axis of more than one index, outer to inner; without a path each holds all ranks."""
    chosen = {level.dim: level.index for level in path}
    rows = wider = np.arange(len(case.steps.ranks))
    found = []
    for axis in LEVELS:
        if case.mesh.size(axis) > 1:
            mine = wider if axis in PARTS else rows  # one index of the axis that it divides tells its own
            index = np.array([case.mesh.coords(case.steps.ranks[r])[axis] for r in mine], np.int64)
            found.append(_level(case, axis, chosen.get(axis), mine, index))
            if axis in chosen and axis not in PARTS:
                wider, rows = rows, rows[index == chosen[axis]]
    return tuple(found)


def _level(
    case: Case,
    axis: str,
    chosen: int | None,
    rows: np.typing.NDArray[np.int64],
    index: np.typing.NDArray[np.int64],
) -> Level:
    """The level of one axis; `index` is that of each of `rows`. Holds at most LEVEL_INDICES, by the largest excess."""
    spread: dict[int, tuple[float, ...]] = {}
    for i in np.unique(index).tolist():
        values = case.found.mean[rows[index == i]]
        values = values[np.isfinite(values)] / NS_PER_MS
        if len(values):
            spread[i] = tuple(np.quantile(values, _QUANTILES).tolist())
    most = sorted(spread, key=lambda i: (i != chosen, -spread[i][-1], i))[:LEVEL_INDICES]
    shown = tuple(sorted(most))
    return Level(axis, chosen, shown, tuple(spread[i] for i in shown), len(spread) - len(shown))
