"""A cure that shortens only the longest gaps of a rank, where it loads data or pauses, and not its work.

A gap at the begin of a step delays all that follows. Spread over the step, the same time would cost less.
"""

from collections.abc import Sequence

import numpy as np

from tracekit.analysis.slowrank.case import Case
from tracekit.step_graph.replay import StepModel
from tracekit.timing.device_gaps import gaps_of
from tracekit.units import F64, I64

Cuts = dict[tuple[int, int], tuple[F64, F64]]
"""Cuts and factors by run and row, in the form of `StepModel.rescaled_ns`."""


def without_gaps(case: Case, model: StepModel, rows: Sequence[int], over: F64) -> Cuts:
    """Return the cuts that take `over` (ns, one an analysed step) from the longest gaps of `rows` in each step."""
    cuts: Cuts = {}
    for row in rows:
        rank = case.steps.ranks[row]
        gaps = gaps_of(case.run, case.ops, rank)
        parts = (gaps.host, gaps.idle, gaps.unknown)
        begin, end = (
            case.ops.progress[rank].at(np.concatenate([part[side] for part in parts])) for side in (0, 1)
        )
        for n, (columns, lines) in enumerate(model.runs):
            line = next((line for line in lines if line.row == row), None)
            if line is None:
                continue
            chosen, factors = [np.zeros((0, 2))], [np.zeros(0)]
            for place, column in enumerate(columns):
                mine, left = _longest(
                    begin, end, line.knots[place], line.knots[place + 1], float(over[column])
                )
                chosen, factors = [*chosen, mine], [*factors, left]
            cuts[n, row] = _laid_out(line.knots, np.concatenate(chosen), np.concatenate(factors))
    return cuts


def _longest(begin: I64, end: I64, low: float, high: float, over: float) -> tuple[F64, F64]:
    """(begin and end of the longest gaps between `low` and `high` that add up to `over`, the share left of each)."""
    first, last = np.clip(begin, low, high).astype(np.float64), np.clip(end, low, high).astype(np.float64)
    width = last - first
    order = np.argsort(-width, kind="stable")
    order = order[width[order] > 0]
    taken = np.clip(over - (np.cumsum(width[order]) - width[order]), 0.0, width[order])
    order, taken = order[taken > 0], taken[taken > 0]
    return np.stack([first[order], last[order]], axis=1), 1.0 - taken / width[order]


def _laid_out(knots: F64, gaps: F64, left: F64) -> tuple[F64, F64]:
    """(readings of own time that bound parts, the factor of each part): only gaps become shorter."""
    order = np.argsort(gaps[:, 0], kind="stable")
    gaps, left = gaps[order], left[order]
    readings = np.concatenate([[knots[0]], gaps.ravel(), [knots[-1]]])
    factors = np.ones(len(readings) - 1)
    factors[1::2] = left
    return readings, factors
