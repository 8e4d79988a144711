"""One operation table to one event table per rank."""

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from tracekit.files.source import ByteStream, Source
from tracekit.ingest.file_result import FileResult
from tracekit.ingest.operation_table.communication import communication, unpaired
from tracekit.ingest.operation_table.events import write_ranks
from tracekit.ingest.operation_table.layout import layout_of
from tracekit.ingest.operation_table.table import REQUIRED, columns_of
from tracekit.thresholds.ingest import MAX_TABLE_BYTES


def plain_line(error: Exception) -> str:
    """Return the first line of an error, short enough for a reason."""
    return (str(error).splitlines() or [type(error).__name__])[0][:200]


def read_operations(stream: ByteStream, blocks: Iterator[bytes], source: Source, out: Path) -> FileResult:
    """Read an operation table from `blocks` into one Parquet file a rank, named after `out`.

    The result says why where the file is none, or holds unusable values; nothing is raised.
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
        table, quality = columns_of(parquet, source.label)
        layout = layout_of(table.rank_at, table.dp_size, table.pp_size)
        found = communication(table, layout)
    except (ValueError, OverflowError, pa.ArrowException) as error:
        return FileResult(
            source.label, "rejected", f"an operation table with unusable values ({plain_line(error)})"
        )
    places = table.dp_size * table.pp_size
    world = layout.world_size if layout else places if max(table.ranks) < places else None
    quality += unpaired(table, found, source.label)
    return FileResult(
        source.label,
        "ok",
        sha256=stream.sha256,
        bytes=stream.raw_bytes,
        tables=tuple(write_ranks(table, found, world, out)),
        quality=tuple(quality),
        mesh_hint=layout.hint if layout else None,
    )
