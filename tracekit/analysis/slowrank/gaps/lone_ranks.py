"""Ranks that do work which no other rank does: only their own steps show whether they are slow at times.

Without a peer, uneven data and an intermittently slow device look alike. The quickest step bounds what a rank could do
without either, so that steps which take equally long hide no intermittent fault.
"""

import numpy as np

from tracekit.analysis.slowrank.case import Case
from tracekit.units import I64


def lone_ranks(case: Case) -> I64:
    """Return the rows of GPU ranks that recorded several steps and have no peer in any of them."""
    alone = ~np.isfinite(case.found.mean) & (np.isfinite(case.steps.own).sum(axis=1) > 1)
    on_gpu = [case.ops.per_rank[rank].on_gpu for rank in case.steps.ranks]
    return np.flatnonzero(alone & on_gpu)


def varies_ns(case: Case, rows: I64) -> float:
    """Return what a step saves if each of `rows` works in every step as in its quickest one, ns."""
    target = case.steps.own.copy()
    target[rows] = np.minimum(target[rows], np.nanmin(target[rows], axis=1, keepdims=True))
    return max(case.model.recorded_ns - case.model.step_ns(target), 0.0)
