"""Files to one run: copies and second windows of a rank, group numbers across ranks, the manifest's rows."""

import hashlib
import os
import shutil
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from tracekit.arrays import from_ints
from tracekit.errors import InputError
from tracekit.files.discover import Found
from tracekit.findings import Quality, Rejected
from tracekit.ingest.file_result import FileGroup, FileResult, RankTable
from tracekit.ingest.recordings import of_one_job
from tracekit.ingest.write import EventWriter
from tracekit.schema import EVENTS
from tracekit.store import Group, RankRecord, Run
from tracekit.thresholds.ingest import CHUNK_ROWS, MAX_OVERLAP

Claim = tuple[FileResult, RankTable]
Placed = dict[tuple[str, int], int]
"""Number of files whose events the table of a rank holds, by file and rank."""


@dataclass
class _Merged:
    rejected: list[Rejected] = field(default_factory=list)
    quality: list[Quality] = field(default_factory=list)
    chosen: dict[int, list[Claim]] = field(default_factory=dict)  # windows of a rank in order of time


def merge(
    results: list[FileResult], folder: Path, found: Found, job: int | None = None
) -> tuple[Run, Placed]:
    """Put the tables of `results` in place under `folder` and return them as a run that is not saved yet.

    Tables elsewhere stay where they are as well. Also returns of how many files each table is, by file and rank.
    found: the recorded runs that the files are of; they name hosts where files do not, and the mesh. job: which one is
    wanted, where the files are of several. Raises InputError where they are and nobody chose, UsageError where there is
    no job of that number.
    """
    merged = _Merged()
    results, number_of_job = of_one_job(results, {r.label: found.run_of(r.label) for r in results}, job)
    runs = [found.runs[f] for f in sorted({found.run_of(r.label) for r in results if r.tables} - {""})]
    hosts = {rank: host for run in runs for rank, host in run.hosts.items()}
    hints = [run.mesh_hint for run in runs if run.mesh_hint is not None]
    merged.quality.extend(row for result in results for row in result.quality)
    merged.rejected.extend(Rejected(r.label, r.reason, r.rank) for r in results if r.status == "rejected")
    _choose(results, merged)
    hints = hints or _hints(merged)
    world = _world_size(merged, hints)
    _drop_strangers(merged, world)
    groups = _groups(merged, world)
    number = {g.ranks: g.group for g in groups}
    (folder / "events").mkdir()
    records = tuple(
        _record(rank, claims, folder, number, hosts) for rank, claims in sorted(merged.chosen.items())
    )
    run = Run(
        folder=folder,
        ranks=records,
        groups=groups,
        rejected=tuple(sorted(merged.rejected, key=lambda r: r.path)),
        quality=tuple(sorted(merged.quality, key=lambda q: (q.path or "", q.kind, q.detail))),
        world_size=world,
        mesh_hint=hints[0] if len(hints) == 1 else None,
        job=job if number_of_job is None else None,
        chosen=job is not None and number_of_job is not None,
    )
    placed = {(r.label, rank): len(claims) for rank, claims in merged.chosen.items() for r, _ in claims}
    return run, placed


def _hints(merged: _Merged) -> list[dict[str, Any]]:
    hints: list[dict[str, Any]] = []
    for claims in merged.chosen.values():
        for result, _ in claims:
            if result.mesh_hint is not None and result.mesh_hint not in hints:
                hints.append(result.mesh_hint)
    return hints


def _choose(results: list[FileResult], merged: _Merged) -> None:
    """Decide which files count for each rank: windows of one recording are joined, else the fullest file is kept."""
    claims: dict[int, list[Claim]] = defaultdict(list)
    for result in results:
        for table in result.tables:
            claims[table.rank].append((result, table))
    for rank, several in claims.items():
        alone = _without_copies(several, merged)
        alone.sort(key=lambda c: (c[1].first, c[0].label))
        if len(alone) > 1 and (clash := _clash(alone)):
            best = max(alone, key=lambda c: (c[1].events, c[0].label))
            for result, _ in alone:
                if result is not best[0]:
                    reason = f"rank {rank} is also claimed by {best[0].label}, which holds more and {clash}"
                    merged.rejected.append(Rejected(result.label, reason, rank))
            alone = [best]
        elif len(alone) > 1:
            names = ", ".join(result.label for result, _ in alone)
            detail = f"windows of rank {rank} read as one: {names}"
            merged.quality.append(Quality("joined_windows", alone[0][0].label, len(alone), detail))
        merged.chosen[rank] = alone


def _clash(windows: list[Claim]) -> str:
    """Why files of one rank are no windows of one recording; empty where they are."""
    if len({table.world_size for _, table in windows}) > 1:
        return "has another world size"
    for (_, before), (_, after) in pairwise(windows):
        shorter = min(before.last - before.first, after.last - after.first)
        if before.last - after.first > MAX_OVERLAP * shorter:
            return "covers the same time"
    return ""


def _without_copies(several: list[Claim], merged: _Merged) -> list[Claim]:
    kept: dict[str, Claim] = {}
    for result, table in sorted(several, key=lambda c: c[0].label):
        if result.sha256 in kept:
            detail = f"the same bytes as {kept[result.sha256][0].label}, read once"
            merged.quality.append(Quality("duplicate_file", result.label, 1, detail))
        else:
            kept[result.sha256] = (result, table)
    return list(kept.values())


