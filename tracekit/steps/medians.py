"""Medians that numpy has not: with weights (numpy has them from version 2), and of columns with unknown entries."""

import numpy as np

from tracekit.units import F64


def weighted_median(values: F64, weights: F64, default: float) -> float:
    """Return the value at which half of the weight is reached; `default` without any weight."""
    order = np.argsort(values, kind="stable")
    reached = np.cumsum(weights[order])
    if not len(reached) or reached[-1] <= 0:
        return default
    return float(values[order][np.searchsorted(reached, reached[-1] / 2)])


def median_by_column(values: F64) -> F64:
    """Return the median of each column of `values`, a row a rank; NaN where nothing in it is known."""
    known = np.isfinite(values).any(axis=0)
    result = np.full(values.shape[1], np.nan)
    result[known] = np.nanmedian(values[:, known], axis=0)
    return result
