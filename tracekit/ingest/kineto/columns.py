"""Column types of the scanner: what is asked of the JSON reader, and what batches leave the scanner.

`typed` turns what pyarrow read into a SCANNED batch: integer nanoseconds, dictionary-encoded strings, only
rows that carry a duration.
"""

from collections import Counter
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tracekit.arrays import (
    FALSE,
    NO_INT64,
    NO_STRING,
    TRUE,
    from_ints,
    from_numpy,
    from_strings,
    to_numpy,
)
from tracekit.schema import DICT

SIGN_BIT = 63
"""Position of the sign in an int64: a shift by it gives the upper word of the same number in 128 bits."""
KEPT_PHASES = ("X", "B", "E")
STORED = from_strings(KEPT_PHASES)
OWN_ROWS = from_strings(["Trace"])[0]


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
    Field(("stream",), "stream", pa.int64()),
    Field(("correlation",), "correlation", pa.int64()),
    Field(("External id", "external id"), "external_id", pa.int64()),
)
COMMS = (
    Field(("Collective name",), "collective", DICT),
    Field(("dtype",), "dtype", DICT),
    Field(("In msg nelems",), "in_nelems", pa.int64()),
    Field(("Out msg nelems",), "out_nelems", pa.int64()),
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
    Field(("Seq",), "seq", pa.int64()),
    Field(("Comms Id",), "comms_id", DICT),
)
ARGS = (*PLAIN, *COMMS)
COMMS_MARKS = (b'"Collective name"', b'"Process Group ')
"""Every event with communication arguments holds one; a block without either has null COMMS columns."""

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
    """How a file writes its values, as far as that was learned from blocks that were refused."""

    scale: int = SCALES[0]
    wide: bool = False  # integers as decimals
    comms: bool = True  # whether communication arguments are looked for
    texts: tuple[str, ...] = ()  # integer keys that hold strings at times: read a second time as `text_key`

    def schema(self) -> pa.Schema:
        """Say what pyarrow.json is to read of an event; everything else it skips."""
        time = pa.decimal128(20 if self.scale == SCALES[0] else 38, self.scale)
        top = [pair for f in TOP for pair in self._read_as(f, f.column)]
        args = [pair for f in self.arguments() for k in f.keys for pair in self._read_as(f, k)]
        return pa.schema([*top, ("ts", time), ("dur", time), ("args", pa.struct(args))])

    def arguments(self) -> tuple[Field, ...]:
        """Fields of `args` that are looked for."""
        return ARGS if self.comms else PLAIN

    def _read_as(self, field: Field, key: str) -> list[tuple[str, pa.DataType]]:
        if field.type == DICT:
            return [(key, COMMS_ID if field.column == "comms_id" else pa.string())]
        number = WIDE if self.wide else field.type
        return [(key, number), *([(text_key(key), pa.string())] if key in self.texts else [])]


INTEGER_KEYS = frozenset(k for f in (*TOP, *ARGS) if f.type != DICT for k in f.keys)


def text_key(key: str) -> str:
    """Name a key is given in a block where its value is a string."""
    return key + "~"


def typed(table: pa.Table, dialect: Dialect, issues: Counter[str], phases: Counter[str]) -> pa.RecordBatch:
    """Make a SCANNED batch of the rows of `table` (Dialect.schema) that carry a duration."""
    phase = one_chunk(table.column("ph"))
    keep = pc.is_in(phase, value_set=STORED)
    for name, count in zip(*pc.value_counts(phase.cast(pa.binary())).flatten(), strict=True):
        phases[(name.as_py() or b"none").decode("utf-8", "replace")] += count.as_py()
    rows = table if keep.true_count == len(table) else table.filter(keep)
    args = one_chunk(rows.column("args"))
    times = {}
    for key in ("ts", "dur"):
        times[key], overflowed = nanoseconds(one_chunk(rows.column(key)))
        issues["integer_overflow"] += overflowed
    columns = [times["ts"], times["dur"]]
    own = (
        pc.equal(one_chunk(rows.column("cat")), OWN_ROWS) if dialect.texts else None
    )  # Kineto's words for ids

    def read(holder: Any, field: Field, key: str) -> pa.Array:
        values = holder(key)
        if key in dialect.texts:
            values = _with_texts(values, holder(text_key(key)), own, issues)
        return _whole(values, issues) if pa.types.is_decimal(values.type) and field.type != DICT else values

    def top(key: str) -> pa.Array:
        return one_chunk(rows.column(key))

    def argument(key: str) -> pa.Array:
        return pc.struct_field(args, key)

    columns += [_encode(read(top, f, f.column), f.type, issues) for f in TOP]
    for field in dialect.arguments():
        columns.append(_encode(_first([read(argument, field, k) for k in field.keys]), field.type, issues))
    columns += [pa.nulls(len(rows), f.type) for f in ARGS[len(dialect.arguments()) :]]
    batch = pa.RecordBatch.from_arrays(columns, schema=SCANNED)
    missing = batch.column("ts").null_count
    if missing:
        issues["missing_timestamp"] += missing
        batch = batch.filter(batch.column("ts").is_valid())
    return batch


