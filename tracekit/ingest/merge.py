"""Merges files into one run: places the tables of chosen files, numbers groups across ranks, makes manifest rows.

Kineto counts the times of a file from `baseTimeNanoseconds`, and may write that behind the events: a file that is cut
off has lost it, and its times lie decades before those of its peers. Newer versions take the begin of a period of three
months, so that the files of a job agree; where they do not, the time of the file stays unknown.
"""

import hashlib
import os
import shutil
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow.parquet as pq

from tracekit.arrays import from_ints
from tracekit.errors import InputError
from tracekit.files.discover import Found
from tracekit.findings import Quality, Rejected
from tracekit.ingest.claims import Claim, Claims, names_of
from tracekit.ingest.file_result import FileGroup, FileResult, RankTable
from tracekit.ingest.recordings import of_one_job
from tracekit.ingest.write import EventWriter, begun_later
from tracekit.schema import EVENTS, Group
from tracekit.store import RankRecord, Run, rank_bound
from tracekit.thresholds.ingest import CHUNK_ROWS, MAX_TIME_NS

Placed = dict[tuple[str, int], int]
"""Number of files with events in the table of a rank, by file and rank."""


def merge(
    results: list[FileResult], folder: Path, found: Found, job: int | None = None
) -> tuple[Run, Placed]:
    """Put the tables of `results` in place under `folder` and return them as a run that is not saved yet.

    Tables elsewhere also stay where they are. Also returns the number of files of each table, by file and rank.
    found: the recorded runs that the files are of; they name hosts where files do not, and the mesh. job: which one is
    wanted, if the files are of several. Raises InputError if they are and `job` is None, UsageError if there is no such
    job.
    """
    merged = Claims()
    results, number_of_job = of_one_job(results, {r.label: found.run_of(r.label) for r in results}, job)
    runs = [found.runs[f] for f in sorted({found.run_of(r.label) for r in results if r.tables} - {""})]
    hosts = {rank: host for run in runs for rank, host in run.hosts.items()}
    hints = [run.mesh_hint for run in runs if run.mesh_hint is not None]
    merged.quality.extend(row for result in results for row in result.quality)
    merged.rejected.extend(Rejected(r.label, r.reason, r.rank) for r in results if r.status == "rejected")
    merged.choose(results)
    hints = hints or _hints(merged)
    world = _world_size(merged, hints)
    lists = _lists_of_members(merged)
    bound = rank_bound(world, set(merged.chosen).union(*lists.values()))
    _drop_strangers(merged, bound)
    groups = _groups(merged, bound)
    number = _numbers(lists, groups)
    (folder / "events").mkdir()
    records = tuple(_record(rank, c, folder, number, hosts) for rank, c in sorted(merged.chosen.items()))
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
    placed = {(c.result.label, rank): len(claims) for rank, claims in merged.chosen.items() for c in claims}
    return run, placed


def _lists_of_members(merged: Claims) -> dict[int, tuple[int, ...]]:
    """Return the members of all groups by `id`: files share equal lists, which have as many members as the job."""
    return {id(g.ranks): g.ranks for claims in merged.chosen.values() for c in claims for g in c.table.groups}


def _numbers(lists: dict[int, tuple[int, ...]], groups: Sequence[Group]) -> dict[int, int]:
    """Return the number of each list's group, by `id`; -1 for one that was dropped."""
    number = {g.ranks: g.group for g in groups}
    return {place: number.get(ranks, -1) for place, ranks in lists.items()}


def _hints(merged: Claims) -> list[dict[str, Any]]:
    hints: list[dict[str, Any]] = []
    for claims in merged.chosen.values():
        for hint in (c.result.mesh_hint for c in claims):
            if hint is not None and hint not in hints:
                hints.append(hint)
    return hints


def _drop_strangers(merged: Claims, world: int) -> None:
    """Reject the files of ranks that the job cannot have: another job's, or a damaged number."""
    for rank in [r for r in merged.chosen if r >= world]:
        for claim in merged.chosen.pop(rank):
            reason = (
                f"its rank {rank} is beyond the job's {world} ranks: another job's file, or a damaged one"
            )
            merged.rejected.append(Rejected(claim.result.label, reason, rank))


def _groups(merged: Claims, world: int) -> tuple[Group, ...]:
    """Return the process groups of the files by number; one with a member beyond the world is dropped and counted."""
    names: dict[tuple[int, ...], set[str]] = defaultdict(set)
    descs: dict[tuple[int, ...], set[str]] = defaultdict(set)
    beyond: Counter[str] = Counter()
    listed: dict[int, FileGroup] = {}  # by `id`: files share equal groups
    for claims in merged.chosen.values():
        for claim in claims:
            for group in claim.table.groups:
                if group.ranks and group.ranks[-1] >= world:
                    beyond[claim.result.label] += 1
                else:
                    listed[id(group)] = group
    for group in listed.values():
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
    rank: int,
    claims: Sequence[Claim],
    folder: Path,
    number: dict[int, int],
    hosts: dict[int, str],
) -> RankRecord:
    """Put the table of a rank in place and describe it; `number` gives the row of GROUPS by `id` of the members."""
    name = f"events/rank-{rank:06d}.parquet"
    groups = _place(claims, folder / name)
    first = claims[0].result
    digest = first.sha256
    if len(claims) > 1:
        digest = hashlib.sha256("".join(c.result.sha256 for c in claims).encode()).hexdigest()
    skipped: Counter[str] = Counter()
    for claim in claims:
        skipped.update(claim.table.not_stored)
    return RankRecord(
        rank=rank,
        path=first.label,
        host=next((c.table.host for c in claims if c.table.host), None) or hosts.get(rank),
        world_size=next((c.table.world_size for c in claims if c.table.world_size), None),
        format=first.format,
        sha256=digest,
        bytes=sum(c.result.bytes for c in claims),
        events=sum(c.table.events for c in claims),
        table=name,
        truncated=any(c.table.truncated for c in claims),
        groups=tuple(number[id(g.ranks)] for g in groups),
        not_stored=dict(sorted(skipped.items())),
        windows=tuple(c.begin for c in claims) if len(claims) > 1 else (),
        window_names=names_of(claims),
        device=next((c.table.device for c in claims if c.table.device), ""),
    )


