"""A capture as NumPy columns with names interned across runs, so that runs join on integers.

Rows of several runs meet through 64-bit keys: hashes of the columns that make up an identity. A collision of two
keys among a million rows has a chance of 1 in 10^7, and would show as a shape that does not fit, not as equality.
"""

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa

from numerics.record.digest import splitmix
from numerics.schema import AXES, SKETCH
from numerics.store import Capture
from tracekit.errors import InputError

Ints = np.ndarray[Any, np.dtype[np.int64]]
Keys = np.ndarray[Any, np.dtype[np.uint64]]

NAMED: Final = (
    "phase",
    "module",
    "tensor",
    "kind",
    "axis",
    "op",
    "label",
    "group",
    "dtype",
    "global_shape",
    "boxes",
    "partial",
)
_WHOLE: Final = ("order", "step", "micro_batch", "replica", "rank", *AXES, "numel", "non_finite")
_REAL: Final = ("sum", "sum_squares", "abs_max", "min", "max")


class Names:
    """Strings by number, shared by the runs that are compared; -1 is null."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self.texts: list[str] = []

    def number(self, text: str) -> int:
        """Return the text's number, given on first sight."""
        found = self._numbers.get(text)
        if found is None:
            found = self._numbers[text] = len(self.texts)
            self.texts.append(text)
        return found

    def text(self, number: int) -> str:
        """Return the text of a number; null is empty."""
        return "" if number < 0 else self.texts[number]


@dataclass(frozen=True)
class Frame:
    """Columns of a capture: `ints` hold numbers and interned names, (rows,) int64; `reals` statistics, float64."""

    capture: Capture
    names: Names
    ints: dict[str, Ints]
    reals: dict[str, np.ndarray]
    digest: Keys
    digest_nz: Keys
    lowbits: np.ndarray
    sketch: np.ndarray  # (rows, SKETCH)

    def __len__(self) -> int:
        return len(self.digest)

    def __getitem__(self, column: str) -> Ints:
        return self.ints[column]

    def name(self, column: str, row: int) -> str:
        """Text of a named column in a row; null is empty."""
        return self.names.text(int(self.ints[column][row]))

    def named(self, column: str, *texts: str) -> np.ndarray:
        """Whether the column holds one of the texts, (rows,) bool."""
        return np.isin(self.ints[column], [self.names.number(text) for text in texts])

    def coords(self, row: int) -> dict[str, int]:
        """Coordinates of the row's rank."""
        return {axis: int(self.ints[axis][row]) for axis in AXES}

    def values_key(self, row: int) -> str | None:
        """Key of the row's values, None where none were kept."""
        found = self.capture.table.column("values")[row].as_py()
        return None if found is None else str(found)


def frame(capture: Capture, names: Names) -> Frame:
    """Turn a capture's table into columns; InputError where a needed cell is empty."""
    table = capture.table
    ints = {name: _coded(table.column(name), names) for name in NAMED}
    for name in _WHOLE:
        ints[name] = _numbers(table.column(name), capture).astype(np.int64)
    sketch = table.column("sketch").combine_chunks()
    flat = sketch.flatten() if sketch.null_count == 0 else None
    if flat is None or len(flat) != len(table) * SKETCH or flat.null_count:
        raise InputError(f"{capture.folder}: damaged rows (sketch); capture the run again")
    return Frame(
        capture=capture,
        names=names,
        ints=ints,
        reals={name: table.column(name).to_numpy().astype(np.float64) for name in _REAL},
        digest=_numbers(table.column("digest"), capture).astype(np.uint64),
        digest_nz=_numbers(table.column("digest_nz"), capture).astype(np.uint64),
        lowbits=_numbers(table.column("lowbits"), capture).astype(bool),
        sketch=flat.to_numpy().reshape(-1, SKETCH),
    )


def _numbers(column: pa.ChunkedArray, capture: Capture) -> np.ndarray:
    if column.null_count:
        raise InputError(f"{capture.folder}: damaged rows (an empty cell); capture the run again")
    return np.asarray(column.to_numpy())


def _coded(column: pa.ChunkedArray, names: Names) -> Ints:
    coded = column.combine_chunks()
    if isinstance(coded, pa.ChunkedArray):  # no rows, or more than one chunk
        coded = pa.concat_arrays(coded.chunks)
    known = np.array([names.number(text) for text in coded.dictionary.to_pylist()] or [-1], np.int64)
    indices = coded.indices
    if not indices.null_count:
        return np.asarray(known[indices.to_numpy(zero_copy_only=False)])
    filled = indices.fill_null(0).to_numpy(zero_copy_only=False)
    return np.where(indices.is_null().to_numpy(zero_copy_only=False), -1, known[filled])


def keys_of(*columns: np.ndarray) -> Keys:
    """Hash columns of equal length into one 64-bit key a row."""
    key = np.zeros(len(columns[0]), np.uint64)
    for column in columns:
        key = splitmix(key ^ splitmix(column.astype(np.int64).view(np.uint64)))
    return key


def occurrence(keys: Keys, order: Ints) -> Ints:
    """How often a key has come before within the same `order`ed sequence: 0 for its first row, then 1, …"""
    by = np.lexsort((order, keys))
    ordered = keys[by]
    starts = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]]) if len(keys) else np.zeros(0, np.int64)
    lengths = np.diff(np.r_[starts, len(keys)])
    counts = np.arange(len(keys)) - np.repeat(starts, lengths)
    found = np.empty(len(keys), np.int64)
    found[by] = counts
    return found


def join(left: Keys, right: Keys) -> Ints:
    """Row of `right` (unique keys) for each row of `left`, -1 where there is none."""
    if not len(right):
        return np.full(len(left), -1, np.int64)
    by = np.argsort(right, kind="stable")
    at = np.searchsorted(right[by], left)
    at[at == len(right)] = 0
    return np.where(right[by][at] == left, by[at], -1)
