"""The path down the axes, DP → PP → CP → TP: at each level, how long the other indices waited for this one."""

import numpy as np

from tracekit.findings import PathLevel
from tracekit.mesh import Mesh
from tracekit.tables.match import Operations
from tracekit.tables.steps import Steps
from tracekit.tables.waits import Waits
from tracekit.units import ms

DESCENT = ("dp", "pp", "cp", "tp")


def descend(ops: Operations, waits: Waits, steps: Steps, mesh: Mesh, rank: int) -> tuple[PathLevel, ...]:
    """The path to `rank`: per axis its index, and the mean exposed wait a step that the rank caused along the axis."""
    coords = mesh.coords(rank)
    return tuple(
        PathLevel(dim, coords[dim], ms(_caused(ops, waits, steps, mesh, rank, dim)))
        for dim in DESCENT
        if mesh.sizes.get(dim, 1) > 1
    )


def _caused(ops: Operations, waits: Waits, steps: Steps, mesh: Mesh, rank: int, dim: str) -> float:
    """Mean wait a step of each other member, in the rank's channels along `dim`, for operations it joined last; ns."""
    spans = {c.number: _dims(mesh, c.members, p2p=c.p2p) for c in ops.channels if rank in c.members}
    pure = [c for c, dims in spans.items() if dims == (dim,)]
    chosen = pure or [c for c, dims in spans.items() if dims and dim in dims]
    analysed = np.isin(ops.step, steps.numbers) if steps.labelled else np.ones(len(ops.step), bool)
    worst = 0.0
    for p2p in (False, True):
        by_rank: dict[int, float] = {}
        for channel in (c for c in chosen if ops.channels[c].p2p == p2p):
            rows = np.flatnonzero(
                (ops.channel == channel) & (ops.instance >= 0) & analysed & (ops.rank != rank)
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
    return worst / max(len(steps.numbers), 1)


def _dims(mesh: Mesh, members: tuple[int, ...], *, p2p: bool) -> tuple[str, ...] | None:
    if not p2p:
        return mesh.dims_of(members)
    a, b = (mesh.coordinates.get(m) for m in members)
    return tuple(d for d, x, y in zip(mesh.order, a, b, strict=True) if x != y) if a and b else None
