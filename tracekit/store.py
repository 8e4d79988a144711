"""The `Run`: a Parquet folder plus a manifest that every command accepts in place of raw files.

    DIR/manifest.json              {"schema": "tracekit.run/1", "world_size", "mesh_hint", "ranks", "rejected",
                                   "quality"}: a RankRecord per rank (with the hash of its input), a Rejected per
                                   file that was not usable, a Quality per repair or doubt
    DIR/files.json                 the input files, so that others can be appended (`ingest.kept_files`)
    DIR/groups.parquet             schema.GROUPS
    DIR/events/rank-000000.parquet schema.EVENTS, one file per rank

In the files on disk the `group` column counts within the rank: it indexes `RankRecord.groups`, which holds
rows of GROUPS. `Run.events` hands out rows of GROUPS.
"""

import hashlib
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tracekit.arrays import from_numpy, null_as, to_numpy
from tracekit.errors import InputError
from tracekit.findings.breakdown import BreakdownFinding
from tracekit.findings.shared import Quality, Rejected
from tracekit.findings.slowrank import SlowRankFinding
from tracekit.findings.whatif import WhatIfFinding
from tracekit.mesh.hardware import Hardware
from tracekit.placement import Place
from tracekit.schema import EVENTS, Group, checked
from tracekit.small_files import check_regular
from tracekit.thresholds.ingest import MANIFEST_HEAD, MAX_RANKS, MAX_SPREAD, MOST_KEPT_EVENTS

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
    table_sha256: str = ""  # of the Parquet file; empty in a run that is not kept
    windows: tuple[int, ...] = ()  # begin of each window, ns, where several files were joined
    window_names: tuple[str, ...] = ()  # of each window, where the files' paths tell them apart
    placed: tuple[int, ...] = ()  # rows of GROUPS in which each event gave the rank's own place, if kept
    device: str = ""  # the name of its devices, as the file gives it


