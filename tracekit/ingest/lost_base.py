"""Puts files that lost their base time on the clock of the other files.

Kineto counts the times of a file from `baseTimeNanoseconds`, and may write that behind the events: a file that is cut
off has lost it, and its times lie decades before those of its peers. Newer versions take the begin of a period of three
months, so that the files of a job agree; where they do not, the time of the file stays unknown.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import pyarrow.parquet as pq

from tracekit.findings import Quality
from tracekit.ingest.file_result import FileResult, RankTable
from tracekit.ingest.write import EventWriter, begun_later
from tracekit.schema import EVENTS
from tracekit.thresholds.ingest import CHUNK_ROWS, MAX_TIME_NS

KIND: Final = "base_time_lost"
KINETO: Final = "kineto"


def with_base_times(results: Sequence[FileResult], folder: Path) -> list[FileResult]:
    """Return `results` with the base time of all other files for those that lost their own, and a row about each.

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
