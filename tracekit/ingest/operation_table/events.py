"""Rows of an operation table as events: one sorted Parquet file per rank.

Send and receive durations include the wait for the other side; a send that is launched together with a receive carries
the receive's times. A message without a counterpart, at an end of an interleaved pipeline, is not communication.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from tracekit.arrays import from_numpy, from_strings
from tracekit.ingest.file_result import FileGroup, RankTable
from tracekit.ingest.operation_table.communication import Communication
from tracekit.ingest.operation_table.step_line import spans_of
from tracekit.ingest.operation_table.table import OperationTable
from tracekit.ingest.write import in_order, write_table
from tracekit.schema import EVENTS
from tracekit.units import I64


def write_ranks(
    table: OperationTable, found: Communication, world: int | None, out: Path
) -> Iterator[RankTable]:
    """Write the events of every rank, of a job of `world` ranks, into Parquet files named after `out` and the rank."""
    groups = tuple(FileGroup(m, (), tuple(sorted(axes))) for m, axes in found.groups.items())
    sizes = np.array([len(m) for m in found.groups] or [0], np.int64)
    order = np.argsort(table.rank, kind="stable")
    for rows in np.split(order, np.flatnonzero(np.diff(table.rank[order])) + 1):
        rank = int(table.rank[rows[0]])
        path = out.with_name(f"{out.name}-{rank}")
        parts = [_step_rows(table, rows, rank), _operation_rows(table, found, sizes, rows, rank)]
        events = in_order(pa.concat_tables(parts).unify_dictionaries().combine_chunks())
        count = write_table(path, iter([events]))
        first, last = int(events.column("ts")[0].as_py()), int(events.column("ts")[-1].as_py())
        yield RankTable(rank, str(path), count, first, last, None, world, False, groups, {})


def _operation_rows(
    table: OperationTable, found: Communication, sizes: I64, rows: I64, rank: int
) -> pa.Table:
    """One event per operation of the rank."""
    kinds = [table.kinds[i] for i in table.kind[rows]]
    send = np.array([k.collective == "send" for k in kinds])
    recv = np.array([k.collective == "recv" for k in kinds])
    group, peer = found.group[rows], found.peer[rows]
    stream = np.array([k.stream for k in kinds])
    return _events(
        {
            "ts": table.start[rows],
            "dur": table.dur[rows],
            "cat": ["kernel"] * len(rows),
            "name": [k.name for k in kinds],
            "pid": np.full(len(rows), rank),
            "tid": stream,
            "device": np.zeros(len(rows), np.int64),
            "stream": stream,
            "correlation": _or_null(found.served.computation[rows]),
            "collective": [k.collective if g >= 0 else None for k, g in zip(kinds, group, strict=True)],
            "group_size": from_numpy(sizes[np.maximum(group, 0)], group < 0),
            "group": _or_null(group),
            "pg_desc": [k.axis if g >= 0 else None for k, g in zip(kinds, group, strict=True)],
            "src_rank": _or_null(np.where(send & (peer >= 0), rank, np.where(recv, peer, -1))),
            "dst_rank": _or_null(np.where(recv & (peer >= 0), rank, np.where(send, peer, -1))),
            "seq": _or_null(found.seq[rows]),
            "micro_batch": _or_null(table.micro_batch[rows]),
        },
        len(rows),
    )


def _step_rows(table: OperationTable, rows: I64, rank: int) -> pa.Table:
    """One event per step of the rank, as long as the step of all ranks, named as the profiler names steps."""
    spans = spans_of(table)
    mine = np.searchsorted(spans.numbers, np.unique(table.step[rows]))
    columns = {
        "ts": spans.first[mine],
        "dur": (spans.last - spans.first)[mine],
        "cat": ["user_annotation"] * len(mine),
        "name": [f"ProfilerStep#{s}" for s in spans.numbers[mine].tolist()],
        "pid": np.full(len(mine), rank),
        "tid": np.full(len(mine), -1),
    }
    return _events(columns, len(mine))


def _or_null(values: I64) -> pa.Array:
    return from_numpy(values, values < 0)


def _events(columns: dict[str, Any], count: int) -> pa.Table:
    """EVENTS of columns (lists of text, numpy or Arrow arrays), absent ones null."""
    arrays = []
    for field in EVENTS:
        values = columns.get(field.name)
        if values is None:
            arrays.append(pa.nulls(count, field.type))
        elif pa.types.is_dictionary(field.type):
            arrays.append(from_strings(values).dictionary_encode())
        else:
            array = values if isinstance(values, pa.Array) else from_numpy(values)
            arrays.append(array.cast(field.type))
    return pa.Table.from_arrays(arrays, schema=EVENTS)
