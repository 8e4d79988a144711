"""The weighted median. (numpy has it as a quantile with weights, from version 2.)"""

import numpy as np

from tracekit.units import F64


def weighted_median(values: F64, weights: F64, default: float) -> float:
    """Return the value at which half of the weight is reached; `default` without any weight."""
    order = np.argsort(values, kind="stable")
    reached = np.cumsum(weights[order])
    if not len(reached) or reached[-1] <= 0:
        return default
    return float(values[order][np.searchsorted(reached, reached[-1] / 2)])
