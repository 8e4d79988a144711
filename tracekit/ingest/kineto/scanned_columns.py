"""Makes SCANNED batches of parsed events: integer ns, dictionary-encoded text, only rows with a duration."""

from collections import Counter
from typing import Any, Final

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
from tracekit.ingest.kineto.event_fields import (
    ARGS,
    CALLS,
    GRIDS,
    INPUTS,
    KEPT_PHASES,
    SCALES,
    SCANNED,
    SHAPES,
    TOP,
    TYPES,
    Dialect,
    Field,
    peer_of,
    text_key,
)
from tracekit.ingest.kineto.gloo_types import gloo_rows, with_types
from tracekit.ingest.kineto.product_flops import of_shapes
from tracekit.schema import DICT

SIGN_BIT = 63
"""Position of the sign in an int64: a shift by it gives the upper word of the same number in 128 bits."""
CALL_NAMES = from_strings(CALLS)
STORED = from_strings(KEPT_PHASES)
OWN_ROWS = from_strings(["Trace"])[0]
"""Category of Kineto's own rows, which have words for ids."""


def typed(table: pa.Table, dialect: Dialect, issues: Counter[str], phases: Counter[str]) -> pa.RecordBatch:
    """Return a SCANNED batch of the rows of `table` (Dialect.schema) that carry a duration; repairs are counted."""
    rows, wanted = _stored(table, phases), dialect.arguments()
    args = one_chunk(rows.column("args"))
    columns = [_times(rows, key, issues) for key in ("ts", "dur")]
    own = pc.equal(one_chunk(rows.column("cat")), OWN_ROWS) if dialect.texts else None

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

    def of_argument(field: Field) -> pa.Array:
        if field not in wanted:
            return pa.nulls(len(rows), field.type)
        if field in INPUTS:
            return _peers(argument(field.keys[0]), top("name"))
        if field in SHAPES:
            return _of_shapes(columns, argument(text_key(field.keys[0])))
        if field in TYPES:
            return _of_types(columns, argument(field.keys[0]))
        if field in GRIDS:
            return _grids(argument(field.keys[0]), issues)
        return _encode(_first([read(argument, field, k) for k in field.keys]), field.type, issues)

    for field in ARGS:
        columns.append(of_argument(field))
    return _with_times(pa.RecordBatch.from_arrays(columns, schema=SCANNED), issues)


def _times(rows: pa.Table, key: str, issues: Counter[str]) -> pa.Array:
    """The times of a column, int64 ns; a time beyond 64 bits is null, and counted."""
    times, overflowed = nanoseconds(one_chunk(rows.column(key)))
    issues["integer_overflow"] += overflowed
    return times


def _stored(table: pa.Table, phases: Counter[str]) -> pa.Table:
    """The rows of `table` with a phase that is stored; all phases are counted."""
    phase = one_chunk(table.column("ph"))
    keep = pc.is_in(phase, value_set=STORED)
    for name, count in zip(*pc.value_counts(phase.cast(pa.binary())).flatten(), strict=True):
        phases[(name.as_py() or b"none").decode("utf-8", "replace")] += count.as_py()
    return table if keep.true_count == len(table) else table.filter(keep)


def _with_times(batch: pa.RecordBatch, issues: Counter[str]) -> pa.RecordBatch:
    """The rows of `batch` that have a start; the others are counted."""
    missing = batch.column("ts").null_count
    if missing:
        issues["missing_timestamp"] += missing
        batch = batch.filter(batch.column("ts").is_valid())
    return batch


def _of_shapes(columns: list[pa.Array], shapes: pa.Array) -> pa.Array:
    """Return FLOPs of products by the `shapes` of their inputs, int64; put those of calls on Gloo into `columns`."""
    names, flops = columns[NAME], pa.nulls(len(shapes), pa.int64())
    if len(shapes) not in {shapes.null_count, names.null_count}:
        texts = shapes.cast(pa.binary()).dictionary_encode()
        flops, columns[ELEMENTS] = of_shapes(names, texts, columns[ELEMENTS])
    return flops


def _of_types(columns: list[pa.Array], types: pa.Array) -> pa.Array:
    """Put what the `types` of inputs of calls on Gloo say into `columns`; return an empty column in their place."""
    names = columns[NAME]
    said = {row: _texts(types[row]) for row in gloo_rows(names, types)}
    columns[DTYPE] = with_types(columns[DTYPE], names, said)
    return pa.nulls(len(types), DICT)


NAME: Final = SCANNED.get_field_index("name")
ELEMENTS: Final = SCANNED.get_field_index("in_nelems")
DTYPE: Final = SCANNED.get_field_index("dtype")


def _peers(inputs: pa.Array, names: pa.Array) -> pa.Array:
    """The peers that the inputs of calls name, int64; null for all other operators."""
    asked = to_numpy(pc.fill_null(pc.is_in(names, value_set=CALL_NAMES), fill_value=FALSE))
    peers: list[int | None] = [None] * len(inputs)
    for row in np.flatnonzero(asked & to_numpy(inputs.is_valid())).tolist():
        peers[row] = peer_of(_texts(inputs[row]))
    return from_ints(peers)


def _texts(listed: Any) -> list[str]:
    """The texts of a list, which the JSON reader may have let through without being UTF-8."""
    return [(t or b"").decode("utf-8", "replace") for t in listed.values.cast(pa.binary()).to_pylist()]


def _grids(lists: pa.Array, issues: Counter[str]) -> pa.Array:
    """The first number of each kernel's grid, int64; null without one."""
    first = pc.list_slice(lists, 0, 1, return_fixed_size_list=True).values
    return _whole(first, issues) if pa.types.is_decimal(first.type) else first


def one_chunk(column: pa.ChunkedArray) -> pa.Array:
    """Return the column as one array."""
    if column.num_chunks == 1:
        return column.chunk(0)
    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.nulls(0, column.type)


def nanoseconds(micros: pa.Array) -> tuple[pa.Array, int]:
    """Return decimal microseconds as int64 ns, half to even, and how many 64 bits do not hold; those are null."""
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
    """Return a SCANNED batch of the rows of an EventReader."""
    arrays = []
    for field in SCANNED:
        values = [row.get(field.name) for row in rows]
        arrays.append(from_strings(values).dictionary_encode() if field.type == DICT else from_ints(values))
    return pa.RecordBatch.from_arrays(arrays, schema=SCANNED)
