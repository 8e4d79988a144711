"""The declared range of every integer that a trace may hold; a value outside it is dropped once, here.

Behind this door no number of a file can make a table, a list or a loop too long: ranks, group sizes and steps are
bounded by the largest job there may be, everything else by its type.
"""

from collections import Counter
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tracekit.arrays import NO_INT64, ZERO, from_numpy, to_numpy
from tracekit.thresholds.ingest import INT32_END, MAX_COUNT, MAX_RANKS


class Bounds(NamedTuple):
    """Half-open range of a column, and whether the recorder writes a negative value for none."""

    low: int
    high: int
    negative_is_none: bool = False


RANGES: Final = {
    "device": Bounds(0, INT32_END, negative_is_none=True),
    "stream": Bounds(0, MAX_COUNT, negative_is_none=True),
    "correlation": Bounds(0, MAX_COUNT, negative_is_none=True),
    "external_id": Bounds(0, MAX_COUNT, negative_is_none=True),
    "group_size": Bounds(0, MAX_RANKS + 1, negative_is_none=True),
    "rank_start": Bounds(0, MAX_RANKS, negative_is_none=True),
    "rank_stride": Bounds(0, MAX_RANKS, negative_is_none=True),
    "src_rank": Bounds(0, MAX_RANKS, negative_is_none=True),
    "dst_rank": Bounds(0, MAX_RANKS, negative_is_none=True),
    "group_rank": Bounds(0, MAX_RANKS, negative_is_none=True),
    "input_peer": Bounds(0, MAX_RANKS, negative_is_none=True),
    "pg_id": Bounds(0, MAX_COUNT, negative_is_none=True),
    "seq": Bounds(0, MAX_COUNT, negative_is_none=True),
    "grid": Bounds(0, INT32_END, negative_is_none=True),
    "wait_stream": Bounds(0, MAX_COUNT, negative_is_none=True),
    "wait_record": Bounds(0, MAX_COUNT, negative_is_none=True),
    "in_nelems": Bounds(0, MAX_COUNT, negative_is_none=True),
    "out_nelems": Bounds(0, MAX_COUNT, negative_is_none=True),
}
"""By column of event_fields.SCANNED. `pid` and `tid` only separate threads, so any integer is valid."""

SMALLEST_NONE: Final = -(1 << 31)
"""A recorder that means none writes −1, or the smallest 32-bit integer; anything below is damage."""


def within_bounds(batch: pa.RecordBatch, issues: Counter[str]) -> pa.RecordBatch:
    """Return a SCANNED batch in which every integer out of its range is null; damaged ones are counted."""
    columns = list(batch.columns)
    for place, name in enumerate(batch.schema.names):
        if name in RANGES and columns[place].null_count < len(batch):
            columns[place], lost = _bounded(columns[place], RANGES[name])
            issues["value_out_of_range"] += lost
    return pa.RecordBatch.from_arrays(columns, schema=batch.schema)


def _bounded(column: pa.Array, bounds: Bounds) -> tuple[pa.Array, int]:
    """Return the column with null for values out of bounds, and the number of damaged ones among them."""
    values = to_numpy(column.fill_null(ZERO))
    outside = (values < bounds.low) | (values >= bounds.high)
    if not outside.any():
        return column, 0
    none = outside & (values < 0) & (values >= SMALLEST_NONE) if bounds.negative_is_none else False
    return pc.if_else(from_numpy(outside), NO_INT64, column), int(np.count_nonzero(outside & ~none))
