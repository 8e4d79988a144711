"""The range of every whole number in a capture's rows, checked once, where a file is read.

Behind this door nothing allocates or loops by a number that a file claims: a row out of range refuses its file.
"""

from collections.abc import Mapping
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from numerics.schema import parse_boxes, parse_shape
from numerics.thresholds.reading import MAX_EXTENT, MAX_ORDINAL, MAX_RANKS
from tracekit.axes import AXES

RANGES: Final[Mapping[str, tuple[int, int]]] = {
    "order": (0, MAX_ORDINAL),
    "step": (-1, MAX_ORDINAL),
    "micro_batch": (-1, MAX_ORDINAL),
    "replica": (0, MAX_RANKS),
    "rank": (0, MAX_RANKS),
    **dict.fromkeys(AXES, (0, MAX_RANKS)),
    "numel": (0, MAX_EXTENT),
    "non_finite": (0, MAX_EXTENT),
}
"""Least value of a column, and the first that is too great."""


def fault_in(table: pa.Table) -> str | None:
    """Return which column of a rank's rows holds a number, a shape or a box out of range; None where none does."""
    for name, (low, end) in RANGES.items():
        column: Any = table.column(name)
        found = pc.min_max(column)
        least, most = found["min"].as_py(), found["max"].as_py()
        if column.null_count or (least is not None and not low <= least <= most < end):
            return f"column {name} holds a value that is not text"
    try:
        for text in _texts(table, "global_shape"):
            _bounded(parse_shape(text))
        for text in _texts(table, "boxes"):
            for box in parse_boxes(text):
                _bounded([offset + size for offset, size in zip(box.offsets, box.sizes, strict=True)])
    except ValueError as error:
        return str(error)
    return None


def _texts(table: pa.Table, name: str) -> list[str]:
    values: Any = table.column(name)
    return [text for text in pc.unique(values).to_pylist() if text is not None]


def _bounded(extents: Any) -> None:
    """Raise ValueError where a tensor of these extents has more elements than any."""
    count = 1
    for extent in extents:
        count *= max(extent, 1)
        if count >= MAX_EXTENT:
            raise ValueError("a shape of more elements than any tensor has")
