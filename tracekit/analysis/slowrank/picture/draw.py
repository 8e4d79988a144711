"""The picture of a case and its answer: ranks by step, the descent, one time line, and the criteria."""

from collections.abc import Sequence

import numpy as np

from tracekit.analysis.slowrank.case import Case
from tracekit.analysis.slowrank.picture.criteria import criteria
from tracekit.analysis.slowrank.picture.kinds import parts_of_step
from tracekit.analysis.slowrank.picture.timeline import timeline
from tracekit.analysis.slowrank.suspects import Answer
from tracekit.axes import LEVELS, PARTS
from tracekit.findings import PathLevel
from tracekit.findings.picture import F64, Level, SlowRankPicture
from tracekit.inference.mesh.group_uses import world_of
from tracekit.thresholds.report import LEVEL_INDICES
from tracekit.units import NS_PER_MS


def picture_of(case: Case, answer: Answer) -> SlowRankPicture:
    """The picture of `answer`; ranks without a trace have rows of NaN."""
    world = world_of(case.run, case.ops)
    row = {rank: i for i, rank in enumerate(world)}
    rows = np.array([row[r] for r in case.steps.ranks], np.int64)
    hosts = {r.rank: r.host for r in case.run.ranks}
    place = [case.mesh.coordinates.get(r) for r in world]
    places = {
        axis: tuple(-1 if at is None else at[i] for at in place)
        for i, axis in enumerate(case.mesh.order)
        if case.mesh.sizes[axis] > 1
    }
    return SlowRankPicture(
        world, tuple(hosts.get(r) for r in world), places, case.steps.numbers,
        _spread(case.found.value, rows, len(world)),
        _spread(case.steps.wall - case.steps.own, rows, len(world)),
        {kind: _spread(spent, rows, len(world)) for kind, spent in parts_of_step(case).items()},
        levels(case, answer.path), timeline(case, answer), criteria(case, answer),
    )  # fmt: skip


def _spread(values: F64, rows: np.typing.NDArray[np.int64], world: int) -> F64:
    """The `values` (ns, by rank read) by rank of the job, ms; NaN without a trace."""
    result = np.full((world, *values.shape[1:]), np.nan)
    result[rows] = values / NS_PER_MS
    return result


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
