"""Medians that numpy has not: with weights (numpy has them from version 2), and of columns with unknown entries."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np

from tracekit.thresholds.slowrank import PEERS_SAMPLED
from tracekit.units import F64, I64


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


def median_by_column(values: F64) -> F64:
    """Return the median of each column of `values`, a row a rank; NaN where nothing in it is known."""
    known = np.isfinite(values).any(axis=0)
    result = np.full(values.shape[1], np.nan)
    result[known] = np.nanmedian(values[:, known], axis=0)
    return result


def of_rows(reduce: Callable[[F64], float | np.floating[Any]], values: F64) -> F64:
    """Return `reduce`, as `np.nanmean`, of each row of `values`, a row a rank; NaN where nothing in it is known."""
    return np.array([float(reduce(row)) if np.isfinite(row).any() else np.nan for row in values])


# A sample of ranks: reading the events of a rank takes time, and a median needs few.

_Rows = TypeVar("_Rows", Sequence[int], list[int], I64)


def sampled(rows: _Rows) -> _Rows:
    """Return at most PEERS_SAMPLED of `rows`, evenly spread over them."""
    return rows[:: max(1, len(rows) // PEERS_SAMPLED)][:PEERS_SAMPLED]
