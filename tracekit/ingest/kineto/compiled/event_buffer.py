"""The event array read by the compiled scanner, in place of `event_array.EventBuffer`."""

from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache

import numpy as np
import pyarrow as pa

from tracekit.ingest.kineto.compiled.columns import Columns, Unrecognised
from tracekit.ingest.kineto.compiled.layout import (
    ARGUMENTS_KEY,
    PADDING,
    SLOTS,
    At,
    Ending,
    Key,
    Kind,
    Place,
    Value,
    hash_of,
)
from tracekit.thresholds.ingest import BATCH_ROWS, KEY_TABLE, MAX_EVENT, MAX_KEYS

Scan = Callable[[int], int]
"""Reads events by a state at an address, and returns an Ending."""
BYTES = 256


def room(size: int) -> "np.ndarray[tuple[int], np.dtype[np.uint8]]":
    """Return memory for `size` bytes, the zeros behind them, and some more."""
    return np.empty(2 * size + PADDING, np.uint8)


class CompiledEvents:
    """The unread part of the event array; raises Unrecognised where the general reader must read the file.

    rows: of a batch, for which memory is set up.
    """

    guessed = False

    def __init__(
        self, buffer: bytes, issues: Counter[str], phases: Counter[str], scan: Scan, rows: int = BATCH_ROWS
    ) -> None:
        self.ended = False
        self._scan = scan
        self._issues, self._counted_phases = issues, phases
        self._columns = Columns(rows)
        self._keys, self._key_texts = _key_table()
        self._phases = np.zeros(BYTES, np.int64)
        self._seen = np.zeros(MAX_KEYS, np.int64)
        self._values = np.zeros((len(SLOTS), Value.COUNT), np.int64)
        self._state = np.zeros(At.COUNT, np.int64)
        self._state[At.PLACE], self._state[At.ROWS] = Place.START, rows
        for at, memory in (
            (At.PHASES, self._phases),
            (At.KEYS, self._keys),
            (At.SEEN, self._seen),
            (At.VALUES, self._values),
            (At.COLUMNS, self._columns.addresses),
            (At.FILLED, self._columns.filled),
            (At.POOLS, self._columns.pools),
        ):
            self._state[at] = memory.ctypes.data
        self._buffer = np.zeros(PADDING, np.uint8)
        self._from = self._to = 0  # the unread bytes of the buffer
        self.feed(buffer)

    def feed(self, block: bytes) -> None:
        """Append more of the file."""
        left = self._to - self._from
        if left > MAX_EVENT:
            raise Unrecognised
        size = left + len(block)
        if size + PADDING > len(self._buffer):
            larger = room(size)
            larger[:left] = self._buffer[self._from : self._to]
            self._buffer = larger
        elif left:
            self._buffer[:left] = self._buffer[self._from : self._to].copy()
        self._buffer[left:size] = np.frombuffer(block, np.uint8)
        self._buffer[size : size + PADDING] = 0
        self._from, self._to = 0, size

    def rest(self) -> bytes:
        """Return what follows the array."""
        return self._buffer[self._from : self._to].tobytes()

    def drain(self, *, final: bool) -> Iterator[pa.RecordBatch]:
        """Read all whole events; batches are full ones until the array ends."""
        while True:
            before = self._from
            ending = self._read()
            self._count()
            if ending == Ending.REFUSED or (final and ending == Ending.MORE):
                raise Unrecognised
            rows = int(self._state[At.ROW])
            if ending == Ending.FULL and self._from == before and not rows:
                raise Unrecognised  # one text is longer than a pool
            if rows and ending != Ending.MORE:
                yield self._columns.take(rows)
                self._state[At.ROW] = 0
            if ending != Ending.FULL:
                self.ended = ending == Ending.DONE
                if self.ended:
                    self._columns.release()
                return
            self._columns.clear_texts(crowded_only=rows == self._columns.size)
            self._columns.renew()

    def _read(self) -> int:
        start = self._buffer.ctypes.data
        self._state[At.NEXT], self._state[At.END] = start + self._from, start + self._to
        ending = self._scan(self._state.ctypes.data)
        self._from = int(self._state[At.NEXT]) - start
        return ending

    def _count(self) -> None:
        """Add to the counts what the scanner has counted."""
        for phase in np.flatnonzero(self._phases).tolist():
            self._counted_phases[chr(phase)] += int(self._phases[phase])
        if self._state[At.WITHOUT_TIME]:
            self._issues["missing_timestamp"] += int(self._state[At.WITHOUT_TIME])
        self._phases[:] = 0
        self._state[At.WITHOUT_TIME] = 0


@cache
def _key_table() -> (
    "tuple[np.ndarray[tuple[int, int, int], np.dtype[np.int64]], list[np.ndarray[tuple[int], np.dtype[np.uint8]]]]"
):
    """The hash tables of keys, of events and of arguments, and the texts to which they point."""
    table = np.zeros((2, KEY_TABLE, Key.COUNT), np.int64)
    texts = []
    entries = [(s.key, s.kind, i, s.argument, s.mark) for i, s in enumerate(SLOTS)]
    for key, kind, slot, argument, mark in [*entries, (ARGUMENTS_KEY, Kind.ARGUMENTS, 0, False, False)]:
        text = np.frombuffer(key.encode() + bytes(PADDING), np.uint8)
        texts.append(text)
        mixed = hash_of(key.encode())
        place = mixed % KEY_TABLE
        while table[int(argument), place, Key.KIND]:
            place = (place + 1) % KEY_TABLE
        table[int(argument), place] = (mixed, kind, slot, text.ctypes.data, len(key.encode()), mark)
    return table, texts
