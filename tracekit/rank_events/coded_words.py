"""Columns of words, and several columns together, as numbers.

A number takes 4 bytes an entry, while text of fixed width takes the length of its longest word.
"""

from collections.abc import Collection, Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from tracekit.units import I64

Codes = npt.NDArray[np.int32]


def numbered(column: npt.NDArray[Any] | Iterable[object]) -> tuple[list[str], Codes]:
    """Return (the distinct words, sorted; the index of each entry's word among them).

    `pyarrow.array(column).dictionary_encode()` takes as long for tens of words, and imports pandas (0.3 s).
    """
    seen: dict[object, int] = {}
    entries = column.tolist() if isinstance(column, np.ndarray) else list(column)
    code = np.fromiter((seen.setdefault(word, len(seen)) for word in entries), np.int32, len(entries))
    words = [str(word) for word in seen]
    place = np.empty(len(words), np.int32)
    place[np.argsort(np.array(words, object), kind="stable")] = np.arange(len(words))
    return sorted(words), place[code]


def among(column: npt.NDArray[Any] | Iterable[object], wanted: Collection[str]) -> npt.NDArray[np.bool_]:
    """Whether the word of each entry is one of the `wanted`."""
    words, code = numbered(column)
    return np.array([word in wanted for word in words], bool)[code]


def numbered_rows(*columns: npt.NDArray[Any]) -> tuple[I64, I64]:
    """Return (the first row of each distinct row, ascending; the number of each row among the distinct ones).

    `columns` are of equal length, the first one counts most. `np.unique(..., axis=1)` compares whole rows one by one,
    which takes seven times as long.
    """
    order = np.lexsort(columns[::-1])
    fresh = np.zeros(len(order), bool)
    fresh[:1] = True
    for column in columns:
        ordered = column[order]
        fresh[1:] |= ordered[1:] != ordered[:-1]
    number = np.empty(len(order), np.int64)
    number[order] = np.cumsum(fresh) - 1
    return order[fresh], number
