"""Writes the events of one rank, sorted, in bounded memory: sorted runs are spilled and merged.

Order: start, then longest first, then as in the file. Rows pass through `finish` in that order, a chunk at a
time, before they reach the Parquet file.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tracekit.arrays import from_numpy, from_strings, to_numpy
from tracekit.schema import DICT, EVENTS
from tracekit.thresholds.ingest import CHUNK_ROWS, GROUP_ROWS, RUN_ROWS, WRITTEN

Finish = Callable[[pa.Table], pa.Table]


def event_table(count: int, columns: dict[str, object]) -> pa.Table:
    """Return EVENTS of columns, absent ones null; negative numbers are null but in `ts` and `dur`."""
    arrays = []
    for field in EVENTS:
        values = columns.get(field.name)
        if values is None:
            arrays.append(pa.nulls(count, field.type))
        elif isinstance(values, list):
            coded = [v.encode("utf-8", "replace").decode() if v else None for v in values]
            arrays.append(from_strings(coded).dictionary_encode())
        else:
            numbers = np.asarray(values, np.int64)
            null = numbers < 0 if field.name not in ("ts", "dur") else None
            arrays.append(from_numpy(numbers, null).cast(field.type))
    return pa.Table.from_arrays(arrays, schema=EVENTS)


Rows = TypeVar("Rows", pa.Table, pa.RecordBatch)


def begun_later(rows: Rows, shift: int) -> Rows:
    """Return rows of EVENTS, in a table or a batch, with starts `shift` ns later."""
    if not shift:
        return rows
    at = rows.schema.get_field_index("ts")
    later = from_numpy(to_numpy(rows.column("ts")) + np.int64(shift))
    return rows.set_column(at, EVENTS.field("ts"), later)


class EventWriter:
    """Takes unsorted EVENTS batches of one rank; `close` leaves them sorted in `path`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._held: list[pa.RecordBatch] = []
        self._rows = 0
        self._runs: list[Path] = []

    def add(self, batch: pa.RecordBatch) -> None:
        """Take a batch of schema.EVENTS."""
        self._held.append(batch)
        self._rows += batch.num_rows
        if self._rows >= RUN_ROWS:
            self._spill()

    def _take_sorted(self) -> pa.Table:
        table = in_order(pa.Table.from_batches(self._held, EVENTS).unify_dictionaries().combine_chunks())
        self._held, self._rows = [], 0
        return table

    def _spill(self) -> None:
        run = self._path.with_name(f"{self._path.name}.run{len(self._runs)}")
        table = self._take_sorted()
        with pa.OSFile(str(run), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
            writer.write_table(table, max_chunksize=CHUNK_ROWS)
        self._runs.append(run)

    def close(self, finish: Finish) -> int:
        """Write the file and return the number of rows; `finish` is applied to sorted chunks, in order."""
        if not self._runs:
            table = finish(self._take_sorted())
            write_table(self._path, iter([table]))
            return int(table.num_rows)
        if self._rows:
            self._spill()
        rows = write_table(self._path, (finish(t) for t in _merge(self._runs)))
        self.discard()
        return rows

    def discard(self) -> None:
        """Remove the spilled runs."""
        for run in self._runs:
            run.unlink(missing_ok=True)


def in_order(table: pa.Table) -> pa.Table:
    """Return an EVENTS table sorted by start, longest first; events that tie keep their order."""
    ts = to_numpy(table.column("ts"))
    dur = to_numpy(table.column("dur"))
    later = np.diff(ts)
    if np.all((later > 0) | ((later == 0) & (np.diff(dur) <= 0))):
        return table
    return table.take(from_numpy(np.lexsort((-dur, ts))))


class _Cursor:
    """A sorted run on disk, one chunk of it in memory."""

    def __init__(self, path: Path) -> None:
        self._reader = pa.ipc.open_file(pa.OSFile(str(path), "rb"))
        self._next = 0
        self.chunk: pa.RecordBatch | None = None
        self.advance()

    def advance(self) -> None:
        more = self._next < self._reader.num_record_batches
        self.chunk = self._reader.get_batch(self._next) if more else None
        self._next += 1

    def last(self) -> int:
        if self.chunk is None:
            raise ValueError("the run is exhausted")
        return int(self.chunk.column("ts")[-1].as_py())

    def take_to(self, bound: int) -> Iterator[pa.RecordBatch]:
        """Yield rows that start at `bound` or before."""
        while self.chunk is not None:
            count = int(np.searchsorted(to_numpy(self.chunk.column("ts")), bound, side="right"))
            if count:
                yield self.chunk.slice(0, count)
            if count < self.chunk.num_rows:
                self.chunk = self.chunk.slice(count)
                return
            self.advance()


def _merge(runs: list[Path]) -> Iterator[pa.Table]:
    cursors = [_Cursor(run) for run in runs]
    while alive := [c for c in cursors if c.chunk is not None]:
        bound = min(c.last() for c in alive)
        pieces = [piece for c in alive for piece in c.take_to(bound)]
        yield in_order(pa.Table.from_batches(pieces, EVENTS).unify_dictionaries().combine_chunks())


def write_table(path: Path, tables: Iterator[pa.Table]) -> int:
    """Write sorted EVENTS tables one after another into one Parquet file and return the number of rows."""
    words = [f.name for f in EVENTS if f.type == DICT]
    numbers = {f.name: "DELTA_BINARY_PACKED" for f in EVENTS if f.type != DICT}
    rows = 0
    held: list[pa.Table] = []
    with (
        pa.output_stream(str(path), compression=None, buffer_size=WRITTEN) as sink,
        pq.ParquetWriter(
            sink,
            EVENTS,
            compression="lz4",  # packed numbers are hardly smaller with zstd, which takes half as long again
            use_dictionary=words,
            column_encoding=numbers,
            write_statistics=["ts"],  # by which `Run.between` skips rows
        ) as writer,
    ):

        def flush() -> None:
            table = pa.concat_tables(held).unify_dictionaries().combine_chunks()
            writer.write_table(table, row_group_size=GROUP_ROWS)
            held.clear()

        for table in tables:
            held.append(table)
            rows += table.num_rows
            if sum(t.num_rows for t in held) >= GROUP_ROWS:
                flush()
        if held:
            flush()
    return rows
