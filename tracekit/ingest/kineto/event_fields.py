"""The values of an event that are read, the columns they become, their ranges, and what pyarrow's reader is asked for.

A value outside its declared range is dropped once, here. Behind this door no number of a file can make a table, a list
or a loop too long: ranks, group sizes and steps are bounded by the largest job there may be, everything else by its
type.
"""

import re
from collections import Counter
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tracekit.arrays import NO_INT64, ZERO, from_numpy, to_numpy
from tracekit.ingest.kineto.gloo_types import TYPES_KEY
from tracekit.ingest.kineto.product_flops import SHAPES_KEY
from tracekit.schema import DICT
from tracekit.thresholds.ingest import INT32_END, MAX_COUNT, MAX_RANKS

KEPT_PHASES = ("X", "B", "E")


class Field(NamedTuple):
    """One value of an event: the keys it is found under, the column it becomes and that column's type."""

    keys: tuple[str, ...]
    column: str
    type: pa.DataType


TOP = (
    Field(("ph",), "ph", DICT),
    Field(("cat",), "cat", DICT),
    Field(("name",), "name", DICT),
    Field(("pid",), "pid", pa.int64()),
    Field(("tid",), "tid", pa.int64()),
)
PLAIN = (
    Field(("device",), "device", pa.int64()),
    Field(("original_stream", "stream"), "stream", pa.int64()),  # `stream` is a display lane if both exist
    Field(("correlation",), "correlation", pa.int64()),
    Field(("External id", "external id"), "external_id", pa.int64()),
)
COMMS = (
    Field(("Collective name",), "collective", DICT),
    Field(("dtype",), "dtype", DICT),
    Field(("In msg nelems", "In msg size"), "in_nelems", pa.int64()),  # torch 2.2 writes sizes
    Field(("Out msg nelems", "Out msg size"), "out_nelems", pa.int64()),
    Field(("In split size",), "in_split", DICT),
    Field(("Out split size",), "out_split", DICT),
    Field(("Group size",), "group_size", pa.int64()),
    Field(("Process Group Name",), "pg_name", DICT),
    Field(("Process Group ID",), "pg_id", pa.int64()),  # 2024-04 and before, in place of the name
    Field(("Process Group Description",), "pg_desc", DICT),
    Field(("Process Group Ranks",), "pg_ranks", DICT),
    Field(("Global rank start",), "rank_start", pa.int64()),
    Field(("Global rank stride",), "rank_stride", pa.int64()),
    Field(("Src Rank",), "src_rank", pa.int64()),  # global ranks: PyTorch writes groupRanks[peer]
    Field(("Dst Rank",), "dst_rank", pa.int64()),
    Field(("Rank",), "group_rank", pa.int64()),
    Field(("Seq",), "seq", pa.int64()),
    Field(("Comms Id",), "comms_id", DICT),
)
INPUTS = (Field(("Concrete Inputs",), "input_peer", pa.int64()),)
WAITS = (
    Field(("wait_on_stream",), "wait_stream", pa.int64()),
    Field(("wait_on_cuda_event_record_corr_id",), "wait_record", pa.int64()),
)
GRIDS = (Field(("grid",), "grid", pa.int64()),)
SHAPES = (Field((SHAPES_KEY,), "flops", pa.int64()),)
TYPES = (Field((TYPES_KEY,), "input_types", DICT),)  # read into `dtype`, so that this column stays empty
ARGS = (*PLAIN, *COMMS, *INPUTS, *WAITS, *GRIDS, *SHAPES, *TYPES)
COMMS_MARKS = (b'"Collective name"', b'"Process Group ', b'"Group size"')
"""Every event with communication arguments holds one; a block without either has null COMMS columns."""
CALLS = ("c10d::send", "c10d::recv_")
"""Calls with inputs that name the peer; inputs of all other operators are left out."""
PEER = re.compile(r"[0-9]{1,9}")
CALL_MARKS = (b'"c10d::send"', b'"c10d::recv_"')
WAIT_MARK = b'"wait_on_'
GRID_MARK = b'"grid"'

SCANNED = pa.schema(
    [pa.field("ts", pa.int64()), pa.field("dur", pa.int64())]
    + [pa.field(f.column, f.type) for f in TOP]
    + [pa.field(f.column, f.type) for f in ARGS]
)
"""A batch of the scanner: `ph` in KEPT_PHASES, `ts` never null and relative to the file's base time, ns."""

SCALES = (3, 18)  # digits behind the point of a microsecond: what Kineto writes, then what any float can need
WIDE = pa.decimal128(38, 6)  # for integers written as 7.0, or with more than 64 bits
COMMS_ID = pa.decimal128(20, 0)  # an unsigned 64-bit hash; the decimal reader takes it quoted or bare


class Dialect(NamedTuple):
    """The way a file writes its values, as far as blocks that were refused have shown it."""

    scale: int = SCALES[0]
    wide: bool = False  # integers as decimals
    comms: bool = True  # whether communication arguments are looked for
    inputs: bool = True  # and the inputs of calls
    waits: bool = True  # and what streams wait for
    grids: bool = True  # and the grids of kernels
    shapes: bool = True  # and the shapes of operators' inputs, which are text by then
    types: bool = True  # and the types of inputs of collectives on Gloo
    texts: tuple[str, ...] = ()  # integer keys that hold strings at times: read a second time as `text_key`

    def schema(self) -> pa.Schema:
        """Return the schema that pyarrow.json reads of an event; it skips everything else."""
        time = pa.decimal128(20 if self.scale == SCALES[0] else 38, self.scale)
        top = [pair for f in TOP for pair in self._read_as(f, f.column)]
        args = [pair for f in self.arguments() for k in f.keys for pair in self._read_as(f, k)]
        return pa.schema([*top, ("ts", time), ("dur", time), ("args", pa.struct(args))])

    def arguments(self) -> tuple[Field, ...]:
        """Return the fields of `args` that are looked for."""
        parts = (
            (self.comms, COMMS), (self.inputs, INPUTS), (self.waits, WAITS), (self.grids, GRIDS), (self.shapes, SHAPES),
            (self.types, TYPES),
        )  # fmt: skip
        return (*PLAIN, *(field for wanted, fields in parts if wanted for field in fields))

    def _read_as(self, field: Field, key: str) -> list[tuple[str, pa.DataType]]:
        if field in SHAPES:
            return [(text_key(key), pa.string())]
        if field in (*INPUTS, *TYPES):
            return [(key, pa.list_(pa.string()))]
        if field in GRIDS:
            return [(key, pa.list_(WIDE if self.wide else field.type))]
        if field.type == DICT:
            return [(key, COMMS_ID if field.column == "comms_id" else pa.string())]
        number = WIDE if self.wide else field.type
        return [(key, number), *([(text_key(key), pa.string())] if key in self.texts else [])]


def peer_of(inputs: object) -> int | None:
    """Return the peer's rank in the group from the inputs of a call, which end in peer and tag; None without one."""
    if not isinstance(inputs, list) or len(inputs) < len(("peer", "tag")):
        return None
    text = str(inputs[-2])
    return int(text) if PEER.fullmatch(text) else None


INTEGER_KEYS = frozenset(k for f in (*TOP, *PLAIN, *COMMS) if f.type != DICT for k in f.keys)


def text_key(key: str) -> str:
    """Return the name that a key gets in a block where its value is a string."""
    return key + "~"


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
