"""The path down the axes, DP → EP → PP → CP → TP: at each level, how long the other indices waited for this one."""

import numpy as np

from tracekit.axes import LEVELS
from tracekit.findings import PathLevel
from tracekit.timing.measured import Measured
from tracekit.units import ms


def descend(run: Measured, rank: int) -> tuple[PathLevel, ...]:
    """Return the path to `rank`: for each axis its index, and the mean exposed wait that it caused along it, ms a step.

    Axes of size one are left out. Raises KeyError for a rank outside the mesh.
    """
    coords = run.mesh.coords(rank)
    return tuple(
        PathLevel(axis, coords[axis], ms(_caused(run, rank, axis)))
        for axis in LEVELS
        if run.mesh.size(axis) > 1
    )


def _caused(run: Measured, rank: int, axis: str) -> float:
    """The mean wait of other members, ns a step, in the rank's channels along `axis`, for operations it joined last."""
    ops, waits = run.ops, run.waits
    spans = {c.number: run.axes_of(c) for c in ops.channels if rank in c.members}
    pure = [c for c, axes in spans.items() if axes == (axis,)]
    chosen = pure or [c for c, axes in spans.items() if axis in axes]
    inside = run.inside
    if axis in run.mesh.parts:
        chosen = [c for c in spans if (inside[ops.channel == c] == axis).any()]
    worst = 0.0
    for p2p in (False, True):
        by_rank: dict[int, float] = {}
        for channel in (c for c in chosen if ops.channels[c].p2p == p2p):
            rows = np.flatnonzero(
                (ops.channel == channel)
                & (ops.instance >= 0)
                & run.analysed
                & (ops.rank != rank)
                & (inside == (axis if axis in run.mesh.parts else ""))
            )
            late = ops.rank[waits.last[ops.instance[rows]]] == rank
            for other, waited in zip(
                ops.rank[rows][late].tolist(), waits.exposed_wait[rows][late].tolist(), strict=True
            ):
                by_rank[other] = by_rank.get(other, 0.0) + float(waited)
        if by_rank:
            members = (
                len({m for c in chosen for m in ops.channels[c].members if ops.channels[c].p2p == p2p}) - 1
            )
            worst = max(worst, max(by_rank.values()) if p2p else sum(by_rank.values()) / max(members, 1))
    return worst / max(len(run.steps.numbers), 1)