def _place(claims: Sequence[Claim], path: Path) -> list[FileGroup]:
    """Move one table to `path`, or write several as one; returns the groups by its numbers."""
    by_table: dict[str, list[Claim]] = defaultdict(list)
    for claim in claims:
        by_table[claim.table.path].append(claim)
    for claim in claims:
        held = by_table[claim.table.path]
        moved = claim.shift and Path(claim.table.path).parent == path.parent
        if len(held) != claim.table.parts or moved:
            raise InputError(
                f"{claim.result.label}: the run mixes its events with others or changed them; ingest all "
                "traces again, without --append"
            )
    if len(by_table) == 1:
        _put(Path(claims[0].table.path), path)
        return _groups_in(claims)
    groups = _groups_in(claims)
    places = {group.ranks: place for place, group in enumerate(groups)}
    writer = EventWriter(path)
    at = EVENTS.get_field_index("group")
    for table_path, held in by_table.items():
        rows = from_ints([places[g.ranks] for g in _groups_in(held)], np.int32)
        with pq.ParquetFile(table_path) as file:
            for batch in file.iter_batches(batch_size=CHUNK_ROWS, use_threads=False):
                renumbered = batch.set_column(at, EVENTS.field("group"), rows.take(batch.column("group")))
                writer.add(begun_later(renumbered, held[0].shift).cast(EVENTS))
    writer.close(lambda table: table)
    return groups


def _put(table: Path, path: Path) -> None:
    """Move a table that was just written to `path`; a table of another run is linked or copied."""
    if table.parent == path.parent.parent:
        table.rename(path)
        return
    try:
        os.link(table, path)
    except OSError:  # a file system without links
        shutil.copyfile(table, path)


def _groups_in(claims: Sequence[Claim]) -> list[FileGroup]:
    """Return the groups by the numbers in one table, which holds the events of all `claims`."""
    if len(claims) == 1:
        return list(claims[0].table.groups)
    first: dict[tuple[int, ...], FileGroup] = {}
    for claim in claims:
        for group in claim.table.groups:
            first.setdefault(group.ranks, group)
    return list(first.values())


def _world_size(merged: Claims, hints: list[dict[str, Any]]) -> int | None:
    """Return the number of ranks by most files, else by the one mesh; None if it is unknown."""
    by_rank = [
        [c.table.world_size for c in claims if c.table.world_size] for claims in merged.chosen.values()
    ]
    said = Counter(sizes[0] for sizes in by_rank if sizes)
    if not said:
        return prod(hints[0]["sizes"].values()) if len(hints) == 1 else None
    return max(said, key=lambda n: (said[n], n))


def _text(values: set[str]) -> tuple[str, ...]:
    """Return `values` sorted, as valid Unicode: JSON can spell half a surrogate pair."""
    return tuple(sorted({v.encode("utf-8", "replace").decode("utf-8") for v in values}))


KIND: Final = "base_time_lost"
KINETO: Final = "kineto"


def with_base_times(results: Sequence[FileResult], folder: Path) -> list[FileResult]:
    """Return `results` in which each file without a base time has that of all other files, and a row says so.

    folder: where tables were just written; others, of a kept run, stay as they are. The base of a table
    stays None where the others disagree.
    """
    bases = [t.base for r in results if r.format == KINETO for t in r.tables]
    known = {base for base in bases if base is not None}
    return [_with_base(r, known, folder) if any(t.base is None for t in r.tables) else r for r in results]


def _with_base(result: FileResult, known: set[int], folder: Path) -> FileResult:
    """Return a result that lost its base time with that of the others, if `known` holds only one."""
    if not known - {0}:
        return result  # no file names one, or none is left that could
    (base, *others) = sorted(known)
    new = all(Path(t.path).parent == folder for t in result.tables)
    if others or not new or not all(_in_bounds(t, base) for t in result.tables):
        detail = (
            "its base time is not readable, and the other files do not agree about one: its clock is unknown"
        )
        return replace(result, quality=(*result.quality, Quality(KIND, result.label, 1, detail)))
    tables = tuple(_shifted(t, base) for t in result.tables)
    detail = "its base time is not readable; that of the other files is used"
    return replace(result, tables=tables, quality=(*result.quality, Quality(KIND, result.label, 1, detail)))


def _in_bounds(table: RankTable, base: int) -> bool:
    return max(abs(table.first + base), abs(table.last + base)) < MAX_TIME_NS


def _shifted(table: RankTable, base: int) -> RankTable:
    """Return `table` with `base` (ns) added to its times; its file is written again."""
    path = Path(table.path)
    moved = path.with_name(f"{path.name}.moved")
    writer = EventWriter(moved)
    with pq.ParquetFile(path) as file:
        for batch in file.iter_batches(batch_size=CHUNK_ROWS, use_threads=False):
            writer.add(begun_later(batch, base).cast(EVENTS))
    writer.close(lambda rows: rows)
    moved.rename(path)
    return replace(table, first=table.first + base, last=table.last + base, base=base)
