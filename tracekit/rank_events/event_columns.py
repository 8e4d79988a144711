"""Columns of an event table as numpy arrays and lists."""

import re
import weakref
from collections.abc import Callable
from functools import lru_cache
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tracekit.arrays import null_as, to_numpy
from tracekit.rank_events.coded_words import Column
from tracekit.units import I64, Mask

Values = npt.NDArray[np.object_]

DEVICE_CALLS: Final = ("cuda_runtime", "cuda_driver", "xpu_runtime", "xpu_driver")
"""Categories of calls to a device's runtime or driver, by which a host launches its work and waits for it."""


def ints(events: pa.Table, column: str, null: int) -> I64:
    """Return the integers of a column, one entry a row; missing values are `null`."""
    return null_as(events.column(column), null)


def strings(column: pa.ChunkedArray) -> list[str | None]:
    """Return the texts of a column, one entry a row; None for missing values."""
    texts, places = encoded(column)
    found: list[str | None] = np.array(texts, np.object_)[places].tolist()
    return found


def present(events: pa.Table, column: str) -> Mask:
    """Whether each row has a value in a column."""
    return to_numpy(events.column(column).is_valid())


def matches(events: pa.Table, column: str, of: Callable[[str | None], object]) -> Values:
    """Return `of(value)` for each row of a column; `of` is called once for each distinct value, and with None."""
    texts, places = _words(events, column)
    table = np.empty(len(texts), np.object_)
    for place, value in enumerate(texts):
        table[place] = of(value)
    result: Values = table[places]
    return result


def categories(events: pa.Table) -> Column:
    """Return the category of each row; None for missing ones."""
    texts, places = _words(events, "cat")
    return Column(texts, places.astype(np.int32))


def holds(events: pa.Table, column: str, of: Callable[[str | None], object]) -> Mask:
    """Whether `of(value)` is true for each row of a column; `of` is called once for each distinct value, and None."""
    texts, places = _words(events, column)
    result: Mask = np.array([bool(of(value)) for value in texts], bool)[places]
    return result


def filled(events: pa.Table, column: str, of: Callable[[str | None], object]) -> Mask:
    """Whether `of(value)` is not None for each row of a column, called as by `holds`."""
    return holds(events, column, lambda value: of(value) is not None)


def truth(events: pa.Table, column: str, pattern: re.Pattern[str]) -> Mask:
    """Whether each row of a dictionary column matches `pattern`."""
    return holds(events, column, lambda text: text and _found(pattern, text))


@lru_cache(1 << 16)
def _found(pattern: re.Pattern[str], text: str) -> bool:
    """Whether `pattern` is in `text`; the ranks of a job run kernels of the same names."""
    return pattern.search(text) is not None


_Words = tuple[list[str | None], I64]
_last: list[tuple[weakref.ref[pa.Table], dict[str, _Words]]] = []


def _words(events: pa.Table, column: str) -> _Words:
    """`encoded` of a column, kept for the table asked last: each rank's names are asked for twenty times in a row."""
    kept = _last[-1] if _last else None
    if kept is None or kept[0]() is not events:
        kept = weakref.ref(events), {}
        _last[:] = [kept]
    if column not in kept[1]:
        kept[1][column] = encoded(events.column(column))
    return kept[1][column]


def encoded(column: pa.ChunkedArray) -> tuple[list[str | None], I64]:
    """Return the distinct texts of a column and then None, and the index of each row's text among them."""
    values = column.combine_chunks()
    if not pa.types.is_dictionary(values.type):
        values = values.dictionary_encode()
    if isinstance(values, pa.ChunkedArray):
        values = values.unify_dictionaries().combine_chunks()
    texts: list[str | None] = values.dictionary.to_pylist()
    return [*texts, None], null_as(values.indices, len(texts))


# Joins device events to host events by an identifier that a later recording may reuse.


def latest(known: I64, time: I64, wanted: I64, moment: I64) -> I64:
    """Return for each of `wanted` the index of the last equal one of `known` that is not after its `moment`.

    `time` are the moments of `known`, ns. If all equal ones are later, the first of them, since clocks may differ a
    little; -1 without an equal one.
    """
    if not len(known):
        return np.full(len(wanted), -1, np.int64)
    order = np.lexsort((time, known))
    keys, moments = known[order], np.sort(time)
    fresh = np.append(True, keys[1:] != keys[:-1])
    distinct, number = keys[fresh], np.cumsum(fresh) - 1
    width = len(time) + 1
    ranked = number * width + np.searchsorted(moments, time[order], side="right")
    first = np.minimum(np.searchsorted(distinct, wanted), len(distinct) - 1)
    limit = first * width + np.searchsorted(moments, moment, side="right")
    place = np.searchsorted(ranked, limit, side="right") - 1
    place = np.maximum(place, np.searchsorted(keys, wanted))
    return np.where(distinct[first] == wanted, order[np.minimum(place, len(order) - 1)], -1)
