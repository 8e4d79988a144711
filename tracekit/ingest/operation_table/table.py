"""The rows of an operation table as numpy columns: times in ns as recorded, ranks, and how often each type ran."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tracekit.arrays import ZERO, from_ints, from_numpy, to_numpy
from tracekit.findings import Quality
from tracekit.ingest.operation_table.kinds import COMPUTATIONS, OperationKind, kind_of
from tracekit.thresholds.ingest import (
    INT32_END,
    LONGEST_NS,
    MAX_APART_SECONDS,
    MAX_COUNT,
    MAX_ORDINAL,
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


REQUIRED = ("dp_rank", "stage", "step", "optype", "start_ts", "duration")


@dataclass(frozen=True)
class OperationTable:
    """The usable rows of an operation table; every array has shape (rows,).

    kinds: by code. kind: code of each row. start, dur: ns. micro_batch, chunk (`mc`): -1 where none.
    ordinal: the number of the operation among those of its type, step and rank, from 0.
    rank_at: rank by (dp_rank, stage).
    """

    kinds: tuple[OperationKind, ...]
    kind: I64
    dp: I64
    stage: I64
    step: I64
    rank: I64
    start: I64
    dur: I64
    micro_batch: I64
    chunk: I64
    ordinal: I64
    rank_at: Mapping[tuple[int, int], int]

    @cached_property
    def dp_size(self) -> int:
        """Data-parallel size."""
        return int(self.dp.max()) + 1

    @cached_property
    def pp_size(self) -> int:
        """Pipeline-parallel size; one stage more than recorded if the last recorded one sends to an unrecorded one."""
        last = int(self.stage.max())
        onward = [i for i, k in enumerate(self.kinds) if k.collective == "send" and k.toward > 0]
        taken = [i for i, k in enumerate(self.kinds) if k.collective == "recv" and k.toward > 0]
        sends_on = bool((np.isin(self.kind, onward) & (self.stage == last)).any())
        closes = bool((np.isin(self.kind, taken) & (self.stage == 0)).any())
        return last + 2 if sends_on and not closes else last + 1

    @property
    def ranks(self) -> list[int]:
        """Ranks that have rows, sorted."""
        return sorted(self.rank_at.values())


def columns_of(table: pa.Table, label: str) -> tuple[OperationTable, list[Quality]]:
    """Return the usable rows of a table that has the REQUIRED columns, and what was dropped or repaired.

    label: the file, for the quality rows. Raises ValueError or an Arrow error where values are unusable: no row is
    whole, or ranks and places of the mesh contradict each other.
    """
    check_units(table)
    once, twice = _once(table, label)
    rows, quality = _usable(once, label)
    quality += twice
    dp, stage, step = (_ints(rows, name) for name in ("dp_rank", "stage", "step"))
    names, kind = np.unique(
        np.asarray(rows.column("optype").cast(pa.string()).to_pylist(), dtype=str), return_inverse=True
    )
    start, dur = _nanoseconds(rows, "start_ts"), _nanoseconds(rows, "duration")
    micro_batch = _ints_or(rows, "mb_id", np.full(len(dp), -1))
    chunk = _ints_or(rows, "mc", np.full(len(dp), -1))
    rank = _ints_or(rows, "rank", stage * (int(dp.max()) + 1) + dp)
    if (int(dp.max()) + 1) * (int(stage.max()) + 1) > MAX_RANKS or int(rank.max()) >= MAX_RANKS:
        raise ValueError(f"a job of more than {MAX_RANKS} ranks")
    rank_at = _places(dp, stage, rank)
    if rank.min() == 0 < dp.min() + stage.min():
        raise ValueError(
            "rank 0 is not at dp_rank 0, stage 0: both must count from 0, so subtract the first value"
        )
    negative = int((dur < 0).sum())
    if negative:
        quality.append(Quality("negative_duration", label, negative, "taken as 0"))
        dur = np.maximum(dur, 0)
    seq = _ints(rows, "seq_id") if "seq_id" in rows.schema.names else None
    ordinal = _ordinals(rank, step, kind, start, seq)
    kinds = tuple(kind_of(str(name)) for name in names)
    quality += _unknown(kinds, kind, label)
    return OperationTable(
        kinds, kind, dp, stage, step, rank, start, dur, micro_batch, chunk, ordinal, rank_at
    ), quality


def _once(table: pa.Table, label: str) -> tuple[pa.Table, list[Quality]]:
    """Return the table without exact duplicate rows, and the number dropped as a quality row."""
    names = [n for n in (*REQUIRED, "rank", "seq_id") if n in table.schema.names]
    if "seq_id" not in names:
        return table, []
    keys = table.select(names).append_column("row", from_numpy(np.arange(table.num_rows)))
    first = keys.group_by(names, use_threads=False).aggregate([("row", "min")]).column("row_min")
    twice = table.num_rows - len(first)
    if not twice:
        return table, []
    row = Quality("duplicate_rows", label, twice, "duplicate rows; dropped")
    return table.take(first.sort()), [row]


def _unknown(kinds: Sequence[OperationKind], kind: I64, label: str) -> list[Quality]:
    """A row for each operation type that is neither communication by its name nor a known computation."""
    counts = np.bincount(kind, minlength=len(kinds)).tolist()
    return [
        Quality("unknown_operation", label, n, f"{k.name}: taken as a computation that follows the others")
        for k, n in zip(kinds, counts, strict=True)
        if k.collective is None and k.name not in COMPUTATIONS
    ]


def _usable(table: pa.Table, label: str) -> tuple[pa.Table, list[Quality]]:
    """Return the rows with numbers within bounds, and how many are not; ValueError if no row is usable."""
    ok = usable(table)
    if not ok.any():
        raise ValueError("no usable row")
    dropped = int((~ok).sum())
    quality = [Quality("malformed_event", label, dropped, "row dropped")] if dropped else []
    return table.filter(from_numpy(ok)), quality


def _ints(table: pa.Table, name: str) -> I64:
    values, known = whole(table.column(name))
    return np.where(known, values, -1)


def _ints_or(table: pa.Table, name: str, absent: I64) -> I64:
    return _ints(table, name) if name in table.schema.names else absent


def _nanoseconds(table: pa.Table, name: str) -> I64:
    return np.asarray(np.rint(seconds(table.column(name)) * NS_PER_S), np.int64)


def _places(dp: I64, stage: I64, rank: I64) -> dict[tuple[int, int], int]:
    """Rank by (dp_rank, stage); ValueError where that is not one to one."""
    places: dict[tuple[int, int], int] = {}
    for d, s, r in sorted({*zip(dp.tolist(), stage.tolist(), rank.tolist(), strict=True)}):
        if places.setdefault((d, s), r) != r or r < 0:
            raise ValueError(f"dp_rank {d}, stage {s} has more than one rank")
    if len(set(places.values())) < len(places):
        raise ValueError("one rank has two places in the mesh")
    return places


def _ordinals(rank: I64, step: I64, kind: I64, start: I64, seq: I64 | None) -> I64:
    """Number each operation among those of its type, step and rank, by `seq_id` or by start."""
    if seq is not None and seq.min() >= 0 and seq.max() < MAX_ORDINAL:
        instances = np.stack([rank, step, kind, seq], axis=1)
        if len(np.unique(instances, axis=0)) == len(seq):
            return seq  # a lost row must not shift those behind it
    key: Any = start if seq is None else seq
    order = np.lexsort((start, key, kind, step, rank))
    same = np.ones(len(order), bool)
    for column in (kind, step, rank):
        same[1:] &= column[order][1:] == column[order][:-1]
    same[0] = False
    begins = np.maximum.accumulate(np.where(same, 0, np.arange(len(order))))
    ordinal = np.empty(len(order), np.int64)
    ordinal[order] = np.arange(len(order)) - begins
    return ordinal


# The declared range of every number of an operation table; a row that breaks one is dropped once, here.
#
# Behind this door no number of the file makes an array, a list or a loop too long.


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
        most = from_ints([MAX_COUNT], np.uint64)[0]
        column = pc.if_else(pc.less(column, most), column, pa.nulls(1, kind)[0]).cast(pa.int64())
    elif pa.types.is_floating(kind):
        values = seconds(column)
        known = np.isfinite(values) & (np.abs(values) < MAX_COUNT) & (values == np.rint(values))
        return np.where(known, np.nan_to_num(values), 0).astype(np.int64), known
    elif not pa.types.is_integer(kind):
        raise ValueError(f"a column of {kind} instead of whole numbers")
    known = to_numpy(column.is_valid()).astype(bool)
    return np.array(to_numpy(column.cast(pa.int64()).fill_null(ZERO)), np.int64), known


def seconds(column: pa.ChunkedArray) -> npt.NDArray[np.float64]:
    """Return the numbers of a column, shape (rows,); NaN for a row without a number."""
    if not (pa.types.is_floating(column.type) or pa.types.is_integer(column.type)):
        raise ValueError(f"a column of {column.type} instead of times")
    values = to_numpy(column.cast(pa.float64(), safe=False))
    return np.where(to_numpy(column.is_null()), np.nan, values)
