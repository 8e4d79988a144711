"""One input file to tables on disk: its first bytes tell what it is and which reader takes it."""

from collections.abc import Callable
from pathlib import Path

from tracekit.findings import Quality
from tracekit.ingest.kineto import read_kineto
from tracekit.ingest.ops import read_operations
from tracekit.ingest.result import FileResult
from tracekit.ingest.source import ByteStream, Source

NOT_OURS = {
    "empty": "it is empty; the recorder wrote nothing",
    "blank": "it holds nothing but white space",
    "html": "it is an HTML or XML page, not a trace (a failed download?)",
    "other": "it is not JSON",
    "zip": "it is a zip archive; unpack it first",
    "xz": "it is xz-compressed; unpack it, or use gzip or zstd",
    "bzip2": "it is bzip2-compressed; unpack it, or use gzip or zstd",
}
FLIGHT_RECORDER = (
    "this is a flight-recorder dump, which holds no timings of events; give the profiler's traces"
)


def read_file(source: Source, out: Path, progress: Callable[[int], None] | None = None) -> FileResult:
    """Read `source` into Parquet at `out`; whatever is wrong with the file is in the result, never raised."""
    try:
        with source.open() as raw:
            stream = ByteStream(raw)
            return _read(stream, source, out, progress)
    except PermissionError:
        reason = "no permission to read it; check its owner and mode"
    except OSError as error:
        reason = f"it cannot be read ({error.strerror or error})"
    except MemoryError:
        reason = "not enough memory to read it"
    return FileResult(source.label, "rejected", reason)


def _read(
    stream: ByteStream, source: Source, out: Path, progress: Callable[[int], None] | None
) -> FileResult:
    if stream.kind == "parquet":
        return read_operations(stream, source, out)
    if stream.kind == "pickle":
        dump = b"pg_config" in stream.head or b"entries" in stream.head or "dump" in source.name
        reason = FLIGHT_RECORDER if dump else "it is a Python pickle, which is never opened here"
        return FileResult(source.label, "foreign", reason)
    if stream.kind in NOT_OURS:
        return FileResult(source.label, "rejected", NOT_OURS[stream.kind])
    result = read_kineto(stream, source, out, progress)
    if stream.kind == "gzip" and result.status == "ok" and stream.damage:
        return result
    return result


def quality_of_foreign(labels: list[str]) -> Quality:
    """One row for all files set aside: how many, and the first names."""
    names = ", ".join(Path(label).name for label in labels[:3])
    more = f" and {len(labels) - 3} more" if len(labels) > 3 else ""
    return Quality("foreign_files", None, len(labels), f"not traces, left alone: {names}{more}")
