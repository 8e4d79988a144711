"""The columns that the compiled scanner fills, and the SCANNED batches made of them."""

import json
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from tracekit.arrays import from_numpy, from_strings
from tracekit.ingest.kineto.compiled.layout import BITS_TEXT, PHASE, SLOTS, Pool
from tracekit.ingest.kineto.event_fields import CALLS, KEPT_PHASES, SCANNED
from tracekit.ingest.kineto.gloo_types import GLOO, gloo_rows, with_types
from tracekit.ingest.kineto.product_flops import of_shapes, parsed
from tracekit.schema import DICT
from tracekit.thresholds.ingest import KEPT_WORDS, POOL_BYTES, POOL_TABLE, POOL_WORDS


class Unrecognised(Exception):  # noqa: N818 (no error: the general reader takes the file)
    """The file holds something that the compiled scanner leaves to the general reader."""


MEANINGFUL = frozenset((*CALLS, "Trace"))
"""Texts that the scanner compares as they are written; with escapes it would miss them."""


class _Memory(NamedTuple):
    """The arrays of a pool, in the order of the words of Pool."""

    table: "np.ndarray[tuple[int], np.dtype[np.int32]]"  # zeros
    hashes: "np.ndarray[tuple[int], np.dtype[np.int64]]"
    ends: "np.ndarray[tuple[int], np.dtype[np.int32]]"  # the first is 0
    text: "np.ndarray[tuple[int], np.dtype[np.uint8]]"

    @classmethod
    def fresh(cls) -> "_Memory":
        """Return new arrays."""
        return cls(
            np.zeros(POOL_TABLE, np.int32),
            np.empty(POOL_WORDS, np.int64),
            np.zeros(POOL_WORDS + 1, np.int32),
            np.empty(POOL_BYTES + np.int64().itemsize, np.uint8),
        )


_SPARE: Final[list[_Memory]] = []
"""The memory of released pools, for those of the next file: to map 18 MB a pool again takes a fifth of a small file."""


class TextPool:
    """The different texts of one column, numbered in the order met; `words` are those of a row of Pool."""

    def __init__(self, words: "np.ndarray[tuple[int], np.dtype[np.int64]]") -> None:
        self._words = words
        self._take_memory()

    def clear(self) -> None:
        """Forget all texts; arrays made before stay."""
        self.release()
        self._take_memory()

    def release(self) -> None:
        """Leave the memory to other pools of this process, unless it holds many texts; no text may follow."""
        if not self.crowded:
            empty(self._memory.table, self._memory.hashes[: self._words[Pool.SIZE]])
            _SPARE.append(self._memory)

    def _take_memory(self) -> None:
        try:
            self._memory = _SPARE.pop()
        except IndexError:
            self._memory = _Memory.fresh()
        self._words[: len(self._memory)] = [a.ctypes.data for a in self._memory]
        self._words[Pool.SIZE] = self._words[Pool.ESCAPED] = 0
        self._kept: pa.Array | None = None

    @property
    def crowded(self) -> bool:
        """Whether the pool is better cleared than handed over with another batch."""
        return int(self._words[Pool.SIZE]) > KEPT_WORDS

    def texts(self) -> pa.Array:
        """Return the texts by number; Unrecognised where one is no UTF-8, or is a name in disguise."""
        size = int(self._words[Pool.SIZE])
        if self._kept is None or len(self._kept) < size:
            ends = self._memory.ends[: size + 1].copy()
            buffers = [None, pa.py_buffer(ends), pa.py_buffer(self._memory.text[: ends[-1]].copy())]
            self._kept = pa.Array.from_buffers(pa.string(), size, buffers, 0)
            try:
                self._kept.validate(full=True)
            except pa.ArrowInvalid as error:
                raise Unrecognised from error
            if self._words[Pool.ESCAPED]:
                self._kept = _unescaped(self._kept)
        return self._kept


def empty(
    table: "np.ndarray[tuple[int], np.dtype[np.int32]]", hashes: "np.ndarray[tuple[int], np.dtype[np.int64]]"
) -> None:
    """Clear the places of the texts with these `hashes`, all that `table` holds: it is far larger than they are.

    A text lies at the place of its hash, or further on in the run of taken places that begins there.
    """
    places = hashes & (POOL_TABLE - 1)
    while len(places):
        table[places] = 0
        places = (places + 1) & (POOL_TABLE - 1)
        places = places[table[places] != 0]


NONE = np.iinfo(np.int64).min
"""Marks a row without a number: the scanner reads none of so many digits."""
NO_CODE = -1
NAME_COLUMN, FLOPS, ELEMENTS, DTYPE, TYPES = map(
    SCANNED.get_field_index, ("name", "flops", "in_nelems", "dtype", "input_types")
)


