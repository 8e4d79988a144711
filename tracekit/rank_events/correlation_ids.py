"""Joins device events to host events by an identifier that a later recording may reuse."""

import numpy as np

from tracekit.units import I64


def latest(known: I64, time: I64, wanted: I64, moment: I64) -> I64:
    """Return for each of `wanted` the index of the last equal one of `known` that is not after its `moment`.

    `time` are the moments of `known`, ns. If all equal ones are later, the first of them, since clocks may differ a
    little; -1 without an equal one.
    """
    if not len(known):
        return np.full(len(wanted), -1, np.int64)
    order = np.lexsort((time, known))
    keys, moments = known[order], np.sort(time)
    distinct, number = np.unique(keys, return_inverse=True)
    width = len(time) + 1
    ranked = number * width + np.searchsorted(moments, time[order], side="right")
    first = np.minimum(np.searchsorted(distinct, wanted), len(distinct) - 1)
    limit = first * width + np.searchsorted(moments, moment, side="right")
    place = np.searchsorted(ranked, limit, side="right") - 1
    place = np.maximum(place, np.searchsorted(keys, wanted))
    return np.where(distinct[first] == wanted, order[np.minimum(place, len(order) - 1)], -1)