@dataclass(frozen=True)
class Run:
    """An ingested run, opened lazily: events are read one rank and a few columns at a time.

    ranks: sorted by rank. groups: by number. world_size: ranks of the job, None if nothing shows it.
    """

    folder: Path
    ranks: tuple[RankRecord, ...]
    groups: tuple[Group, ...]
    rejected: tuple[Rejected, ...]
    quality: tuple[Quality, ...]
    world_size: int | None
    mesh_hint: dict[str, Any] | None = None  # {"order": [...], "sizes": {...}}: of run.json or the input
    lease: object | None = field(default=None, repr=False, compare=False)  # keeps a temporary folder alive
    job: int | None = None  # which of several recordings is wanted, if its ranks are of several; not kept
    chosen: bool = False  # whether a number has chosen its files among those of several jobs; not kept
    spans: Mapping[int, tuple[int, int]] | None = field(default=None, repr=False, compare=False)
    """By rank: only events that begin in this half-open time, ns, are handed out; None is all; not kept."""
    places: Mapping[int, Place] = field(default_factory=dict)  # by rank, of a user's file; not kept
    hardware: Hardware | None = None  # what the user describes; not kept
    kept: dict[Path, dict[str, Any]] = field(default_factory=dict, repr=False, compare=False)
    """Columns read of a small run, by table and name, None if stored and not read yet."""

    def record(self, rank: int) -> RankRecord:
        """Return the record of `rank`; KeyError where the run has none."""
        return self._by_rank[rank]

    def groups_of(self, rank: int) -> list[Group]:
        """Return the process groups that hold `rank`, by number."""
        return self._groups_by_rank.get(rank, [])

    @cached_property
    def _groups_by_rank(self) -> dict[int, list[Group]]:
        found: dict[int, list[Group]] = defaultdict(list)
        for group in self.groups:
            for rank in group.ranks:
                found[rank].append(group)
        return found

    @cached_property
    def _verified(self) -> set[int]:
        return set()

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
        self._verify(record)
        try:
            table, stored = self._read(path, rank, columns or EVENTS.names)
        except (OSError, pa.ArrowException, ValueError) as error:
            raise InputError(f"{path}: unreadable ({error}); ingest the traces again") from error
        if lacking := {"ts", "dur", "cat", "name"} - stored:
            raise InputError(f"{path}: lacks the column {min(lacking)}; ingest the traces again")
        table = checked(table, path, len(record.groups))
        if record.table_sha256 and self.spans is None and table.num_rows != record.events:
            raise InputError(
                f"{path}: holds {table.num_rows} events, its manifest says {record.events}; ingest the traces again"
            )
        for name in columns or EVENTS.names:  # an older tracekit ingested it without some
            if name not in stored and name in EVENTS.names:
                nulls = pa.nulls(table.num_rows, EVENTS.field(name).type)
                table = table.append_column(EVENTS.field(name), nulls)
        table = self._within_world(table.unify_dictionaries())
        if "group" in table.schema.names and list(record.groups) != list(range(len(record.groups))):
            rows = from_numpy(np.array(record.groups, np.int32), np.array(record.groups) < 0)
            group = pa.chunked_array([rows.take(chunk) for chunk in table.column("group").chunks], pa.int32())
            table = table.set_column(table.schema.get_field_index("group"), EVENTS.field("group"), group)
        if record.placed and not self.placed(table, rank)[1].isdisjoint(record.placed):
            raise InputError(f"{path}: is the table of another rank than {rank}; ingest the traces again")
        return table

    def placed(self, table: pa.Table, rank: int) -> tuple[set[int], set[int]]:
        """Return the groups in which a table's events give the place of `rank`, and those in which any gives another's.

        Both are empty where the table lacks the columns. A message gives its peer's place, a broadcast its root's.
        """
        if not {"group", "group_rank"} <= set(table.schema.names):
            return set(), set()
        group, place = (null_as(table.column(c), -1) for c in ("group", "group_rank"))
        mine = {n: self.groups[n].ranks for n in self.record(rank).groups if n >= 0}
        own = {n: ranks.index(rank) for n, ranks in mine.items() if rank in ranks}
        pairs = np.unique(np.stack([group, place])[:, (group >= 0) & (place >= 0)], axis=1).T.tolist()
        return {g for g, p in pairs if own.get(g) == p}, {g for g, p in pairs if own.get(g) != p}

    def verified(self) -> "Run":
        """Return this run after a check that its manifest was written for all its tables; InputError if not for one."""
        for record in self.ranks:
            self._verify(record)
        return self

    def _verify(self, record: RankRecord) -> None:
        if record.table_sha256 and record.rank not in self._verified:
            verify(self.folder / record.table, record.table_sha256)
            self._verified.add(record.rank)

    def _read(self, path: Path, rank: int, columns: list[str]) -> tuple[pa.Table, set[str]]:
        """Return those `columns` of a rank's table that are stored, and the names of all stored ones.

        Of a run of few events the columns stay in memory: an analysis reads a rank up to ten times.
        """
        kept = self.kept.setdefault(path, {}) if self._is_small else {}
        if not kept or any(kept.get(c, 0) is None for c in columns):
            with pq.ParquetFile(path, memory_map=True) as file:
                names = file.schema_arrow.names
                if len(set(names)) < len(names):
                    raise ValueError("a column is there twice")
                table = self._stored(file, path, rank, [c for c in columns if c in names])
            if not self._is_small:
                return table, set(names)
            kept |= dict.fromkeys(set(names) - kept.keys())
            kept |= {c: table.column(c) for c in table.column_names}
        return pa.table({c: kept[c] for c in columns if c in kept}), set(kept)

    @cached_property
    def _is_small(self) -> bool:
        return self.spans is None and sum(r.events for r in self.ranks) <= MOST_KEPT_EVENTS

    def _stored(self, file: pq.ParquetFile, path: Path, rank: int, columns: list[str]) -> pa.Table:
        """Return the stored columns of a rank's table, within its span if any: other groups of rows are not read.

        Only a span is read through `pyarrow.dataset`, which imports pandas, half a second.
        """
        if self.spans is None:
            return file.read(columns, use_threads=False)
        begin, end = self.spans[rank]
        within = [("ts", ">=", begin), ("ts", "<", end)]
        return pq.read_table(path, columns=columns, memory_map=True, use_threads=False, filters=within)

    def last_ns(self) -> int:
        """Return when the last event of the lowest rank began, by its clock, ns; 0 where none was recorded."""
        for record in self.ranks[:1]:
            begun = self.events(record.rank, ["ts"]).column("ts")
            return int(begun[-1].as_py()) if len(begun) else 0
        return 0

    def between(self, spans: Mapping[int, tuple[int, int]]) -> "Run":
        """Return the part of this run that each rank of `spans` recorded in its half-open time, ns; no other rank."""
        kept = tuple(replace(r, windows=(), window_names=()) for r in self.ranks if r.rank in spans)
        part = replace(self, ranks=kept, spans=dict(spans))
        part.__dict__["_verified"] = self._verified  # the same tables: their hashes are checked once
        return part

    def slowrank(self, **cut: Any) -> SlowRankFinding:
        """Return the finding of `tracekit.slowrank` of this run, with its options and errors."""
        found: SlowRankFinding = _public("slowrank")(self, **cut)
        return found

    def whatif(self, fix: Sequence[str] = (), **cut: Any) -> WhatIfFinding:
        """Return what fixes would save: `tracekit.whatif` of this run, with its options and errors."""
        found: WhatIfFinding = _public("whatif")(self, fix, **cut)
        return found

    def breakdown(self, **cut: Any) -> BreakdownFinding:
        """Return what steps consist of: `tracekit.breakdown` of this run, with its options and errors."""
        found: BreakdownFinding = _public("breakdown")(self, **cut)
        return found

    def operations(self, **cut: Any) -> pa.Table:
        """Return all communication, one row an operation: `tracekit.operations` of this run."""
        return _public("operations")(self, **cut)

    def _within_world(self, table: pa.Table) -> pa.Table:
        """Return `table` without peers that the job does not have: a damaged number is not evidence."""
        for name in ("src_rank", "dst_rank"):
            if self.world_size is None or name not in table.schema.names:
                continue
            column = table.column(name)
            values = null_as(column, -1)
            beyond = values >= self.world_size
            if beyond.any():
                at, unknown = table.schema.get_field_index(name), to_numpy(column.is_null())
                table = table.set_column(at, EVENTS.field(name), from_numpy(values, beyond | unknown))
        return table


def _public(name: str) -> Any:
    """Return the function of that name which users call: this module is below the analyses and imports none of them."""
    return getattr(import_module("tracekit"), name)


def rank_bound(world: int | None, named: Collection[int]) -> int:
    """Return how many ranks a job may have: its `world`, else few enough that those `named` are a part of it."""
    return min(MAX_RANKS, MAX_SPREAD * len(named)) if world is None else world


def is_run(folder: Path) -> bool:
    """Whether `folder` is an ingested run (of any schema number)."""
    try:
        check_regular(folder / MANIFEST)
        with (folder / MANIFEST).open(encoding="utf-8") as file:
            return '"schema": "tracekit.run/' in file.read(MANIFEST_HEAD)
    except (OSError, UnicodeDecodeError):
        return False


def verify(path: Path, sha256: str) -> None:
    """Raise InputError where a file of a run is unreadable or is not the one that its manifest was written for."""
    try:
        check_regular(path)
        with path.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise InputError(
            f"{path}: unreadable ({error.strerror or error}); ingest the traces again"
        ) from error
    if found != sha256:
        raise InputError(
            f"{path}: was changed after it was written (sha256 differs); ingest the traces again"
        )
