"""Where two arrays differ, and whether one is the other in another order: swaps, permutations, shifts, boundaries.

Needs the values. Slices along a dimension are compared by their bytes, so that only exact moves are claimed.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Final

import numpy as np

Array = np.ndarray[Any, Any]
_MOST_SLICES: Final = 1 << 17


def moved(a: Array, b: Array) -> str | None:
    """Say how the slices of `a` are those of `b` in another order, along the first dimension that explains all."""
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
    count = a.shape[dim]
    if not 2 <= count <= _MOST_SLICES:
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
    """Constant shift that holds for all but the slices at an end; 0 where there is none."""
    for by in (1, -1):
        inside = [n for n in range(count) if 0 <= n + by < count]
        if len(inside) >= 2 and all(comes_from[n] == n + by for n in inside):
            return by
    return 0


def _blocks(comes_from: Sequence[int], dim: int) -> str | None:
    """Permutations of equal blocks, as chunks in the wrong order leave them."""
    count = len(comes_from)
    for blocks in (2, 3, 4, 6, 8):
        size = count // blocks
        if size < 2 or count % blocks:
            continue
        starts = [comes_from[n * size] for n in range(blocks)]
        whole = all(comes_from[n * size + i] == starts[n] + i for n in range(blocks) for i in range(size))
        if whole and all(start % size == 0 for start in starts):
            order = ", ".join(str(start // size) for start in starts)
            return f"its {blocks} blocks along dimension {dim} stand in the order {order}"
    return None


def few_places(a: Array, b: Array) -> tuple[int, list[int]] | None:
    """Return a dimension along which the differences stand on few indices, and these; None where they are all over."""
    if a.shape != b.shape or not a.size:
        return None
    wrong = a != b
    for dim in range(a.ndim):
        at = np.flatnonzero(wrong.any(axis=tuple(d for d in range(a.ndim) if d != dim)))
        if len(at) and a.shape[dim] >= 3 and len(at) * 3 <= a.shape[dim]:
            return dim, [int(i) for i in at]
    return None


def places_in_words(at: Sequence[int], count: int, dim: int) -> str:
    """Few of `count` indices along a dimension, in words."""
    if len(at) == 1:
        last = " (the last)" if at[0] == count - 1 else " (the first)" if at[0] == 0 else ""
        return f"only at index {at[0]}{last} of {count} along dimension {dim}"
    gaps = {b - a for a, b in pairwise(at)}
    if gaps == {1}:
        return f"only at indices {at[0]} to {at[-1]} of {count} along dimension {dim}"
    if len(gaps) == 1:
        return f"only at every {gaps.pop()}th index along dimension {dim}, from {at[0]}"
    return f"only at {len(at)} of {count} indices along dimension {dim}, from {at[0]} to {at[-1]}"
