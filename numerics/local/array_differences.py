"""Finds where two arrays differ, and whether one is the other rearranged: swaps, permutations, shifts, boundaries.

Slices along a dimension are compared by their bytes, so that only exact moves are claimed.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from numerics.thresholds.comparison import BLOCK_COUNTS, FEW_PLACES, LEAST_SHIFTED, MAX_SLICES

Array = np.ndarray[Any, Any]


def moved(a: Array, b: Array) -> str | None:
    """Return how the slices of `a` are those of `b` rearranged, along the first dimension that explains all.

    None where they are not.
    """
    if a.shape != b.shape or not a.size:
        return None
    for dim in range(a.ndim):
        text = _along(a, b, dim)
        if text is not None:
            return text
    if a.ndim > 1 and np.array_equal(np.sort(a, axis=None), np.sort(b, axis=None)):
        return "the same values in another order"
    return None


def _slices(array: Array, dim: int) -> list[bytes]:
    return [part.tobytes() for part in np.ascontiguousarray(np.moveaxis(array, dim, 0))]


def _along(a: Array, b: Array, dim: int) -> str | None:
    """Say how the slices along one dimension are rearranged; None where some are new."""
    count = a.shape[dim]
    if not 2 <= count <= MAX_SLICES:
        return None
    mine, right = _slices(a, dim), _slices(b, dim)
    if mine == right:
        return None
    place: dict[bytes, int] = {}
    for number, part in enumerate(right):
        place.setdefault(part, number)
    comes_from = [n if part == right[n] else place.get(part, -1) for n, part in enumerate(mine)]
    wrong = [n for n, source in enumerate(comes_from) if source != n]
    shifted = _shift(comes_from, count)
    if shifted:
        return f"shifted by {shifted} along dimension {dim}"
    if any(source < 0 for source in comes_from):
        return None
    if len(wrong) == 2 and sorted(comes_from[n] for n in wrong) == wrong:
        return f"rows {wrong[0]} and {wrong[1]} along dimension {dim} are swapped"
    if sorted(comes_from) == list(range(count)):
        return _blocks(comes_from, dim) or f"the rows along dimension {dim} are permuted"
    return f"{len(wrong)} rows along dimension {dim} hold copies of other rows"


def _shift(comes_from: Sequence[int], count: int) -> int:
    """Return the constant shift that holds for all slices but those at one end; 0 where there is none."""
    for by in (1, -1):
        inside = [n for n in range(count) if 0 <= n + by < count]
        if len(inside) >= LEAST_SHIFTED and all(comes_from[n] == n + by for n in inside):
            return by
    return 0


def _blocks(comes_from: Sequence[int], dim: int) -> str | None:
    """Return the order of equal blocks in words, as chunks in the wrong order leave them; None without such blocks."""
    count = len(comes_from)
    for blocks in BLOCK_COUNTS:
        size = count // blocks
        if size < 2 or count % blocks:
            continue
        starts = [comes_from[n * size] for n in range(blocks)]
        whole = all(comes_from[n * size + i] == starts[n] + i for n in range(blocks) for i in range(size))
        if whole and all(start % size == 0 for start in starts):
            order = ", ".join(str(start // size) for start in starts)
            return f"its {blocks} blocks along dimension {dim} are in the order {order}"
    return None


def few_places(a: Array, b: Array) -> tuple[int, list[int]] | None:
    """Return a dimension along which few indices hold all differences, and these indices; None without one."""
    if a.shape != b.shape or not a.size:
        return None
    wrong = a != b
    for dim in range(a.ndim):
        at = np.flatnonzero(wrong.any(axis=tuple(d for d in range(a.ndim) if d != dim)))
        if len(at) and a.shape[dim] >= FEW_PLACES and len(at) * FEW_PLACES <= a.shape[dim]:
            return dim, [int(i) for i in at]
    return None


def places_in_words(at: Sequence[int], count: int, dim: int) -> str:
    """Return few of `count` indices along a dimension in words."""
    if len(at) == 1:
        last = " (the last)" if at[0] == count - 1 else " (the first)" if at[0] == 0 else ""
        return f"only at index {at[0]}{last} of {count} along dimension {dim}"
    gaps = {b - a for a, b in pairwise(at)}
    if gaps == {1}:
        return f"only at indices {at[0]} to {at[-1]} of {count} along dimension {dim}"
    if len(gaps) == 1:
        return f"only at every {gaps.pop()}th index along dimension {dim}, from {at[0]}"
    return f"only at {len(at)} of {count} indices along dimension {dim}, from {at[0]} to {at[-1]}"
