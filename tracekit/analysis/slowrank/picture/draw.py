"""The picture of a case and its answer: ranks by step, the descent, one time line, and the criteria."""

import numpy as np

from tracekit.analysis.slowrank.case import Case
from tracekit.analysis.slowrank.picture.criteria import criteria
from tracekit.analysis.slowrank.picture.kinds import parts_of_step
from tracekit.analysis.slowrank.picture.levels import levels
from tracekit.analysis.slowrank.picture.timeline import timeline
from tracekit.analysis.slowrank.suspects import Answer
from tracekit.findings.picture import F64, SlowRankPicture
from tracekit.inference.mesh.group_uses import world_of
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
