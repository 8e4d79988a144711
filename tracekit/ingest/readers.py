"""One input file to tables on disk: its first bytes tell what it is and which reader takes it."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import chain
from pathlib import Path

from tracekit.files.source import ByteStream, Source, sniff
from tracekit.findings import Quality
from tracekit.ingest.identify import rank_of_name
from tracekit.ingest.kineto.trace import FLIGHT_RECORDER, read_kineto
from tracekit.ingest.operation_table import read_operations
from tracekit.ingest.result import FileResult

NOT_OURS = {
    "empty": "it is empty; the recorder wrote nothing",
    "blank": "it holds nothing but white space",
    "html": "it is an HTML or XML page, not a trace (a failed download?)",
    "other": "it is not JSON",
    "zip": "it is a zip archive; unpack it first",
    "xz": "it is xz-compressed; unpack it, or use gzip or zstd",
    "bzip2": "it is bzip2-compressed; unpack it, or use gzip or zstd",
}


def read_file(source: Source, out: Path, progress: Callable[[int], None] | None = None) -> FileResult:
    """Read `source` into Parquet at `out`; whatever is wrong with the file is in the result, never raised."""
    try:
        with source.open() as raw:
            result = _read(ByteStream(raw), source, out, progress)
    except PermissionError:
        result = _rejected(source, "no permission to read it; check its owner and mode")
    except OSError as error:
        result = _rejected(source, f"it cannot be read ({error.strerror or error})")
    except MemoryError:
        result = _rejected(source, "not enough memory to read it")
    if result.status != "ok" and result.rank is None:
        return replace(result, rank=rank_of_name(source.name, source.parent)[0])
    return result


def _rejected(source: Source, reason: str) -> FileResult:
    return FileResult(source.label, "rejected", reason)


def _read(
    stream: ByteStream, source: Source, out: Path, progress: Callable[[int], None] | None
) -> FileResult:
    if stream.kind == "parquet":
        return read_operations(stream, source, out)
    blocks = stream.blocks()
    first = next(blocks, b"")
    kind = sniff(first)
    if stream.damage is not None and not first:
        return _rejected(source, f"{stream.damage}, before any event")
    if kind == "pickle":
        dump = b"pg_config" in first or b"entries" in first
        reason = FLIGHT_RECORDER if dump else "it is a Python pickle, which is never opened here"
        return FileResult(source.label, "foreign", reason)
    if kind != "json":
        return _rejected(source, NOT_OURS.get(kind, "it is not JSON"))
    return read_kineto(stream, _watched(chain([first], blocks), stream, progress), source, out)


def _watched(
    blocks: Iterable[bytes], stream: ByteStream, progress: Callable[[int], None] | None
) -> Iterator[bytes]:
    for block in blocks:
        yield block
        if progress is not None:
            progress(stream.raw_bytes)


def is_flight_recorder(source: Source) -> bool:
    """Whether the file starts like a pickled dump, for a better word to who gave a folder of them."""
    try:
        with source.open() as raw:
            stream = ByteStream(raw)
    except OSError:
        return False
    return stream.kind == "pickle" and (b"pg_config" in stream.head or b"entries" in stream.head)


def quality_of_foreign(labels: list[str]) -> Quality:
    """Make one row for all files set aside: how many, and the first names."""
    names = ", ".join(Path(label).name for label in labels[:3])
    more = f" and {len(labels) - 3} more" if len(labels) > 3 else ""
    return Quality("foreign_files", None, len(labels), f"not traces, left alone: {names}{more}")
