"""Gaps by the job's design: ranks of tensor index 0 load data for their tensor groups while the others wait.

The longer idle time of such a rank is not a fault as far as the other ranks of this role are idle as long. Its peers in
loading are the loading ranks of all stages.
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
    """Return the rows of the ranks with such a role, and the idle time that it explains, ranks × steps, ns.

    `computed` is the compute of each rank in each step, ns. The second value is 0 where no role shows. Each rank gets
    the median excess of the other ranks of the role, so that a rank which loads for longer keeps the difference.
    """
    longer = np.zeros(computed.shape)
    no_role = np.zeros(0, np.int64), longer
    if not run.mesh.roles or len(run.steps.numbers) < 2:
        return no_role
    floor = NOISE_FLOOR * float(np.nanmedian(run.steps.wall))
    still = excess(run.steps.own - computed, run.stages, floor)
    rows = _role(run, still)
    if not len(rows):
        return no_role
    explained = longer.copy()
    for row in rows.tolist():
        explained[row] = np.nan_to_num(np.maximum(_median(still.value[np.setdiff1d(rows, row)]), 0.0))
    return rows, explained


def costs_much(run: Measured, rows: I64, longer: F64) -> bool:
    """Whether the idle time `longer` of the role's `rows` reaches ROLE_SHARE of the step, too much to be by design."""
    return len(rows) > 0 and float(np.median(longer[rows].mean(axis=1))) >= ROLE_SHARE * run.step_ns


def noise_of(value: F64) -> float:
    """The robust standard deviation of an entry about its row's median, ns; `value` is ranks × steps.

    The smallest deviation of each row is left out, because the median is an entry of the row or lies between two.
    """
    off = np.abs(value - _median(value.T)[:, None])
    left = np.sort(off, axis=1)[:, 1:]  # NaN last
    left = left[np.isfinite(left)]
    return float(MAD_TO_SIGMA * np.median(left)) if len(left) else 0.0


def _median(value: F64) -> F64:
    """The median of each column; NaN where nothing in it is known."""
    known = np.isfinite(value).any(axis=0)
    result = np.full(value.shape[1], np.nan)
    result[known] = np.nanmedian(value[:, known], axis=0)
    return result


def _role(run: Measured, still: Excess) -> I64:
    """The rows of all ranks with index 0 in stages where each of them is idle longer than its peers; else empty."""
    mean = np.nan_to_num(still.mean)
    long = (np.nan_to_num(still.z) > Z_LIMIT) & (mean > CANDIDATE_SHARE * run.step_ns)
    for axes in run.mesh.roles:
        first = np.array([run.mesh.leads(r, axes) for r in run.steps.ranks])
        mine = [stage[first[stage]] for stage in run.stages if not first[stage].all()]
        found = [rows for rows in mine if len(rows) and long[rows].all()]
        rows = np.sort(np.concatenate(found)) if found else np.zeros(0, np.int64)
        similar = len(rows) and mean[rows].min() >= ROLE_EQUALITY * np.median(mean[rows])
        if similar and len(rows) >= ROLE_RANKS and int(long.sum()) - len(rows) < len(rows):
            return rows
    return np.zeros(0, np.int64)
