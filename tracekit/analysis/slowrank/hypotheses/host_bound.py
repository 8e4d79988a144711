"""The time that hosts need to launch a step: no cure of a rank makes the step shorter than that.

Where hosts need nearly the whole step, the device of one rank idles behind its host while the devices of the others
spin in collectives for it. That rank alone shows gaps, and without them another host would be the last to launch.
"""

import numpy as np

from tracekit.analysis.slowrank.case import Case
from tracekit.step_graph.statistics import excess, spread
from tracekit.steps.medians import median_by_column
from tracekit.thresholds.slowrank import CANDIDATE_SHARE, KIND_RATIO, Z_LIMIT
from tracekit.units import F64, I64


def most_saved_ns(case: Case, rows: I64) -> float:
    """The most that a step can save if `rows` work like their peers, ns: usual hosts need the rest of the step.

    Infinite where no host was recorded.
    """
    needs = case.host_needs
    usual = _usual(needs, case.stages, rows)
    if not len(usual):
        return np.inf
    left = np.nanmean(case.steps.wall, axis=0) - needs[usual]
    return max(float(np.nanmean(left, axis=1).min()), 0.0)


def _usual(needs: F64, stages: list[I64], rows: I64) -> I64:
    """The ranks with hosts that bound the saving of a cure of `rows`; `needs` are ranks × steps, ns.

    A host that needs far longer than others of its stage has a fault of its own and is no bound. One of `rows` is a
    bound unless it needs longer than the others by more than chance: the cure makes it faster.
    """
    known = np.flatnonzero(np.isfinite(needs).any(axis=1))
    found = excess(needs, stages, 0.0)
    mean = found.mean[np.setdiff1d(known, rows)]
    chance = max(spread(mean), found.sigma / np.sqrt(needs.shape[1]))
    usual = []
    for stage in stages:
        others = np.intersect1d(np.setdiff1d(stage, rows), known)
        if not len(others):
            continue
        typical = median_by_column(needs[others])
        for row in np.intersect1d(stage, known).tolist():
            more = Z_LIMIT * max(chance, CANDIDATE_SHARE * np.nanmean(typical))
            if row not in rows:
                more = (KIND_RATIO - 1) * np.nanmean(typical)
            if np.nanmean(needs[row] - typical) <= more:
                usual.append(row)
    return np.array(usual, np.int64)


def alike(case: Case, row: int, rows: I64) -> bool:
    """Whether the host of `row`, one of `rows`, needs no longer than other hosts beyond chance."""
    return row in _usual(case.host_needs, case.stages, rows)


def levelling_saves_ns(case: Case) -> float:
    """The most that a step can save if all ranks work alike, ns: a typical host needs the rest of the step.

    Infinite where no host was recorded.
    """
    if not np.isfinite(case.host_needs).any():
        return np.inf
    known = np.isfinite(case.host_needs).any(axis=1)
    left = np.nanmean(case.steps.wall, axis=0) - case.host_needs[known]
    return max(float(np.median(np.nanmean(left, axis=1))), 0.0)


def unstalled_saves_ns(case: Case) -> float:
    """The most that a step can save if no host stalls, ns: a typical host in a typical step needs the rest.

    Infinite where no host was recorded.
    """
    if not np.isfinite(case.host_needs).any():
        return np.inf
    wall = float(np.nanmean(np.nanmean(case.steps.wall, axis=0)))
    return max(wall - float(np.nanmedian(case.host_needs)), 0.0)


def hosts_known(case: Case, rows: I64) -> bool:
    """Whether the host of any rank beside `rows` was recorded."""
    return bool(np.isfinite(np.delete(case.host_needs, rows, axis=0)).any())
