"""One operation table to one event table per rank."""

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from tracekit.files.source import ByteStream, Source
from tracekit.findings import Quality
from tracekit.ingest.file_result import FileResult
from tracekit.ingest.operation_table.clocks import on_one_clock
from tracekit.ingest.operation_table.communication import Communication, communication, unpaired
from tracekit.ingest.operation_table.events import write_ranks
from tracekit.ingest.operation_table.layout import Layout, layout_of
from tracekit.ingest.operation_table.step_line import one_after_another
from tracekit.ingest.operation_table.table import REQUIRED, OperationTable, columns_of
from tracekit.thresholds.ingest import MAX_TABLE_BYTES


def plain_line(error: Exception) -> str:
    """Return the first line of an error, short enough for a reason."""
    return (str(error).splitlines() or [type(error).__name__])[0][:200]


def read_operations(stream: ByteStream, blocks: Iterator[bytes], source: Source, out: Path) -> FileResult:
    """Read an operation table from `blocks` into one Parquet file a rank, named after `out`.

    Where the file is no operation table or holds unusable values, the result says why; nothing is raised.
    """
    data = bytearray()
    for block in blocks:
        data += block
        if len(data) > MAX_TABLE_BYTES:
            reason = "a Parquet file of more than 2 GiB, so no operation table"
            return FileResult(source.label, "rejected", reason)
    try:
        parquet = pq.read_table(pa.BufferReader(bytes(data)), use_threads=False)
    except (pa.ArrowException, OSError) as error:
        return FileResult(source.label, "rejected", f"unreadable as Parquet ({plain_line(error)})")
    missing = [c for c in REQUIRED if c not in parquet.schema.names]
    if missing:
        reason = f"a Parquet file without an operation table's columns ({', '.join(missing)})"
        return FileResult(source.label, "foreign", reason)
    try:
        table, found, layout, quality = _understood(parquet, source.label)
    except (ValueError, OverflowError, pa.ArrowException) as error:
        return FileResult(
            source.label, "rejected", f"an operation table with unusable values ({plain_line(error)})"
        )
    places = table.dp_size * table.pp_size
    world = layout.world_size if layout else places if max(table.ranks) < places else None
    return FileResult(
        source.label,
        "ok",
        sha256=stream.sha256,
        bytes=stream.raw_bytes,
        tables=tuple(write_ranks(table, found, world, out)),
        quality=tuple(quality),
        mesh_hint=layout.hint if layout else None,
    )


def _understood(
    parquet: pa.Table, label: str
) -> tuple[OperationTable, Communication, Layout | None, list[Quality]]:
    """The operations on one line of time, how they meet, the job's layout, and what was dropped or repaired.

    Raises ValueError, OverflowError or an Arrow error where values are unusable.
    """
    table, quality = columns_of(parquet, label)
    layout = layout_of(table.rank_at, table.dp_size, table.pp_size)
    found = communication(table, layout)
    table, clocks = on_one_clock(table, found, label)
    return one_after_another(table), found, layout, [*quality, *clocks, *unpaired(table, found, label)]
