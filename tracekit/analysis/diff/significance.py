"""Whether a quantity differs between two runs, by its values in their steps.

The test of Mann and Whitney uses only the order of steps, so that one long step decides nothing. All changes of one
kind are judged together (Benjamini and Hochberg), because among a thousand ranks some differ by chance.
"""

from collections.abc import Sequence
from itertools import count
from math import comb

import numpy as np
from scipy.stats import false_discovery_control, mannwhitneyu

from tracekit.findings.diff import Change, ChangeKind
from tracekit.steps.steps import F64
from tracekit.thresholds.diff import LEAST_STEPS, LEVEL, RESAMPLES, SEED


def changes(kind: ChangeKind, names: Sequence[str], before: F64, after: F64) -> tuple[Change, ...]:
    """Return the change of each quantity, the largest first.

    before, after: its values by step, shape (steps of the run, quantities), ns; NaN where a step lacks it.
    """
    tested = [
        _p(one[np.isfinite(one)], two[np.isfinite(two)]) for one, two in zip(before.T, after.T, strict=True)
    ]
    known = [p for p in tested if p is not None]
    judged = iter(false_discovery_control(known).tolist() if known else [])
    proven = [p is not None and next(judged) <= LEVEL for p in tested]
    found = [
        Change(kind, name, _median(before[:, i]), _median(after[:, i]), tested[i], proven[i])
        for i, name in enumerate(names)
    ]
    return tuple(sorted(found, key=lambda c: (-abs(c.change_ns), c.what)))


def steps_for_one(steps: tuple[int, int], tested: int) -> int | None:
    """Return the steps of each run that can prove one change among `tested`; None where `steps` suffice."""
    if not tested or _rarest(*steps) * tested <= LEVEL:
        return None
    return next(n for n in count(LEAST_STEPS) if _rarest(n, n) * tested <= LEVEL)


def _rarest(before: int, after: int) -> float:
    """The probability of the rarest order of two equal runs' steps, two-sided: all of one before all of the other."""
    return 2 / comb(before + after, before)


def interval(before: F64, after: F64) -> tuple[float, float]:
    """Return the interval of the change of the median, ns (bootstrap percentiles); shapes (steps,)."""
    draw = np.random.default_rng(SEED)
    shifts = np.median(draw.choice(np.sort(after), (RESAMPLES, len(after))), axis=1) - np.median(
        draw.choice(np.sort(before), (RESAMPLES, len(before))), axis=1
    )
    low, high = np.quantile(shifts, [LEVEL / 2, 1 - LEVEL / 2])
    return float(low), float(high)


def _p(before: F64, after: F64) -> float | None:
    """The probability of so different an order in equal runs; None where a run has too few steps."""
    if min(len(before), len(after)) < LEAST_STEPS:
        return None
    if np.ptp(np.concatenate([before, after])) == 0:
        return 1.0
    return round(float(mannwhitneyu(before, after, alternative="two-sided").pvalue), 9)


def _median(values: F64) -> float:
    """The median of the known values; 0 without any."""
    known = values[np.isfinite(values)]
    return float(np.median(known)) if len(known) else 0.0
