"""Finds the one flipped bit by which two tensors differ, from their fingerprints or, for signs, their values.

A fingerprint is the sum of key(i)·mix(bits of element i) modulo 2^64 (`numerics.record.digest`), so the difference of
two is key(i) times the change of one element, if only one changed. The products of all keys with the changes that one
bit makes show which element it is; by chance one fits less than once in 10^8 tensors of a million elements.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from numerics.columns import Columns
from numerics.comparison.explanations.explanation import Explanation, Question, ranks_in_words
from numerics.comparison.joins.row_pairs import RowPairs
from numerics.formats import least_roundoff
from numerics.keys import splitmix
from numerics.schema import linear_index, parse_boxes, parse_shape
from numerics.thresholds.comparison import LEAST_FITTED, MAX_ELEMENTS
from numerics.thresholds.local import LONE_ELEMENT_ULP

_BYTES: Final = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2, "int32": 4, "int16": 2}
"""Bytes of an element, for formats with bits that the fingerprint mixes in a reversible way."""

_HALF: Final = 2
"""Bytes of a 16-bit element."""

_SHIFT: Final = 16
"""Bits by which the fingerprint mixes a 32-bit element's high half into its low one."""


@dataclass(frozen=True)
class Flip:
    """One flipped bit: its number, 0 the lowest, and the element's index in the global tensor, in words."""

    bit: int
    where: str

    @property
    def words(self) -> str:
        """The sentence that names it."""
        return f"one flipped bit: bit {self.bit} of element ({self.where}), all others are equal"


def one_flipped_bit(question: Question) -> Explanation | None:
    """Return the explanation that on each differing rank a single element differs, by one bit; a rule of `rules`."""
    pairs = question.pairs
    texts: list[str] = []
    rounding = False
    for row in question.rows:
        flip = _flip(pairs, row)
        if flip is None:
            return None
        small = _may_be_rounding(pairs, row)
        rounding = rounding or small
        texts.append(f"{flip.words}; a rounding that turned over, or a fault" if small else flip.words)
    same = len(set(texts)) == 1
    return Explanation(texts[0] if same else ranks_in_words(question, texts), rounding=rounding)


def _flip(pairs: RowPairs, row: int) -> Flip | None:
    """Return the flipped bit by which a row of the run differs from its match; None where more differs."""
    run, right, match = pairs.run, pairs.replay, pairs.match(row)
    if (
        match < 0
        or run.name("dtype", row) != right.name("dtype", match)
        or run["boxes"][row] != right["boxes"][match]
    ):
        return None
    found = flipped_bit(run, row, int(run.digest[row]), int(right.digest[match]))
    if found is not None or not pairs.has_values([row]) or int(run["numel"][row]) < LEAST_FITTED:
        return found
    return _flip_of_values(pairs, row, match)


def _flip_of_values(pairs: RowPairs, row: int, match: int) -> Flip | None:
    """Return the flipped bit that the values show: signs, and formats that fingerprints mix beyond recognition."""
    boxes, shape = parse_boxes(pairs.run.name("boxes", row)), parse_shape(pairs.run.name("global_shape", row))
    kept = pairs.array(pairs.run, row), pairs.array(pairs.replay, match)
    if kept[0] is None or kept[1] is None or kept[0].dtype != kept[1].dtype or len(boxes) != 1:
        return None
    a, b = (np.ascontiguousarray(side).reshape(-1) for side in kept)
    bits = [side.view(f"u{side.dtype.itemsize}") for side in (a, b)]
    at = np.flatnonzero(bits[0] != bits[1])
    turned = int(bits[0][at[0]] ^ bits[1][at[0]]) if len(at) == 1 else 0
    if turned.bit_count() != 1:
        return None
    widened = 8 * (a.dtype.itemsize - _BYTES.get(pairs.run.name("dtype", row), a.dtype.itemsize))
    return Flip(turned.bit_length() - 1 - widened, _place(linear_index(shape, boxes[0])[at[0]], shape))


def _may_be_rounding(pairs: RowPairs, row: int) -> bool:
    """Return whether one element differs by so little, beside the usual size, that a rounding may have turned over."""
    run, right, match = pairs.run, pairs.replay, pairs.match(row)
    with np.errstate(all="ignore"):
        moved = abs(float(run.reals["sum"][row]) - float(right.reals["sum"][match]))
        usual = np.sqrt(float(right.reals["sum_squares"][match]) / int(run["numel"][row]))
    return bool(moved <= LONE_ELEMENT_ULP * 2 * least_roundoff(run.name("dtype", row)) * usual)


def flipped_bit(run: Columns, row: int, other: int, right: int) -> Flip | None:
    """Return the bit and element that differ between a row and a fingerprint; None if more differ or it is unclear.

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
            return Flip(bit, _place(index[at], shape))
    return None


def _place(index: Any, shape: Sequence[int]) -> str:
    """Return an element's index by dimension, in words."""
    return ", ".join(str(int(n)) for n in (np.unravel_index(int(index), shape) if shape else ()))


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
    """Return the index of the key, and the bit, with the difference as their product; (-1, -1) without one."""
    with np.errstate(over="ignore"):
        for change, bit in changes.items():
            hits = np.flatnonzero(keys * np.uint64(change) == delta)
            if len(hits):
                return int(hits[0]), bit
    return -1, -1