class Columns:
    """Memory for the rows of a batch.

    size: rows of a batch. addresses: of the column of each slot. filled: values written, by slot. pools: rows of Pool
    words, by slot.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.addresses = np.zeros(len(SLOTS), np.int64)
        self.filled = np.zeros(len(SLOTS), np.int64)
        self.pools = np.zeros((len(SLOTS), Pool.COUNT), np.int64)
        self._texts = {i: TextPool(self.pools[i]) for i in range(len(SLOTS)) if BITS_TEXT >> i & 1}
        self._slots: list[list[int]] = [[] for _ in SCANNED]
        for i, slot in enumerate(SLOTS):
            self._slots[slot.column].append(i)
        self._arrays = [self._fresh(column) for column in range(len(SCANNED))]
        self._given: list[int] = []

    def _fresh(self, column: int) -> "np.ndarray[tuple[int], np.dtype[np.signedinteger]]":
        """Return an empty column to replace the present one; a batch now owns that one's memory."""
        texts = self._slots[column][0] in self._texts
        values = np.full(self.size, NO_CODE, np.int32) if texts else np.full(self.size, NONE, np.int64)
        self.addresses[self._slots[column]] = values.ctypes.data
        return values

    def renew(self) -> None:
        """Begin a new batch: replace the columns that the last one gave away."""
        for column in self._given:
            self._arrays[column] = self._fresh(column)
        self._given = []

    def take(self, rows: int) -> pa.RecordBatch:
        """Return the first `rows` rows as a batch; `renew` begins the next one."""
        arrays = [self._array(column, rows) for column in range(len(SCANNED))]
        self.filled[:] = 0
        if pa.types.is_dictionary(arrays[FLOPS].type):
            arrays[FLOPS], arrays[ELEMENTS] = _of_shapes(arrays[NAME_COLUMN], arrays[FLOPS], arrays[ELEMENTS])
        if arrays[TYPES].null_count < rows:
            arrays[DTYPE] = _of_types(arrays[NAME_COLUMN], arrays[TYPES], arrays[DTYPE])
            arrays[TYPES] = pa.nulls(rows, DICT)
        return pa.RecordBatch.from_arrays(arrays, schema=SCANNED)

    def clear_texts(self, *, crowded_only: bool) -> None:
        """Forget the texts of all pools, or of crowded ones; only between batches."""
        for pool in self._texts.values():
            if pool.crowded or not crowded_only:
                pool.clear()

    def release(self) -> None:
        """Leave the memory of all pools to the next file; nothing may be read into them afterwards."""
        for pool in self._texts.values():
            pool.release()

    def _array(self, column: int, rows: int) -> pa.Array:
        slots = self._slots[column]
        filled = int(self.filled[slots].sum())
        if not filled:
            return pa.nulls(rows, SCANNED.field(column).type)
        values = self._arrays[column][:rows]
        self._given.append(column)
        if slots[0] == PHASE:
            return _phases(values)
        texts = slots[0] in self._texts
        null = values == (NO_CODE if texts else NONE) if filled < rows or len(slots) > 1 else None
        array = from_numpy(values, null)
        return pa.DictionaryArray.from_arrays(array, self._texts[slots[0]].texts()) if texts else array


def _of_shapes(names: pa.Array, shapes: pa.Array, elements: pa.Array) -> tuple[pa.Array, pa.Array]:
    """Return FLOPs and `elements` by the texts of inputs' shapes; no FLOPs where no event has a name."""
    if not pa.types.is_dictionary(names.type) or names.null_count == len(names):
        return pa.nulls(len(names), pa.int64()), elements
    return of_shapes(names, shapes, elements)


def _of_types(names: pa.Array, types: pa.Array, dtypes: pa.Array) -> pa.Array:
    """Return `dtypes`, completed by the texts of inputs' types."""
    rows = gloo_rows(names, types)
    said = [parsed(text) for text in types.dictionary.cast(pa.binary()).to_pylist()]
    return with_types(dtypes, names, {row: said[types.indices[row].as_py()] for row in rows})


def _phases(values: "np.ndarray[tuple[int], np.dtype[np.signedinteger]]") -> pa.Array:
    codes = np.zeros(len(values), np.int32)
    for code, phase in enumerate(KEPT_PHASES):
        codes[values == ord(phase)] = code
    return pa.DictionaryArray.from_arrays(from_numpy(codes), from_strings(KEPT_PHASES))


# Pools of texts in memory, which the compiled scanner fills, as dictionaries of Arrow.


def _means(text: str) -> bool:
    return text in MEANINGFUL or text.startswith(GLOO)


def _unescaped(texts: pa.Array) -> pa.Array:
    plain = [json.loads(f'"{t}"', strict=False) if "\\" in t else t for t in texts.to_pylist()]
    if any(_means(p) and p != t for p, t in zip(plain, texts.to_pylist(), strict=True)):
        raise Unrecognised
    try:
        return from_strings(plain)
    except UnicodeEncodeError as error:  # half a surrogate pair
        raise Unrecognised from error
