"""64-bit keys that identify rows: hashed from columns, counted, and joined between runs.

Rows of several runs meet through these keys. Among a million rows two keys collide with a chance of 1 in 10^7, and a
collision would show as a shape that does not fit, never as equality.
"""

from typing import Any

import numpy as np

Ints = np.ndarray[Any, np.dtype[np.int64]]
Keys = np.ndarray[Any, np.dtype[np.uint64]]


def splitmix(index: np.ndarray) -> np.ndarray:
    """Return the splitmix64 output for every index, uint64 (Steele, Lea, Flood 2014)."""
    z = (index.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    z ^= z >> np.uint64(30)
    z *= np.uint64(0xBF58476D1CE4E5B9)
    z ^= z >> np.uint64(27)
    z *= np.uint64(0x94D049BB133111EB)
    z ^= z >> np.uint64(31)
    return z


def random_signs(dim: int, size: int, count: int) -> np.ndarray:
    """Return random signs for the coordinates 0 to `size` of dimension `dim`, (size, count) int8."""
    keys = splitmix(np.arange(size, dtype=np.uint64) + np.uint64((dim + 1) << 48))
    bits = (keys[:, None] >> np.arange(17, 17 + count, dtype=np.uint64)) & np.uint64(1)
    return bits.astype(np.int8) * np.int8(2) - np.int8(1)


def keys_of(*columns: np.ndarray) -> Keys:
    """Return one key for each row: a hash of the columns, all of shape (rows,)."""
    key = np.zeros(len(columns[0]), np.uint64)
    for column in columns:
        key = splitmix(key ^ splitmix(column.astype(np.int64).view(np.uint64)))
    return key


def occurrence(keys: Keys, order: Ints) -> Ints:
    """Return how many rows with the same key come earlier in `order`: 0 for a key's first row, then 1, …"""
    by = np.lexsort((order, keys))
    ordered = keys[by]
    starts = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]]) if len(keys) else np.zeros(0, np.int64)
    lengths = np.diff(np.r_[starts, len(keys)])
    counts = np.arange(len(keys)) - np.repeat(starts, lengths)
    found = np.empty(len(keys), np.int64)
    found[by] = counts
    return found


def join(left: Keys, right: Keys) -> Ints:
    """Return for each row of `left` the row of `right` (unique keys) with the same key, -1 where there is none."""
    if not len(right):
        return np.full(len(left), -1, np.int64)
    by = np.argsort(right, kind="stable")
    at = np.searchsorted(right[by], left)
    at[at == len(right)] = 0
    return np.where(right[by][at] == left, by[at], -1)


def first_of_each(ordered: Keys) -> np.ndarray:
    """Mark the first row of each stretch of equal keys, (rows,) bool."""
    marks = np.ones(len(ordered), bool)
    marks[1:] = ordered[1:] != ordered[:-1]
    return marks
