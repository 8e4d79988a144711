"""A capture as NumPy columns. Names are numbered once for all runs compared, so that runs join on integers."""

from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from numerics.keys import Ints, Keys
from numerics.schema import SKETCH
from numerics.store import Capture
from tracekit.arrays import null_as, to_numpy
from tracekit.axes import AXES
from tracekit.errors import InputError

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
    """Numbers the strings of all runs that are compared; -1 means null."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self.texts: list[str] = []

    def number(self, text: str) -> int:
        """Return the number of a text; a new text gets the next free number."""
        found = self._numbers.get(text)
        if found is None:
            found = self._numbers[text] = len(self.texts)
            self.texts.append(text)
        return found

    def text(self, number: int) -> str:
        """Return the text of a number, "" for null."""
        return "" if number < 0 else self.texts[number]


@dataclass(frozen=True)
class Columns:
    """Columns of a capture, each of shape (rows,).

    `ints` holds whole numbers and numbered names (int64), `reals` the statistics (float64), `sketch` the projections,
    (rows, SKETCH). Indexing with a column's name gives that column of `ints`.
    """

    capture: Capture
    names: Names
    ints: dict[str, Ints]
    reals: dict[str, np.ndarray]
    digest: Keys
    digest_nz: Keys
    lowbits: np.ndarray
    sketch: np.ndarray

    def __len__(self) -> int:
        return len(self.digest)

    def __getitem__(self, column: str) -> Ints:
        return self.ints[column]

    def name(self, column: str, row: int) -> str:
        """Return the text of a named column in a row, "" for null."""
        return self.names.text(int(self.ints[column][row]))

    def named(self, column: str, *texts: str) -> np.ndarray:
        """Return whether the column holds one of the texts, (rows,) bool."""
        return np.isin(self.ints[column], [self.names.number(text) for text in texts])

    def values_key(self, row: int) -> str | None:
        """Return the key under which the row's values are stored; None where none were kept."""
        found = self.capture.table.column("values")[row].as_py()
        return None if found is None else str(found)


def read_columns(capture: Capture, names: Names) -> Columns:
    """Return the columns of a capture's table. InputError where a required cell is empty."""
    table = capture.table
    ints = {name: _coded(table.column(name), names) for name in NAMED}
    for name in _WHOLE:
        ints[name] = _numbers(table.column(name), capture).astype(np.int64)
    sketch = table.column("sketch").combine_chunks()
    flat = sketch.flatten() if sketch.null_count == 0 else None
    if flat is None or len(flat) != len(table) * SKETCH or flat.null_count:
        raise InputError(f"{capture.folder}: damaged rows (sketch); capture the run again")
    return Columns(
        capture=capture,
        names=names,
        ints=ints,
        reals={name: _reals(table.column(name)) for name in _REAL},
        digest=_numbers(table.column("digest"), capture).astype(np.uint64),
        digest_nz=_numbers(table.column("digest_nz"), capture).astype(np.uint64),
        lowbits=_numbers(table.column("lowbits"), capture).astype(bool),
        sketch=to_numpy(flat).reshape(-1, SKETCH),
    )


def _numbers(column: pa.ChunkedArray, capture: Capture) -> np.ndarray:
    if column.null_count:
        raise InputError(f"{capture.folder}: damaged rows (an empty cell); capture the run again")
    return to_numpy(column)


def _reals(column: pa.ChunkedArray) -> np.ndarray:
    """Return floats, (rows,) float64; NaN for null."""
    return np.where(to_numpy(column.is_null()), np.nan, to_numpy(column)).astype(np.float64)


def _coded(column: pa.ChunkedArray, names: Names) -> Ints:
    coded = column.combine_chunks()
    if isinstance(coded, pa.ChunkedArray):  # no rows, or more than one chunk
        coded = pa.concat_arrays(coded.chunks)
    known = np.array([names.number(text) for text in coded.dictionary.to_pylist()] or [-1], np.int64)
    return np.asarray(np.append(known, -1)[null_as(coded.indices, len(known))])
