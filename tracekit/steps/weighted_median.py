"""The weighted median and quantile. (numpy has them as a quantile with weights, from version 2.)"""

import numpy as np

from tracekit.units import F64


def weighted_median(values: F64, weights: F64, default: float) -> float:
    """Return the value at which half of the weight is reached; `default` without any weight."""
    return weighted_quantile(values, weights, default, 0.5)


def weighted_quantile(values: F64, weights: F64, default: float, share: float) -> float:
    """Return the value at which a `share` of the weight is reached, smallest values first; `default` without weight."""
    order = np.argsort(values, kind="stable")
    reached = np.cumsum(weights[order])
    if not len(reached) or reached[-1] <= 0:
        return default
    return float(values[order][np.searchsorted(reached, share * reached[-1])])
