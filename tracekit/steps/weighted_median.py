"""Quantiles with weights. (numpy has them from version 2.)"""

import numpy as np

from tracekit.thresholds.slowrank import MAJORITY
from tracekit.units import F64


def weighted_median(values: F64, weights: F64, default: float) -> float:
    """Return the value at which half of the weight is reached; `default` without any weight."""
    return weighted_quantile(values, weights, MAJORITY, default)


def weighted_quantile(values: F64, weights: F64, share: float, default: float) -> float:
    """Return the value at which a `share` (0 to 1) of the weight is reached; `default` without any weight."""
    order = np.argsort(values, kind="stable")
    reached = np.cumsum(weights[order])
    if not len(reached) or reached[-1] <= 0:
        return default
    return float(values[order][np.searchsorted(reached, share * reached[-1])])
