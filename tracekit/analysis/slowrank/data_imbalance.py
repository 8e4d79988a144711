"""Work that is dealt unevenly by the data: who is longest changes from step to step, and nobody is to blame."""

import numpy as np

from tracekit.analysis.slowrank.candidates import everybody
from tracekit.analysis.slowrank.case import Case
from tracekit.analysis.slowrank.excess import dispersion, stage_rows
from tracekit.analysis.slowrank.statistics import DATA_VARIATION, IMBALANCE_LIMIT, MIN_LOST_SHARE
from tracekit.tables.features import read_features
from tracekit.tables.steps import F64

_RANKS_READ = 16


def uneven_data(case: Case) -> float:
    """Time a step that an imbalance which follows the data costs, ns; 0 where there is none."""
    gain = everybody(case.steps, case.mesh, case.replayer)
    return gain if gain >= MIN_LOST_SHARE * case.step_ns and _follows_data(case) else 0.0


def _follows_data(case: Case) -> bool:
    """Whether uneven work is the data's doing: attention varies between peers more than the rest of compute does.

    Where a GPU trace names no attention, work that is dealt unevenly throughout (not kernel by kernel) is believed;
    on a CPU the scheduler of the host deals time unevenly as well, and it is not.
    """
    stage = max(stage_rows(case.steps, case.mesh), key=len)
    rows = [int(r) for r in stage[:: max(1, len(stage) // _RANKS_READ)]][:_RANKS_READ]
    read = [
        f
        for r in rows
        if (f := read_features(case.run, case.ops, case.steps, case.steps.ranks[r])) is not None
    ]
    if not read:
        return False
    most = max(len(f.busy_by_step) for f in read)
    read = [f for f in read if len(f.busy_by_step) == most]  # ranks that have all steps whole
    if len(read) < 2:
        return False
    attention = np.array([f.attention_by_step for f in read])
    rest = np.array([f.busy_by_step for f in read]) - attention
    if attention.mean() < 0.02 * rest.mean():
        uneven = dispersion(case.ops, case.steps, case.mesh)
        return read[0].on_gpu and uneven.ratio > IMBALANCE_LIMIT and uneven.spread_share > DATA_VARIATION
    return _variation(attention) > max(2 * _variation(rest), DATA_VARIATION)


def _variation(values: F64) -> float:
    """Median over steps of the relative spread between ranks, robust against a single one."""
    middle = np.median(values, axis=0)
    off = 1.4826 * np.median(np.abs(values - middle), axis=0) / np.maximum(middle, 1.0)
    return float(np.sort(off)[(len(off) - 1) // 2])
