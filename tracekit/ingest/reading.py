"""Reads all files of an input, in worker processes where a damaged one may kill the process that reads it."""

import mmap
import threading
import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final, cast

import numpy as np

from tracekit.errors import OutputError
from tracekit.files.source import Source
from tracekit.ingest.file_result import FileGroup, FileResult
from tracekit.ingest.kineto.compiled.scanner_code import prepare
from tracekit.ingest.readers import read_file
from tracekit.thresholds.ingest import (
    LOOK_SECONDS,
    READER_BYTES,
    READER_SECONDS,
    WORTH_SCANNING,
)
from tracekit.workers import Engine, Limits, on_this_machine


@dataclass(frozen=True)
class ProgressEvent:
    """Progress of reading: files and raw bytes done and in total, and the file last read from.

    note: a sentence about preparation, empty while files are read.
    """

    done_files: int
    total_files: int
    done_bytes: int
    total_bytes: int
    path: str
    note: str = ""


Progress = Callable[[ProgressEvent], None]

PARTS: Final = "part-*"
"""Names of the tables of files, until the selected ones are in their places."""
LIMITS: Final = Limits(
    seconds=READER_SECONDS,
    memory=READER_BYTES,
    chunk=1,
    slow="reading it took hours: no trace needs that",
    big="not enough memory to read it",
    broken="reading it killed the process that tried: it is damaged in a way that a parser does not survive",
)
"""Bounds on reading one trace."""


def read_files(
    sources: Sequence[Source],
    folder: Path,
    jobs: int,
    progress: Progress | None,
    engine: Engine | None = None,
) -> list[FileResult]:
    """Return the result of each of `sources`, their tables written to parts of `folder`.

    engine: reads the files; without one `jobs` processes of this machine do. A caller with threads cannot be forked:
    with one job its files are read in this process, where a file that kills its reader kills the caller; with several,
    processes are spawned.
    """
    reports = _Told(sources, progress)
    expected = sum(s.json_size for s in sources if s.json_size >= WORTH_SCANNING)
    alone = threading.active_count() == 1
    if engine is None:
        prepare(expected, reports.note)
        if jobs == 1 and not alone:
            return [reports.read(i, folder / _part(i)) for i in range(len(sources))]
    largest_first = sorted(range(len(sources)), key=lambda i: -sources[i].size)
    tasks = [(i, sources[i]) for i in largest_first]
    shared = reports.counts if alone and engine is None else None
    handler = partial(_FileReader, shared, expected, engine is not None)
    engine = engine or on_this_machine(jobs, "fork" if alone else "spawn")
    results: dict[int, FileResult] = {}
    one: dict[Hashable, Any] = {}
    for number, found in engine(tasks, handler, folder, LIMITS, reports.look):
        i = largest_first[number]
        if isinstance(found, OutputError):
            raise found
        results[i] = (
            _placed(found, folder, one) if isinstance(found, FileResult) else _broken(sources[i], found)
        )
        reports.done(i)
    return [results[i] for i in range(len(sources))]


def _part(index: int) -> str:
    """Return the name of the table of the file with that index."""
    return f"part-{index:06d}"


def _placed(result: FileResult, folder: Path, one: dict[Hashable, Any]) -> FileResult:
    """Return `result` with its tables in `folder`, wherever they were written first.

    one: interns equal objects, since each file lists the members of its groups: 16 384 lists of all ranks take 9 GB.
    """

    def kept(group: FileGroup) -> FileGroup:
        found = one.get(group)
        if found is None:
            found = one[group] = replace(group, ranks=one.setdefault(group.ranks, group.ranks))
        return cast("FileGroup", found)

    tables = [
        replace(t, path=str(folder / Path(t.path).name), groups=tuple([kept(g) for g in t.groups]))
        for t in result.tables
    ]
    return replace(result, tables=tuple(tables))


class _FileReader:
    """Reads one file after the other in a worker, and writes their tables to `folder`.

    counts: how far each file is. expected: bytes of JSON in all. afar: whether nothing was compiled for this machine
    before; a forked worker has what its parent loaded.
    """

    def __init__(self, counts: mmap.mmap | None, expected: int, afar: bool, folder: Path) -> None:
        self._counts, self._folder = counts, folder
        prepare(expected, may_compile=afar)

    def __call__(self, task: tuple[int, Source]) -> FileResult | Exception:
        """Return the result of a file; an exception is a defect of tracekit that must not stop the other files."""
        index, source = task
        part = self._folder / _part(index)

        def tell(count: int) -> None:
            if self._counts is not None:
                self._counts[8 * index : 8 * index + 8] = count.to_bytes(8, "little")

        try:
            return read_file(source, part, tell)
        except OSError as error:
            return OutputError(
                f"{self._folder}: {error.strerror or error}; free some space, or choose another folder"
            )
        except Exception as error:  # noqa: BLE001 (it is reported with the file)
            return RuntimeError(f"a fault of ours, please report it: {type(error).__name__}: {error}"[:300])


def _broken(source: Source, error: Exception) -> FileResult:
    return FileResult(source.label, "rejected", str(error))


class _Told:
    """The progress that was reported to the caller so far."""

    def __init__(self, sources: Sequence[Source], progress: Progress | None) -> None:
        self.counts = mmap.mmap(
            -1, 8 * max(len(sources), 1)
        )  # raw bytes read, by file; shared with forked workers
        self._sources, self._progress = sources, progress
        self._sizes = np.array([s.size for s in sources], np.int64)
        self._open = np.ones(len(sources), bool)  # files not read whole yet
        self._total = int(self._sizes.sum())
        self._finished = 0
        self._whole = self._part = self._most = (
            0  # bytes of files read whole, of others, and the most reported so far
        )
        self._busy = 0
        self._looked = 0.0

    def read(self, index: int, part: Path) -> FileResult:
        """Read a file in this process, and report it."""

        def tell(count: int) -> None:
            self.counts[8 * index : 8 * index + 8] = count.to_bytes(8, "little")
            self.look()

        result = read_file(self._sources[index], part, tell)
        self.done(index)
        return result

    def done(self, index: int) -> None:
        """Count a file as read whole."""
        self._finished += int(self._open[index])
        self._open[index] = False
        self._whole += self._sources[index].size
        self.look(index)

    def note(self, sentence: str) -> None:
        """Report what is done before any file is read."""
        if self._progress is not None:
            self._progress(ProgressEvent(0, len(self._sizes), 0, self._total, "", sentence))

    def look(self, index: int | None = None) -> None:
        """Report how far all files are; `index` is the file just finished."""
        if self._progress is None:
            return
        now = time.monotonic()
        if now - self._looked >= LOOK_SECONDS:  # to look at all files for each would take quadratic time
            self._looked = now
            read = np.frombuffer(self.counts, np.int64)[: len(self._sizes)]
            self._part = int(np.minimum(read, self._sizes)[self._open].sum())
            busy = np.flatnonzero(self._open & (read > 0))
            self._busy = int(busy[0]) if len(busy) else self._busy
        elif index is None:
            return
        self._most = max(self._most, min(self._whole + self._part, self._total))
        label = self._sources[self._busy if index is None else index].label
        event = ProgressEvent(self._finished, len(self._sizes), self._most, self._total, label)
        self._progress(event)
