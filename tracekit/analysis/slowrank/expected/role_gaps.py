"""Gaps that the job's design makes: ranks of tensor index 0 load for their tensor groups while the others wait.

What such a rank stands still longer than the others of its stage is no fault, as far as the others of its role stand
still as long. Their peers in loading are the ranks that load, on whatever stage these run.
"""

import numpy as np

from tracekit.intervals import I64
from tracekit.step_graph.statistics import MAD_TO_SIGMA, Excess, excess
from tracekit.steps.steps import F64
from tracekit.thresholds.slowrank import (
    CANDIDATE_SHARE,
    NOISE_FLOOR,
    ROLE_EQUALITY,
    ROLE_RANKS,
    ROLE_SHARE,
    Z_LIMIT,
)
from tracekit.timing.measured import Measured


def role_gaps(run: Measured, computed: F64) -> tuple[I64, F64]:
    """Return the rows of the ranks that play such a role, and by how much it makes each step of each rank longer, ns.

    `computed` is the compute of each rank in each step, ns. What is returned second has its shape, ranks × steps, and
    is 0 where no role shows. A rank gets what the typical other rank of the role stands still beyond its peers, so that
    one which loads for longer than those is left with the difference.
    """
    longer = np.zeros(computed.shape)
    nobody = np.zeros(0, np.int64), longer
    if not run.mesh.roles or len(run.steps.numbers) < 2:
        return nobody
    floor = NOISE_FLOOR * float(np.nanmedian(run.steps.wall))
    still = excess(run.steps.own - computed, run.stages, floor)
    rows = _role(run, still)
    if not len(rows):
        return nobody
    told = longer.copy()
    for row in rows.tolist():
        told[row] = np.nan_to_num(np.maximum(_median(still.value[np.setdiff1d(rows, row)]), 0.0))
    return rows, told


def costs_much(run: Measured, rows: I64, longer: F64) -> bool:
    """Whether the ranks in `rows` stand still for their role, by `longer`, for more than anybody would have wanted."""
    return len(rows) > 0 and float(np.median(longer[rows].mean(axis=1))) >= ROLE_SHARE * run.step_ns


def noise_of(value: F64) -> float:
    """Robust standard deviation of an entry about its row's level, ns; `value` is ranks × steps.

    The level of a row is one of its entries or lies between two, so that the smallest deviation of each tells nothing.
    """
    off = np.abs(value - _median(value.T)[:, None])
    left = np.sort(off, axis=1)[:, 1:]  # NaN last
    left = left[np.isfinite(left)]
    return float(MAD_TO_SIGMA * np.median(left)) if len(left) else 0.0


def _median(value: F64) -> F64:
    """Median of each column; NaN where nothing in it is known."""
    known = np.isfinite(value).any(axis=0)
    result = np.full(value.shape[1], np.nan)
    result[known] = np.nanmedian(value[:, known], axis=0)
    return result


def _role(run: Measured, still: Excess) -> I64:
    """The rows of all ranks with index 0, in stages in which each of them stands still longer than its peers."""
    mean = np.nan_to_num(still.mean)
    long = (np.nan_to_num(still.z) > Z_LIMIT) & (mean > CANDIDATE_SHARE * run.step_ns)
    for axes in run.mesh.roles:
        first = np.array([run.mesh.leads(r, axes) for r in run.steps.ranks])
        mine = [stage[first[stage]] for stage in run.stages if not first[stage].all()]
        found = [rows for rows in mine if len(rows) and long[rows].all()]
        rows = np.sort(np.concatenate(found)) if found else np.zeros(0, np.int64)
        alike = len(rows) and mean[rows].min() >= ROLE_EQUALITY * np.median(mean[rows])
        if alike and len(rows) >= ROLE_RANKS and int(long.sum()) - len(rows) < len(rows):
            return rows
    return np.zeros(0, np.int64)
