"""The time that communication which spins for a late rank adds to overlapping kernels, on all ranks but the late one.

A collective that waits for its last member occupies a part of the device of every member that came before. The last
member never waits, so that its own time is shorter than its peers' own time by what its lateness costs them.
"""

import numpy as np

from tracekit.analysis.slowrank.expected.sampling import sampled
from tracekit.intervals import I64
from tracekit.steps.compute_contention import stretched
from tracekit.steps.steps import F64
from tracekit.thresholds.peers import THOSE_WHO_WAIT
from tracekit.thresholds.slowrank import CANDIDATE_SHARE, PEERS_SAMPLED
from tracekit.thresholds.tables import MOST_STRETCHED
from tracekit.timing.measured import Measured


def spun_longer(run: Measured) -> F64:
    """The own time that overlapping communication adds to kernels, ranks × steps as in `Steps`, ns.

    NaN for ranks of a stage in which all wait equally while they compute, and for ranks without a GPU.
    """
    found = np.full(run.steps.own.shape, np.nan)
    hidden = _hidden_waits(run)
    for stage in run.stages:
        rows = np.array([r for r in stage.tolist() if np.isfinite(hidden[r]).any()], np.int64)
        if len(rows) < 2 or not all(run.ops.per_rank[run.steps.ranks[r]].on_gpu for r in rows.tolist()):
            continue
        waited = np.nanmean(hidden[rows], axis=1)
        spared = (
            MOST_STRETCHED * (np.percentile(waited, THOSE_WHO_WAIT) - waited) > CANDIDATE_SHARE * run.step_ns
        )
        if spared.any():
            found[rows] = _of_stage(run, rows[spared], rows[~spared], hidden)
    return found


def relieved(spun: F64, own: F64, stages: list[I64], rows: I64) -> F64:
    """`own` (ranks × steps, ns) with the others relieved of waiting for the cured `rows`; `spun` is `spun_longer`."""
    less = own.copy()
    for stage in stages:
        mine = np.intersect1d(stage, rows)
        others = np.setdiff1d(stage, rows)
        if len(mine) and np.isfinite(spun[mine]).any():
            base = np.nanmean(np.nanmedian(spun[mine], axis=0))
            less[others] -= np.maximum(np.nan_to_num(spun[others] - base), 0.0)
    return less


def _hidden_waits(run: Measured) -> F64:
    """The time that communication of each rank waits for others while it computes, ranks × steps, ns; NaN unknown."""
    ops, steps = run.ops, run.steps
    spent = (run.waits.wait - run.waits.exposed_wait).astype(np.float64)
    result = np.where(np.isfinite(steps.own), 0.0, np.nan)
    column = {number: i for i, number in enumerate(steps.numbers)}
    for row, rank in enumerate(steps.ranks):
        where = ops.of(rank)
        mine = np.flatnonzero(run.analysed[where] & (ops.instance[where] >= 0)) + where.start
        at = [column.get(s, 0) for s in ops.step[mine].tolist()] if steps.labelled else [0] * len(mine)
        np.add.at(result[row], np.array(at, np.int64), spent[mine])
    return result


def _of_stage(run: Measured, spared: I64, waiting: I64, hidden: F64) -> F64:
    """`spun_longer` of the ranks of one stage, in order of rows; a few are read, the others are interpolated by waits.

    The ranks that are read are spread over the waits, so that they do not depend on how ranks are numbered.
    """
    longest = spared[np.argsort(-np.nanmean(run.steps.own[spared], axis=1), kind="stable")]
    spread = [
        sampled(some[np.argsort(np.nanmean(hidden[some], axis=1), kind="stable")])
        for some in (spared, waiting)
    ]
    read = np.unique(np.concatenate([longest[:PEERS_SAMPLED], *spread]))
    longer = stretched(run.run, run.ops, run.steps, read.tolist())
    every = np.sort(np.concatenate([spared, waiting]))
    result = np.full((len(every), longer.shape[1]), np.nan)
    result[np.searchsorted(every, read)] = longer
    few, many = (np.isin(read, some) for some in (spared, waiting))
    begin, end = np.nanmean(hidden[read[few]]), np.nanmean(hidden[read[many]])
    low, high = np.nanmedian(longer[few]), np.nanmedian(longer[many])
    part = (high - low) / max(end - begin, 1.0)
    left = np.setdiff1d(every, read)
    result[np.searchsorted(every, left)] = low + part * (hidden[left] - begin)
    return result
