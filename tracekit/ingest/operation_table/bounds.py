"""The declared range of every number of an operation table; a row that breaks one is dropped once, here.

Behind this door no number of the file makes an array, a list or a loop too long.
"""

from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tracekit.arrays import ZERO, to_numpy
from tracekit.thresholds.ingest import (
    INT32_END,
    LONGEST_NS,
    MAX_APART_SECONDS,
    MAX_COUNT,
    MAX_PLACES,
    MAX_RANKS,
    MAX_SECONDS,
    MAX_SPREAD,
    MAX_STEP,
    USUAL_SECONDS,
)
from tracekit.units import I64, NS_PER_S, Mask


class Bounds(NamedTuple):
    """Half-open range of a column, and whether a row may lack it."""

    low: float
    high: float
    optional: bool = False


WHOLE: Final = {
    "dp_rank": Bounds(0, MAX_PLACES),
    "stage": Bounds(0, MAX_PLACES),
    "step": Bounds(0, MAX_STEP),
    "rank": Bounds(0, MAX_RANKS),
    "mb_id": Bounds(-INT32_END, INT32_END, optional=True),
    "mc": Bounds(-INT32_END, MAX_PLACES, optional=True),
    "seq_id": Bounds(-MAX_COUNT, MAX_COUNT, optional=True),
}
SECONDS: Final = {
    "start_ts": Bounds(-MAX_SECONDS, MAX_SECONDS),
    "duration": Bounds(-LONGEST_NS / NS_PER_S, LONGEST_NS / NS_PER_S),
}


def usable(table: pa.Table) -> Mask:
    """Return which rows, shape (rows,), keep every range and name an operation.

    Raises ValueError or an Arrow error where a column holds no numbers.
    """
    ok = to_numpy(table.column("optype").is_valid()).astype(bool)
    for name, bounds in WHOLE.items():
        if name in table.schema.names:
            ok &= _inside(*whole(table.column(name)), bounds)
    for name, bounds in SECONDS.items():
        values = seconds(table.column(name))
        ok &= _inside(np.nan_to_num(values, nan=np.inf), np.ones(len(ok), bool), bounds)
    starts = seconds(table.column("start_ts"))
    if ok.any():
        ok &= np.abs(np.where(ok, starts - np.median(starts[ok]), 0.0)) < MAX_APART_SECONDS
    for name in ("dp_rank", "stage"):
        ok &= _near(whole(table.column(name))[0], ok)
    return ok


def _inside(values: "npt.NDArray[np.float64] | I64", known: Mask, bounds: Bounds) -> Mask:
    inside: Mask = (values >= bounds.low) & (values < bounds.high)
    return (inside & known) | (~known & bounds.optional)


def _near(values: I64, ok: Mask) -> Mask:
    """Whether each value is within bounds for the number of recorded ones, so that no wild number inflates the job."""
    near: Mask = values < MAX_SPREAD * len(np.unique(values[ok]))
    return near


def check_units(table: pa.Table) -> None:
    """Raise ValueError where times cannot be seconds, or have too few digits for the end of an operation."""
    spent = seconds(table.column("duration"))
    spent = np.where(np.isfinite(spent), spent, 0.0)
    lasting = spent[spent > 0]
    if not len(lasting):
        return
    usual = float(np.median(lasting))
    if pa.types.is_integer(table.schema.field("duration").type) or usual > USUAL_SECONDS:
        raise ValueError(
            f"the median duration is {usual:.6g} s, so these are not seconds: divide start_ts and duration by 1e3 "
            "if they are milliseconds, 1e6 if microseconds, 1e9 if nanoseconds"
        )
    kind = table.schema.field("start_ts").type
    starts = seconds(table.column("start_ts"))
    most = float(np.median(np.abs(starts[near]))) if (near := np.abs(starts) < MAX_SECONDS).any() else 0.0
    digits = float(np.spacing(np.array(np.nan_to_num(most), np.float32)))
    if pa.types.is_float32(kind) and digits > usual:
        raise ValueError(
            f"start_ts is float32, which near {most:.6g} s has steps of {digits:.3g} s: write it as float64, or count "
            "it from the start of each step"
        )


def whole(column: pa.ChunkedArray) -> tuple[I64, Mask]:
    """Return the integers of a column and which rows have one, both of shape (rows,); 0 for missing ones."""
    kind = column.type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        number = pc.match_substring_regex(column, r"^-?[0-9]{1,18}$")
        column = pc.if_else(number, column, pa.nulls(1, kind)[0]).cast(pa.int64())
    elif pa.types.is_uint64(kind):
        column = pc.if_else(pc.less(column, pa.scalar(MAX_COUNT, kind)), column, pa.nulls(1, kind)[0])
        column = column.cast(pa.int64())
    elif pa.types.is_floating(kind):
        values = seconds(column)
        known = np.isfinite(values) & (np.abs(values) < MAX_COUNT) & (values == np.rint(values))
        return np.where(known, np.nan_to_num(values), 0).astype(np.int64), known
    elif not pa.types.is_integer(kind):
        raise ValueError(f"a column of {kind} instead of whole numbers")
    known = to_numpy(column.is_valid()).astype(bool)
    return np.array(to_numpy(column.cast(pa.int64()).fill_null(ZERO)), np.int64), known


def seconds(column: pa.ChunkedArray) -> npt.NDArray[np.float64]:
    """Return the numbers of a column, shape (rows,); NaN where there is none."""
    if not (pa.types.is_floating(column.type) or pa.types.is_integer(column.type)):
        raise ValueError(f"a column of {column.type} instead of times")
    values = column.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
    return np.asarray(values, np.float64)
