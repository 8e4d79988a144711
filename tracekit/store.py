"""The `Run`: a Parquet folder plus a manifest that every command accepts in place of raw files.

    DIR/manifest.json              {"schema": "tracekit.run/1", "world_size", "mesh_hint", "ranks", "rejected",
                                   "quality"}: a RankRecord per rank (with the hash of its input), a Rejected per
                                   file that was not usable, a Quality per repair or doubt
    DIR/groups.parquet             schema.GROUPS
    DIR/events/rank-000000.parquet schema.EVENTS, one file per rank

In the files on disk the `group` column counts within the rank: it indexes `RankRecord.groups`, which holds
rows of GROUPS. `Run.events` hands out rows of GROUPS.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow.json import ParseOptions, ReadOptions, read_json

from tracekit.arrays import MINUS_ONE, from_numpy, to_numpy
from tracekit.errors import InputError
from tracekit.findings import Quality, Rejected
from tracekit.schema import EVENTS, GROUPS, RUN_SCHEMA
from tracekit.thresholds import MANIFEST_HEAD

MANIFEST = "manifest.json"


@dataclass(frozen=True)
class RankRecord:
    """One rank of a run and the file it came from (the first, where several were joined)."""

    rank: int
    path: str  # as the user named it, for messages
    host: str | None
    world_size: int | None  # as this file claims
    format: str  # name of an entry of ingest.readers.FORMATS, as in "kineto" or "flight_recorder"
    sha256: str
    bytes: int  # of the input, as it is on disk
    events: int
    table: str  # relative path of the Parquet file
    truncated: bool = False
    groups: tuple[int, ...] = ()  # rows of GROUPS, by the number in the file's `group` column
    not_stored: dict[str, int] = field(default_factory=dict)  # events without a duration, by phase


@dataclass(frozen=True)
class Group:
    """A process group: the sorted member set is its identity.

    group: row in schema.GROUPS. names, descs: every name and description it carried on any rank, sorted.
    """

    group: int
    ranks: tuple[int, ...]
    names: tuple[str, ...]
    descs: tuple[str, ...]


@dataclass(frozen=True)
class Run:
    """An ingested run, opened lazily: events are read one rank and a few columns at a time.

    ranks: sorted by rank. groups: by number. world_size: ranks of the job, None where nothing tells it.
    """

    folder: Path
    ranks: tuple[RankRecord, ...]
    groups: tuple[Group, ...]
    rejected: tuple[Rejected, ...]
    quality: tuple[Quality, ...]
    world_size: int | None
    mesh_hint: dict[str, Any] | None = (
        None  # {"order": [...], "sizes": {...}}: of run.json, or of the input itself
    )

    def record(self, rank: int) -> RankRecord:
        """Return the record of `rank`; KeyError where the run has none."""
        return self._by_rank[rank]

    @cached_property
    def _by_rank(self) -> dict[int, RankRecord]:
        return {record.rank: record for record in self.ranks}

    def without(self, ranks: Sequence[int], reason: str) -> "Run":
        """Return this run with the files of `ranks` among the rejected ones."""
        out = tuple(Rejected(r.path, reason, r.rank) for r in self.ranks if r.rank in ranks)
        rejected = tuple(sorted((*self.rejected, *out), key=lambda r: r.path))
        return replace(self, ranks=tuple(r for r in self.ranks if r.rank not in ranks), rejected=rejected)

    def events(self, rank: int, columns: list[str] | None = None) -> pa.Table:
        """Return the events of `rank`, sorted by start, longest first: schema.EVENTS, or the columns asked for.

        Raises KeyError where the run has no such rank, InputError where its table is unreadable.
        """
        record = self.record(rank)
        path = self.folder / record.table
        try:
            stored = set(pq.read_schema(path, memory_map=True).names)
            taken = [c for c in columns or EVENTS.names if c in stored]
            table = pq.read_table(path, columns=taken, memory_map=True, use_threads=False)
        except (OSError, pa.ArrowException) as error:
            raise InputError(f"{path}: unreadable ({error}); ingest the traces again") from error
        for name in columns or EVENTS.names:
            if (
                name not in stored and name in EVENTS.names
            ):  # an older tracekit ingested it without that column
                table = table.append_column(
                    EVENTS.field(name), pa.nulls(table.num_rows, EVENTS.field(name).type)
                )
        table = self._within_world(table.unify_dictionaries())
        if "group" not in table.schema.names or list(record.groups) == list(range(len(record.groups))):
            return table
        rows = from_numpy(np.array(record.groups, np.int32), np.array(record.groups) < 0)
        local = table.column("group")
        group = pa.chunked_array([rows.take(chunk) for chunk in local.chunks], pa.int32())
        return table.set_column(table.schema.get_field_index("group"), EVENTS.field("group"), group)

    def _within_world(self, table: pa.Table) -> pa.Table:
        """`table` without peers that the job does not have: a damaged number tells nothing."""
        for name in ("src_rank", "dst_rank"):
            if self.world_size is None or name not in table.schema.names:
                continue
            column = table.column(name)
            values, unknown = to_numpy(column.fill_null(MINUS_ONE)), to_numpy(column.is_null())
            beyond = values >= self.world_size
            if beyond.any():
                at = table.schema.get_field_index(name)
                table = table.set_column(at, EVENTS.field(name), from_numpy(values, beyond | unknown))
        return table

    def save_manifest(self) -> None:
        """Write `manifest.json` and `groups.parquet` into the run's folder; OSError where that is impossible."""
        lines = "".join(json.dumps(asdict(g)) + "\n" for g in self.groups).encode()
        groups = pa.Table.from_batches([], schema=GROUPS)
        if lines:  # by way of JSON, because pyarrow.table() imports pandas where it is installed
            groups = read_json(
                pa.BufferReader(lines),
                read_options=ReadOptions(use_threads=False, block_size=len(lines) + 64),
                parse_options=ParseOptions(explicit_schema=GROUPS),
            ).cast(GROUPS)
        pq.write_table(groups, self.folder / "groups.parquet")
        manifest = {
            "schema": RUN_SCHEMA,
            "world_size": self.world_size,
            "mesh_hint": self.mesh_hint,
            "ranks": [asdict(r) for r in self.ranks],
            "rejected": [asdict(r) for r in self.rejected],
            "quality": [asdict(q) for q in self.quality],
        }
        text = json.dumps(manifest, indent=1, ensure_ascii=True) + "\n"
        (self.folder / MANIFEST).write_text(text, encoding="utf-8")


