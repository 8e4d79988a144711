"""The `Run`: a Parquet folder plus a manifest that every command accepts in place of raw files.

    DIR/manifest.json              "tracekit.run/1": ranks, rejected files, quality, world size, input hashes
    DIR/groups.parquet             schema.GROUPS
    DIR/events/rank-000000.parquet schema.EVENTS, one file a rank
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tracekit.findings import Quality, Rejected


@dataclass(frozen=True)
class RankRecord:
    """One rank of a run and the file it came from."""

    rank: int
    path: str  # as the user named it, for messages
    host: str | None
    world_size: int | None  # as this file claims
    format: str  # "kineto" | "operation_table"
    sha256: str
    bytes: int
    events: int
    table: str  # relative path of the Parquet file
    truncated: bool = False


@dataclass(frozen=True)
class Group:
    """A process group: the sorted member set is its identity."""

    group: int
    ranks: tuple[int, ...]
    names: tuple[str, ...]
    descs: tuple[str, ...]


@dataclass(frozen=True)
class Run:
    """An ingested run, opened lazily: events are read one rank and a few columns at a time."""

    folder: Path
    ranks: tuple[RankRecord, ...]
    groups: tuple[Group, ...]
    rejected: tuple[Rejected, ...]
    quality: tuple[Quality, ...]
    world_size: int | None
    mesh_hint: dict[str, Any] | None = None  # {"order": [...], "sizes": {...}} of a manifest beside the traces

    def events(self, rank: int, columns: list[str] | None = None) -> pa.Table:
        """Events of `rank` (schema.EVENTS, or the columns asked for), sorted by start."""
        record = next(r for r in self.ranks if r.rank == rank)
        return pq.read_table(self.folder / record.table, columns=columns, memory_map=True)
