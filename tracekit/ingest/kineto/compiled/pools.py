"""Pools of texts in memory, which the compiled scanner fills, as dictionaries of Arrow."""

import json

import numpy as np
import pyarrow as pa

from tracekit.arrays import from_strings
from tracekit.ingest.kineto.compiled.layout import Pool
from tracekit.ingest.kineto.event_fields import CALLS, GRIDDED
from tracekit.ingest.kineto.refusal import Unrecognised
from tracekit.thresholds.ingest import KEPT_WORDS, POOL_BYTES, POOL_TABLE, POOL_WORDS

MEANINGFUL = frozenset((*CALLS, "Trace"))
"""Texts that the scanner compares as they are written; with escapes it would miss them."""


class TextPool:
    """The different texts of one column, numbered in the order met; `words` are those of a row of Pool."""

    def __init__(self, words: "np.ndarray[tuple[int], np.dtype[np.int64]]") -> None:
        self._words = words
        self._kept: pa.Array | None = None
        self.clear()

    def clear(self) -> None:
        """Forget all texts; arrays made before stay."""
        self._table = np.zeros(POOL_TABLE, np.int32)
        self._hashes = np.empty(POOL_WORDS, np.int64)
        self._ends = np.zeros(POOL_WORDS + 1, np.int32)
        self._text = np.empty(POOL_BYTES + np.int64().itemsize, np.uint8)
        arrays = (self._table, self._hashes, self._ends, self._text)
        self._words[: len(arrays)] = [a.ctypes.data for a in arrays]
        self._words[Pool.SIZE] = self._words[Pool.ESCAPED] = 0
        self._kept = None

    @property
    def crowded(self) -> bool:
        """Whether the pool is better cleared than handed over with another batch."""
        return int(self._words[Pool.SIZE]) > KEPT_WORDS

    def texts(self) -> pa.Array:
        """Return the texts by number; Unrecognised where one is no UTF-8, or is a name in disguise."""
        size = int(self._words[Pool.SIZE])
        if self._kept is None or len(self._kept) < size:
            ends = self._ends[: size + 1].copy()
            buffers = [None, pa.py_buffer(ends), pa.py_buffer(self._text[: ends[-1]].copy())]
            self._kept = pa.Array.from_buffers(pa.string(), size, buffers, 0)
            try:
                self._kept.validate(full=True)
            except pa.ArrowInvalid as error:
                raise Unrecognised from error
            if self._words[Pool.ESCAPED]:
                self._kept = _unescaped(self._kept)
        return self._kept


def _means(text: str) -> bool:
    return text in MEANINGFUL or any(kind in text for kind in GRIDDED)


def _unescaped(texts: pa.Array) -> pa.Array:
    plain = [json.loads(f'"{t}"', strict=False) if "\\" in t else t for t in texts.to_pylist()]
    if any(_means(p) and p != t for p, t in zip(plain, texts.to_pylist(), strict=True)):
        raise Unrecognised
    try:
        return from_strings(plain)
    except UnicodeEncodeError as error:  # half a surrogate pair
        raise Unrecognised from error