def _drop_strangers(merged: _Merged, world: int | None) -> None:
    """Reject the files of ranks that the job cannot have: another job's, or a damaged number."""
    for rank in [r for r in merged.chosen if world is not None and r >= world]:
        for result, _ in merged.chosen.pop(rank):
            reason = (
                f"its rank {rank} is beyond the job's {world} ranks: another job's file, or a damaged one"
            )
            merged.rejected.append(Rejected(result.label, reason, rank))


def _groups(merged: _Merged, world: int | None) -> tuple[Group, ...]:
    """The process groups that the files tell, by number; one with a member beyond the world is dropped and counted."""
    names: dict[tuple[int, ...], set[str]] = defaultdict(set)
    descs: dict[tuple[int, ...], set[str]] = defaultdict(set)
    beyond: Counter[str] = Counter()
    for claims in merged.chosen.values():
        for result, table in claims:
            for group in table.groups:
                if world is not None and group.ranks and group.ranks[-1] >= world:
                    beyond[result.label] += 1
                    continue
                names[group.ranks].update(group.names)
                descs[group.ranks].update(group.descs)
    detail = (
        f"process groups with members beyond the job's {world} ranks; their operations belong to no group"
    )
    merged.quality.extend(Quality("group_beyond_world", f, n, detail) for f, n in sorted(beyond.items()))
    return tuple(
        Group(i, ranks, _text(names[ranks]), _text(descs[ranks])) for i, ranks in enumerate(sorted(names))
    )


def _record(
    rank: int, claims: list[Claim], folder: Path, number: dict[tuple[int, ...], int], hosts: dict[int, str]
) -> RankRecord:
    """Put the table of a rank in place and describe it; `number` gives the row of GROUPS by members."""
    name = f"events/rank-{rank:06d}.parquet"
    groups = _place(claims, folder / name)
    first = claims[0][0]
    digest = first.sha256
    if len(claims) > 1:
        digest = hashlib.sha256("".join(r.sha256 for r, _ in claims).encode()).hexdigest()
    skipped: Counter[str] = Counter()
    for _, table in claims:
        skipped.update(table.not_stored)
    return RankRecord(
        rank=rank,
        path=first.label,
        host=next((t.host for _, t in claims if t.host), None) or hosts.get(rank),
        world_size=next((t.world_size for _, t in claims if t.world_size), None),
        format=first.format,
        sha256=digest,
        bytes=sum(r.bytes for r, _ in claims),
        events=sum(t.events for _, t in claims),
        table=name,
        truncated=any(t.truncated for _, t in claims),
        groups=tuple(number.get(g.ranks, -1) for g in groups),
        not_stored=dict(sorted(skipped.items())),
        windows=tuple(table.first for _, table in claims) if len(claims) > 1 else (),
    )


def _place(claims: list[Claim], path: Path) -> list[FileGroup]:
    """Move one table to `path`, or write several as one; returns the groups its numbers mean."""
    by_table: dict[str, list[Claim]] = defaultdict(list)
    for claim in claims:
        by_table[claim[1].path].append(claim)
    for result, table in claims:
        if len(by_table[table.path]) != table.parts:
            raise InputError(
                f"{result.label}: the run no longer holds its events alone; ingest all traces again, without --append"
            )
    if len(by_table) == 1:
        _put(Path(claims[0][1].path), path)
        return _groups_in(claims)
    groups = _groups_in(claims)
    places = {group.ranks: place for place, group in enumerate(groups)}
    writer = EventWriter(path)
    at = EVENTS.get_field_index("group")
    for table_path, held in by_table.items():
        rows = from_ints([places[g.ranks] for g in _groups_in(held)], np.int32)
        with pq.ParquetFile(table_path) as file:
            for batch in file.iter_batches(batch_size=CHUNK_ROWS, use_threads=False):
                writer.add(
                    batch.set_column(at, EVENTS.field("group"), rows.take(batch.column("group"))).cast(EVENTS)
                )
    writer.close(lambda table: table)
    return groups


def _put(table: Path, path: Path) -> None:
    """Move a table that was just written to `path`; one of another run stays there as well."""
    if table.parent == path.parent.parent:
        table.rename(path)
        return
    try:
        os.link(table, path)
    except OSError:  # a file system without links
        shutil.copyfile(table, path)


def _groups_in(claims: list[Claim]) -> list[FileGroup]:
    """The groups that the numbers in one table mean, which holds the events of all `claims`."""
    if len(claims) == 1:
        return list(claims[0][1].groups)
    first: dict[tuple[int, ...], FileGroup] = {}
    for _, table in claims:
        for group in table.groups:
            first.setdefault(group.ranks, group)
    return list(first.values())


def _world_size(merged: _Merged, hints: list[dict[str, Any]]) -> int | None:
    """Ranks of the job as most files tell them, else as the one mesh does; None where nothing tells."""
    by_rank = [[t.world_size for _, t in claims if t.world_size] for claims in merged.chosen.values()]
    said = Counter(sizes[0] for sizes in by_rank if sizes)
    if not said:
        return prod(hints[0]["sizes"].values()) if len(hints) == 1 else None
    return max(said, key=lambda n: (said[n], n))


def _text(values: set[str]) -> tuple[str, ...]:
    """Sorted, and valid Unicode: JSON can spell half a surrogate pair."""
    return tuple(sorted({v.encode("utf-8", "replace").decode("utf-8") for v in values}))