def is_run(folder: Path) -> bool:
    """Whether `folder` is an ingested run (of any schema number)."""
    try:
        with (folder / MANIFEST).open(encoding="utf-8") as file:
            return '"schema": "tracekit.run/' in file.read(MANIFEST_HEAD)
    except (OSError, UnicodeDecodeError):
        return False


def open_run(folder: Path) -> Run:
    """Open an ingested run; InputError where its manifest or tables are missing or of another schema."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        if manifest["schema"] != RUN_SCHEMA:
            raise InputError(
                f"{folder}: written as {manifest['schema']}, this is {RUN_SCHEMA}; ingest the traces again"
            )
        groups = pq.read_table(folder / "groups.parquet", use_threads=False).to_pylist()
        run = Run(
            folder=folder,
            ranks=tuple(RankRecord(**(r | {"groups": tuple(r["groups"])})) for r in manifest["ranks"]),
            groups=tuple(
                Group(g["group"], tuple(g["ranks"]), tuple(g["names"]), tuple(g["descs"])) for g in groups
            ),
            rejected=tuple(Rejected(**r) for r in manifest["rejected"]),
            quality=tuple(Quality(**q) for q in manifest["quality"]),
            world_size=manifest["world_size"],
            mesh_hint=manifest["mesh_hint"],
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(
            f"{folder}: its run manifest is damaged ({error}); ingest the traces again"
        ) from error
    for record in run.ranks:
        inside = (folder / record.table).resolve().is_relative_to(folder.resolve())
        if not inside or not (folder / record.table).is_file():
            raise InputError(f"{folder}: the table of rank {record.rank} is missing; ingest the traces again")
    return run