def one_chunk(column: pa.ChunkedArray) -> pa.Array:
    """Return the column as one array."""
    if column.num_chunks == 1:
        return column.chunk(0)
    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.nulls(0, column.type)


def nanoseconds(micros: pa.Array) -> tuple[pa.Array, int]:
    """Decimal microseconds as int64 ns, half to even; null, and counted, where 64 bits do not hold them."""
    if micros.type.scale != SCALES[0]:
        micros = pc.round(micros, ndigits=SCALES[0], round_mode="half_to_even")
        micros = micros.cast(pa.decimal128(38, SCALES[0]), safe=False)
    if len(micros) == 0:
        return pa.nulls(0, pa.int64()), 0
    words = np.frombuffer(micros.buffers()[1], dtype=np.int64)  # little-endian 128-bit integers
    words = words.reshape(-1, 2)[micros.offset : micros.offset + len(micros)]
    low, high = words[:, 0], words[:, 1]
    null = to_numpy(micros.is_null())
    overflow = (high != low >> SIGN_BIT) & ~null
    null |= overflow
    return from_numpy(low, null), int(overflow.sum())


def _first(spellings: list[pa.Array]) -> pa.Array:
    """Take each row's value from the first spelling of the key that has one."""
    some = [values for values in spellings if values.null_count < len(values)] or spellings[:1]
    return some[0] if len(some) == 1 else pc.coalesce(*some)


def _whole(values: pa.Array, issues: Counter[str]) -> pa.Array:
    """Make int64 of WIDE decimals; null, and counted, where a value is no 64-bit integer."""
    rounded = pc.round(values, ndigits=0)
    fraction = pc.not_equal(rounded, values)
    words = np.frombuffer(rounded.cast(pa.decimal128(38, 0), safe=False).buffers()[1], dtype=np.int64)
    words = words.reshape(-1, 2)[: len(values)]
    wide = (words[:, 1] != words[:, 0] >> SIGN_BIT) & to_numpy(values.is_valid())
    issues["non_integer_value"] += fraction.true_count
    issues["integer_overflow"] += int(wide.sum())
    lost = pc.or_kleene(fraction, from_numpy(wide))
    return pc.if_else(pc.fill_null(lost, fill_value=TRUE), NO_INT64, from_numpy(words[:, 0]))


def _with_texts(values: pa.Array, texts: pa.Array, own: pa.Array | None, issues: Counter[str]) -> pa.Array:
    """Fill in integers that were written as strings; other strings are dropped and counted."""
    if texts.null_count == len(texts):
        return values
    number = pc.match_substring_regex(texts, r"^-?[0-9]{1,18}$")
    words = pc.and_kleene(pc.invert(number), pc.invert(pc.fill_null(own, fill_value=FALSE)))
    issues["non_integer_value"] += words.true_count
    parsed = pc.if_else(number, texts, NO_STRING).cast(pa.int64())
    return pc.coalesce(values, parsed.cast(values.type))


def _encode(values: pa.Array, target: pa.DataType, issues: Counter[str]) -> pa.Array:
    if values.null_count == len(values):
        return pa.nulls(len(values), target)
    if target != DICT:
        return values
    if pa.types.is_decimal(values.type):
        values = values.cast(pa.string())
    encoded = values.dictionary_encode()
    try:
        encoded.dictionary.validate(full=True)
    except pa.ArrowInvalid:  # bad UTF-8: the JSON reader lets it through
        words = [w.as_py() for w in encoded.dictionary.cast(pa.binary())]
        texts = [w.decode("utf-8", "replace") for w in words]
        issues["bad_utf8"] += sum(w != t.encode() for w, t in zip(words, texts, strict=True))
        encoded = pa.DictionaryArray.from_arrays(encoded.indices, from_strings(texts))
        encoded = encoded.cast(pa.string()).dictionary_encode()
    return encoded


def from_rows(rows: list[dict[str, Any]]) -> pa.RecordBatch:
    """Make a SCANNED batch of rows that the lenient reader made."""
    arrays = []
    for field in SCANNED:
        values = [row.get(field.name) for row in rows]
        arrays.append(from_strings(values).dictionary_encode() if field.type == DICT else from_ints(values))
    return pa.RecordBatch.from_arrays(arrays, schema=SCANNED)
