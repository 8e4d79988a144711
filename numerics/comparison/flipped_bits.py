"""Finds the one flipped bit that tells two tensors apart, from their fingerprints alone.

A fingerprint is the sum of key(i)·mix(bits of element i) modulo 2^64 (`numerics.record.digest`), so the difference of
two is key(i) times the change of one element, if only one changed. The products of all keys with the changes that one
bit makes show which element it is; by chance one fits less than once in 10^8 tensors of a million elements.
"""

from typing import Final

import numpy as np

from numerics.columns import Columns
from numerics.keys import splitmix
from numerics.record.digest import linear_index
from numerics.schema import parse_boxes, parse_shape
from numerics.thresholds.comparison import LEAST_FITTED, MAX_ELEMENTS

_BYTES: Final = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2, "int32": 4, "int16": 2}
"""Bytes of an element, of formats whose bits the fingerprint mixes in a way that can be undone here."""

_HALF: Final = 2
"""Bytes of a 16-bit element."""

_SHIFT: Final = 16
"""Bits by which the fingerprint mixes a 32-bit element's high half into its low one."""


def flipped_bit(run: Columns, row: int, other: int, right: int) -> str | None:
    """Return which bit of which element differs between a row and a fingerprint; None where more, or nobody can tell.

    `other` and `right` are the two fingerprints of the row's part of the tensor.
    """
    width = _BYTES.get(run.name("dtype", row), 8)
    count = int(run["numel"][row])
    if width > _HALF * 2 or not LEAST_FITTED <= count <= MAX_ELEMENTS:
        return None
    shape, boxes = parse_shape(run.name("global_shape", row)), parse_boxes(run.name("boxes", row))
    changes = _changes(width)
    delta = np.uint64((other - right) & ((1 << 64) - 1))
    for box in boxes:
        index = linear_index(shape, box)
        at, bit = _search(splitmix(index), delta, changes)
        if at >= 0:
            place = np.unravel_index(int(index[at]), shape) if shape else ()
            where = ", ".join(str(int(n)) for n in place)
            return f"one flipped bit: bit {bit} of element ({where}), all others are equal"
    return None


def _changes(width: int) -> dict[int, int]:
    """Return the bit by the change of a mixed element that its flip makes, modulo 2^64.

    The sign of a 32-bit element is not among them: its change depends on all other bits.
    """
    found: dict[int, int] = {}
    for bit in range(8 * width if width == _HALF else 8 * width - 1):
        low = 1 << bit
        mixed = [low]
        if width > _HALF and bit >= _SHIFT:
            mixed = [low + (low >> _SHIFT), low - (low >> _SHIFT)]
        for change in mixed:
            found[change] = bit
            found[-change & ((1 << 64) - 1)] = bit
    return found


def _search(keys: np.ndarray, delta: np.uint64, changes: dict[int, int]) -> tuple[int, int]:
    """Return the index of the key, and the bit, whose product is the difference; (-1, -1) where there is none."""
    with np.errstate(over="ignore"):
        for change, bit in changes.items():
            hits = np.flatnonzero(keys * np.uint64(change) == delta)
            if len(hits):
                return int(hits[0]), bit
    return -1, -1
