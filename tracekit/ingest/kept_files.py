"""The list of input files in a kept run, so that further files can join it and none is read twice.

    DIR/files.json   {"schema": "tracekit.files/1", "groups": each process group of a file, once; "files": a
                     FileResult per file, its groups by number; "found": where they were found; "sha256"}

A file is recognised by its name and size. Its events are in the table of its rank; a file that was displaced by another
one has none there.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

import msgspec

from tracekit.errors import InputError
from tracekit.files.discover import Found
from tracekit.files.source import Source
from tracekit.ingest.far_run import open_kept
from tracekit.ingest.file_result import FileGroup, FileResult, RankTable
from tracekit.ingest.merge import Placed
from tracekit.manifest import checked_hint
from tracekit.small_files import read_small
from tracekit.store import verify
from tracekit.thresholds.ingest import MAX_COUNT, MAX_RANKS, MAX_RUN_MANIFEST, MAX_TIME_NS

FILES: Final = "files.json"
_SCHEMA: Final = "tracekit.files/1"


@dataclass(frozen=True)
class _File:
    """A result with tables without groups, and the numbers of their groups, table by table."""

    result: FileResult
    groups: tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class _Document:
    schema: str
    groups: tuple[FileGroup, ...]
    files: tuple[_File, ...]
    found: Found
    sha256: str = ""


@dataclass(frozen=True)
class KeptFiles:
    """The files of a run: their results, with tables in the run's folder, and how they were found."""

    results: tuple[FileResult, ...] = ()
    found: Found = field(default_factory=Found)

    def new(self, found: Found) -> list[Source]:
        """Return the files that the run does not hold yet, or not in that size."""
        known = {source.uri: source.size for source in self.found.sources}
        return [source for source in found.sources if known.get(source.uri) != source.size]

    def joined(self, results: Sequence[FileResult], found: Found) -> tuple[list[FileResult], Found]:
        """Return the results of all files, with new ones in place of older ones, and where all were found."""
        by_label = {r.label: r for r in (*self.results, *results)}
        sources = {s.uri: s for s in (*self.found.sources, *found.sources)}
        unreadable = {
            r.path: r for r in (*self.found.unreadable, *found.unreadable) if r.path not in by_label
        }
        return [by_label[label] for label in sorted(by_label)], Found(
            sources=[sources[uri] for uri in sorted(sources)],
            named=self.found.named | found.named,
            foreign=sorted({*self.found.foreign, *found.foreign}),
            unreadable=[unreadable[path] for path in sorted(unreadable)],
            runs=self.found.runs | found.runs,
            ingested=found.ingested,
        )


def save_files(folder: Path, results: Sequence[FileResult], found: Found, placed: Placed) -> None:
    """Write the list of the files of a run into its folder; OSError where that is impossible."""
    number: dict[FileGroup, int] = {}
    files = []
    for result in results:
        groups = tuple(
            tuple(number.setdefault(g, len(number)) for g in table.groups) for table in result.tables
        )
        tables = tuple(_stored(result.label, table, placed) for table in result.tables)
        files.append(_File(replace(result, tables=tables), groups))
    document = _Document(_SCHEMA, tuple(number), tuple(files), found)
    whole = replace(document, sha256=_digest(document))
    (folder / FILES).write_bytes(_encoded(whole))


def kept_files(folder: Path, jobs: int = 1) -> KeptFiles:
    """Return the files of the run in a folder; InputError where the run or its list is damaged or missing."""
    run = open_kept(folder, jobs)
    for record in run.ranks:
        verify(folder / record.table, record.table_sha256)
    if not (folder / FILES).exists():
        raise InputError(
            f"{folder}: nothing can be appended, as its files are of a format that is read as a whole, or the list of "
            "them was lost; ingest all traces again, without --append"
        )
    try:
        document = _read(folder / FILES)
        tables = {r.rank: str(folder / r.table) for r in run.ranks}
        results = tuple(_restored(file, document.groups, tables) for file in document.files)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError) as error:
        raise InputError(
            f"{folder}: its list of input files is damaged ({str(error)[:200]}); "
            "ingest all traces again, without --append"
        ) from error
    return KeptFiles(results, document.found)


def _read(path: Path) -> _Document:
    """The document in a file; ValueError or OSError where there is none that we wrote."""
    document = msgspec.convert(json.loads(read_small(path, MAX_RUN_MANIFEST)), _Document, str_keys=True)
    if document.schema != _SCHEMA or document.sha256 != _digest(replace(document, sha256="")):
        raise ValueError("it was changed")
    return document


def _digest(document: _Document) -> str:
    return hashlib.sha256(_encoded(document)).hexdigest()


def _encoded(document: _Document) -> bytes:
    """Return the document as ASCII JSON, deterministic; a path may hold bytes that are no UTF-8 (PEP 383)."""
    plain = msgspec.to_builtins(document, str_keys=True, order="deterministic")
    return json.dumps(plain, separators=(",", ":")).encode("ascii")


def _stored(label: str, table: RankTable, placed: Placed) -> RankTable:
    """Return a table as it is written: without groups; its rank gives its place."""
    return replace(table, groups=(), path="", parts=placed.get((label, table.rank), 0))


def _restored(file: _File, groups: Sequence[FileGroup], tables: dict[int, str]) -> FileResult:
    """Return a result as it was before it was written; ValueError or KeyError for a value that we never write."""
    made = []
    for table, numbers in zip(file.result.tables, file.groups, strict=True):
        path = tables[table.rank] if table.parts else ""
        made.append(replace(table, path=path, groups=tuple(groups[n] for n in numbers)))
        _check(made[-1])
    return replace(file.result, tables=tuple(made), mesh_hint=checked_hint(file.result.mesh_hint))


def _check(table: RankTable) -> None:
    """Raise ValueError for a number that we never write."""
    members = [r for group in table.groups for r in (group.ranks[0], group.ranks[-1]) if group.ranks]
    ranks = (table.rank, *members, (table.world_size or 1) - 1)
    counts = (table.events, table.parts, *table.not_stored.values())
    if (
        not all(0 <= r < MAX_RANKS for r in ranks)
        or not all(0 <= n < MAX_COUNT for n in counts)
        or not all(-MAX_TIME_NS <= t < MAX_TIME_NS for t in (table.first, table.last))
    ):
        raise ValueError(f"a number of rank {table.rank} is out of bounds")
