"""Devices that were slow throughout one step: not an accident of one operation, although it did not recur.

Where few steps were recorded, an intermittent fault may show in only one of them. It lengthens nearly all kernels of
that step by a common factor. A profiler that starts, a checkpoint or a pause keeps the device waiting, an accident
lengthens one kernel, and uneven data lengthens the kernels that follow the data.
"""

from collections.abc import Collection
from functools import cache

import numpy as np

from tracekit.analysis.slowrank.expected.sampling import sampled
from tracekit.step_graph.statistics import Excess
from tracekit.steps.longer_kernels import LongerKernels, longer_kernels
from tracekit.steps.step_kernels import kernels_in_steps
from tracekit.thresholds.slowrank import (
    CANDIDATE_SHARE,
    MAJORITY,
    NEARLY_ALL,
    NO_ACCIDENT,
    RANKS_SAMPLED,
    STEP_PARTS,
)
from tracekit.timing.measured import Measured
from tracekit.units import I64, Mask


def throttled(run: Measured, found: Excess, recurring: Mask) -> frozenset[int]:
    """The rows with devices slow throughout their longest step, and with too few other steps to call it an accident.

    `found` is the excess with the significance of its mean, `recurring` marks rows with an excess in several steps.
    Reads at most RANKS_SAMPLED rows, by the largest excess.
    """
    others = np.isfinite(found.value).sum(axis=1) - 1
    enough = np.nan_to_num(found.mean, nan=0.0) > CANDIDATE_SHARE * run.step_ns
    once = enough & (np.nan_to_num(found.z, nan=0.0) > found.limit) & ~recurring
    rows = np.flatnonzero(once & (others < NO_ACCIDENT))
    return _throughout(run, found, rows)


def slow_throughout(run: Measured, found: Excess, row: int) -> bool:
    """Whether the device of the rank in `row` was slow throughout its longest step, whatever the other steps show."""
    long = np.flatnonzero(np.nan_to_num(found.mean, nan=0.0) > CANDIDATE_SHARE * run.step_ns)
    return row in _throughout(run, found, long)


def _throughout(run: Measured, found: Excess, rows: I64) -> frozenset[int]:
    """The rows among `rows` with devices that were slow throughout their longest step."""
    worst = rows[np.argsort(-found.mean[rows], kind="stable")][:RANKS_SAMPLED].tolist()
    slow = [row for row in worst if run.ops.per_rank[run.steps.ranks[row]].on_gpu]
    kernels = cache(lambda row: kernels_in_steps(run.run, run.ops, run.steps, row))
    columns = {row: int(np.nanargmax(found.value[row])) for row in slow}
    return frozenset(
        row
        for row, column in columns.items()
        if not _shared(run, row, {r for r, c in columns.items() if c == column})
        and fills_step(
            longer_kernels(kernels(row), [kernels(r) for r in _peers(run, row, column, columns)], column),
            float(found.value[row, column]),
        )
    )


def _peers(run: Measured, row: int, column: int, suspects: Collection[int]) -> list[int]:
    """The sample of unsuspected rows with the same work as `row` that have the step in `column` whole."""
    stage = run.stage_of(row)
    pool = [r for r in stage.tolist() if r not in suspects and np.isfinite(run.steps.own[r, column])]
    return sampled(pool)


def fills_step(longer: LongerKernels, excess: float) -> bool:
    """Whether the kernels carry the `excess` (ns) of their step, and nearly all of them are longer."""
    carried = longer.ns >= MAJORITY * excess
    return carried and longer.share >= NEARLY_ALL and longer.count >= STEP_PARTS


def _shared(run: Measured, row: int, suspects: set[int]) -> bool:
    """Whether all recorded ranks on the same data in the stage of `row`, two or more, are among `suspects`.

    A longer batch in one step lengthens the kernels of all ranks that work on it.
    """
    here = run.mesh.replica(run.steps.ranks[row])
    same = {r for r in run.stage_of(row).tolist() if run.mesh.replica(run.steps.ranks[r]) == here}
    return len(same) > 1 and same <= suspects
