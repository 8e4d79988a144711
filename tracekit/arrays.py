"""Columns in Arrow and in NumPy: one from the other, and rows of several as numbers.

`pyarrow.array` and `pyarrow.scalar` are not used. They import pandas wherever it is installed, to see whether they were
handed a Series: a third of a second and 40 MB in every process that reads a file. So do Arrow's functions when given a
bare literal.
"""

from collections.abc import Sequence
from hashlib import blake2b
from itertools import accumulate
from typing import Any

import numpy as np
import pyarrow as pa


def from_numpy(values: "np.ndarray[Any, Any]", null: "np.ndarray[Any, Any] | None" = None) -> pa.Array:
    """Return an Arrow array of integers or booleans, shape (n,); null where `null`, shape (n,), is true."""
    missing = 0 if null is None else int(np.count_nonzero(null))
    validity = pa.py_buffer(np.packbits(~null, bitorder="little")) if null is not None and missing else None
    if values.dtype == np.bool_:
        data, kind = np.packbits(values, bitorder="little"), pa.bool_()
    else:
        data, kind = np.ascontiguousarray(values), pa.from_numpy_dtype(values.dtype)
    return pa.Array.from_buffers(kind, len(values), [validity, pa.py_buffer(data)], missing)


def from_ints(values: Sequence[int | None], kind: Any = np.int64) -> pa.Array:
    """Return an integer array of a list; None becomes null."""
    null = np.fromiter((v is None for v in values), bool, len(values))
    return from_numpy(np.fromiter((v or 0 for v in values), kind, len(values)), null)


def from_strings(values: Sequence[str | None]) -> pa.Array:
    """Return a string array of a list; None becomes null."""
    coded = [b"" if v is None else v.encode() for v in values]
    offsets = np.fromiter(accumulate(map(len, coded), initial=0), np.int32, len(coded) + 1)
    null = np.fromiter((v is None for v in values), bool, len(values))
    validity = pa.py_buffer(np.packbits(~null, bitorder="little")) if null.any() else None
    buffers = [validity, pa.py_buffer(offsets), pa.py_buffer(b"".join(coded))]
    return pa.Array.from_buffers(pa.string(), len(coded), buffers, int(null.sum()))


def null_of(kind: pa.DataType) -> pa.Scalar:
    """Return the null of a type."""
    return pa.nulls(1, kind)[0]


ZERO, MINUS_ONE = from_ints([0, -1])
FALSE, TRUE = from_numpy(np.array([False, True]))
NO_INT64, NO_INT32, NO_STRING = (null_of(kind) for kind in (pa.int64(), pa.int32(), pa.string()))


def to_numpy(values: "pa.Array | pa.ChunkedArray") -> "np.ndarray[Any, Any]":
    """Return numbers as a numpy view, or booleans unpacked; the values at null places are arbitrary."""
    values = _whole(values)
    start, end, data = values.offset, values.offset + len(values), values.buffers()[1]
    if pa.types.is_boolean(values.type):
        return _bits(data, start, end) if data is not None else np.zeros(0, bool)
    kind = np.dtype(values.type.to_pandas_dtype())
    return np.frombuffer(data, kind)[start:end] if data is not None else np.zeros(0, kind)


def null_as(values: "pa.Array | pa.ChunkedArray", null: int) -> "np.ndarray[Any, Any]":
    """Return integers of 8 bytes, shape (n,), with `null` at null places; Arrow's `fill_null` imports pandas for it."""
    values = _whole(values)
    if values.null_count == len(values):
        return np.full(len(values), null, np.int64)
    found = to_numpy(values).astype(np.int64)
    if values.null_count:
        found[~_bits(values.buffers()[0], values.offset, values.offset + len(values))] = null
    return found


def _whole(values: "pa.Array | pa.ChunkedArray") -> pa.Array:
    """Return a column in one piece, without a copy where it is in one already."""
    if not isinstance(values, pa.ChunkedArray):
        return values
    if values.num_chunks == 1:
        return values.chunk(0)
    return pa.concat_arrays(values.chunks) if values.num_chunks else pa.nulls(0, values.type)


def _bits(data: pa.Buffer, start: int, end: int) -> "np.ndarray[Any, np.dtype[np.bool_]]":
    """Return the bits `start` to `end` of Arrow's packed booleans."""
    return np.unpackbits(np.frombuffer(data, np.uint8), count=end, bitorder="little")[start:].view(np.bool_)


def compact(values: "np.ndarray[Any, Any]") -> "np.ndarray[Any, Any]":
    """Return numbers, shape (n,), as a read-only view of one entry where all have the same bits; else as they are."""
    if not len(values) or values.strides == (0,):
        return values
    bits = values.view(f"u{values.itemsize}")
    if bits[-1] != bits[0] or (bits != bits[0]).any():
        return values
    one = np.ndarray(values.shape, values.dtype, values[:1].copy(), strides=(0,))
    one.flags.writeable = False
    return one


def numbered_rows(
    *columns: "np.ndarray[Any, Any]",
) -> "tuple[np.ndarray[Any, np.dtype[np.int64]], np.ndarray[Any, np.dtype[np.int64]]]":
    """Return (the first row of each distinct row, ascending; the number of each row among the distinct ones).

    `columns` are of equal length, the first one counts most. `np.unique(..., axis=1)` compares whole rows one by one,
    which takes seven times as long.
    """
    order = np.lexsort(columns[::-1])
    fresh = np.zeros(len(order), bool)
    fresh[:1] = True
    for column in columns:
        ordered = column[order]
        fresh[1:] |= ordered[1:] != ordered[:-1]
    number = np.empty(len(order), np.int64)
    number[order] = np.cumsum(fresh) - 1
    return order[fresh], number


def digest_of(*arrays: "np.ndarray[Any, Any]") -> bytes:
    """Return a digest, 16 bytes, of the entries, types and shapes of several arrays."""
    found = blake2b(digest_size=16)
    for array in arrays:
        found.update(f"{array.dtype.char}{array.shape}".encode() + array.tobytes())
    return found.digest()
