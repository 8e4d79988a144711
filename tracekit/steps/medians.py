"""Medians that numpy has not: with weights (numpy has them from version 2), of columns with unknown entries; growth."""

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


def median_of_others(values: F64, groups: list[I64]) -> F64:
    """Return for each row the median of the other rows of its group, column by column; NaN where it has no peer.

    `groups` are disjoint sets of rows. Unknown values (NaN) are left out. The result has the shape of `values`.
    """
    result = np.full(values.shape, np.nan)
    for rows in groups:
        if len(rows) > 1:
            result[rows] = median_without_each(values[rows])
    return result


def median_without_each(block: F64) -> F64:
    """Return for each entry the median of the other entries of its column, without NaN; NaN if no others exist.

    One sort serves all rows: leaving out an entry moves the later ones up by one position.
    """
    order = np.argsort(block, axis=0, kind="stable")  # NaN comes last
    ascending = np.take_along_axis(block, order, axis=0)
    place = np.empty_like(order)
    np.put_along_axis(place, order, np.arange(len(block))[:, None] + np.zeros_like(order), axis=0)
    known = ~np.isnan(block)
    others = known.sum(axis=0) - known
    found = np.zeros(block.shape)
    for middle in ((others - 1) // 2, others // 2):
        at = np.maximum(middle, 0)
        at += known & (at >= place)
        found += np.take_along_axis(ascending, np.minimum(at, len(block) - 1), axis=0)
    return np.where(others > 0, found / 2, np.nan)


def of_rows(reduce: Callable[..., Any], values: F64) -> F64:
    """Return `reduce`, as `np.nanmean`, of each row of `values`, a row a rank; NaN where nothing in it is known."""
    known = np.isfinite(values).any(axis=1)
    result = np.full(len(values), np.nan)
    result[known] = reduce(values[known], axis=1)
    return result


# A sample of ranks: reading the events of a rank takes time, and a median needs few.

_Rows = TypeVar("_Rows", Sequence[int], list[int], I64)


def sampled(rows: _Rows, most: int = PEERS_SAMPLED) -> _Rows:
    """Return at most `most` of `rows`, evenly spread over them."""
    return rows[:: max(1, len(rows) // most)][:most]


def growth(values: F64, places: Sequence[I64]) -> F64:
    """Return by how much each of `values` exceeds the one before it at the same place; the first keeps its own.

    Values are in order of time; `places` are numbers that are equal for values at one place.
    """
    order = np.lexsort(places)
    same = np.all([np.diff(p[order]) == 0 for p in places], axis=0)
    grown = values.copy()
    grown[order[1:][same]] -= values[order[:-1][same]]
    return grown
