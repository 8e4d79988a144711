"""The formats that ingest reads, one entry each, and the reading of one file by the format in its first bytes.

To add a format, write a reader module and add its entry to FORMATS. A run folder is no file format: `load` opens it
with `manifest.open_run`.
"""

import errno
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path

from tracekit.dumps.load import Progress as SetProgress
from tracekit.files.discover import Wanted
from tracekit.files.source import ByteStream, Source, opening
from tracekit.findings import Quality
from tracekit.ingest.file_result import FLIGHT_RECORDER, FileResult, dump_among_traces
from tracekit.ingest.flight_recorder.reader import read_dumps
from tracekit.ingest.identify import rank_of_name
from tracekit.ingest.kineto.compiled.columns import Unrecognised
from tracekit.ingest.kineto.trace import compiled_reader, read_kineto
from tracekit.ingest.nccl_inspector.reader import INSPECTOR, MARK, of_records, read_records
from tracekit.ingest.nsys.database import MAGIC
from tracekit.ingest.nsys.reader import NSYS, REPORT, REPORT_ENDS, read_databases, set_aside
from tracekit.ingest.operation_table.reader import read_operations
from tracekit.thresholds.ingest import FILES_NAMED

Reader = Callable[[ByteStream, Iterator[bytes], Source, Path], FileResult]
"""Reads the decompressed blocks of a file into Parquet at a path; the result holds any defect of the file."""
SetReader = Callable[
    [Sequence[str], Path, int, int | None, SetProgress | None],
    tuple[list[FileResult], list[Quality], int | None],
]
"""Reads the files of one job in the inputs into Parquet files in a folder, with a number of processes; takes the job's
number or None, and returns it where there are several."""
FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS})
"""Errors of writing only: a full disk, an exhausted quota, a file grown too large, a read-only disk."""
BYTE_ORDER_MARK = b"\xef\xbb\xbf"


@dataclass(frozen=True)
class Format:
    """A kind of input file.

    name: as `RankRecord.format` gives it. ends: names of such files in a folder, lower case; a file that the user
    names may have any name. starts: whether a file's first decompressed bytes are of this format. read: the reader
    of one file. read_set: the reader of all files at once, if a single file is not enough; `read` then returns a
    result with this format's name and no table. quick: gives a reader that is tried first for a file, if there is one;
    it raises Unrecognised where `read` must read the file from its start.
    """

    name: str
    ends: tuple[str, ...]
    starts: Callable[[bytes], bool]
    read: Reader
    read_set: SetReader | None = None
    quick: Callable[[Source], Reader | None] = lambda _source: None


def _is_pickle(head: bytes) -> bool:
    return head.startswith(b"(dp") or (head[:1] == b"\x80" and head[1:2] in b"\x02\x03\x04\x05")


def _text(head: bytes) -> bytes:
    return head.removeprefix(BYTE_ORDER_MARK).lstrip()


FORMATS = (
    Format(
        "operation_table",
        ends=(".parquet",),
        starts=lambda head: head.startswith(b"PAR1"),
        read=read_operations,
    ),
    Format(
        FLIGHT_RECORDER,
        ends=(),
        starts=lambda head: _is_pickle(head) and (b"pg_config" in head or b"entries" in head),
        read=lambda _stream, _blocks, source, _out: dump_among_traces(source.label),
        read_set=read_dumps,
    ),
    Format(
        INSPECTOR,
        ends=(),
        starts=lambda head: MARK in head,
        read=lambda _stream, _blocks, source, _out: of_records(source.label),
        read_set=read_records,
    ),
    Format(
        NSYS,
        ends=(),
        starts=lambda head: head.startswith(MAGIC),
        read=lambda _stream, _blocks, source, _out: set_aside(source.label),
        read_set=read_databases,
    ),
    Format(
        "kineto",
        ends=(".json", ".json.gz", ".json.zst", ".json.zstd", ".trace", ".trace.gz", ".trace.zst"),
        starts=lambda head: _text(head)[:1] in (b"{", b"["),
        read=read_kineto,
        quick=compiled_reader,
    ),
)
"""Every format, in the order in which they are tried."""

REFUSED: tuple[tuple[Callable[[bytes], bool], str], ...] = (
    (lambda head: not head, "it is empty; the recorder wrote nothing"),
    (lambda head: not _text(head), "it holds nothing but white space"),
    (lambda head: head.startswith(b"PK\x03\x04"), "it is a zip archive; unpack it first"),
    (lambda head: head[257:262] == b"ustar", "it is a tar archive; unpack it first"),
    (lambda head: head.startswith(b"7z\xbc\xaf\x27\x1c"), "it is a 7z archive; unpack it first"),
    (lambda head: head.startswith(b"\xfd7zXZ"), "it is xz-compressed; unpack it, or use gzip or zstd"),
    (lambda head: head.startswith(b"BZh"), "it is bzip2-compressed; unpack it, or use gzip or zstd"),
    (
        lambda head: _text(head)[:1] == b"<",
        "it is an HTML or XML page, not a trace (a failed download?)",
    ),
)
"""Known files of no format here: a test of their first bytes, and the reason in the message."""

ARCHIVES = (".zip", ".tar", ".tar.gz", ".tgz", ".tar.zst", ".tar.xz", ".tar.bz2", ".7z")
"""Names of archives, lower case, which are never opened here."""

TRACES = Wanted(lambda name: name.lower().endswith(tuple(e for f in FORMATS for e in f.ends)), part="trace")
"""The files that ingest looks for in folders."""


def format_of(head: bytes) -> Format | None:
    """Return the format of a file that begins with `head` (decompressed); None where unsupported."""
    return next((form for form in FORMATS if form.starts(head)), None)


def format_of_file(source: Source) -> Format | None:
    """Return the format of a file by its first decompressed bytes; None where unknown or unreadable."""
    try:
        return format_of(opening(source))
    except OSError:
        return None


def read_file(source: Source, out: Path, progress: Callable[[int], None] | None = None) -> FileResult:
    """Read `source` into Parquet at `out`; defects of the file are in the result, never raised.

    progress: called with the raw bytes read so far.
    """
    try:
        result = _opened(source, out, progress)
    except PermissionError:
        result = _rejected(source, "no permission to read it; check its owner and mode")
    except OSError as error:
        if error.errno in FULL:
            raise  # the output table cannot be written
        result = _rejected(source, f"it cannot be read ({error.strerror or error})")
    except MemoryError:
        result = _rejected(source, "not enough memory to read it")
    if result.status != "ok" and result.rank is None:
        return replace(result, rank=rank_of_name(source.name, source.folders)[0])
    return result


def _rejected(source: Source, reason: str) -> FileResult:
    return FileResult(source.label, "rejected", reason)


def _opened(source: Source, out: Path, progress: Callable[[int], None] | None) -> FileResult:
    """Read a file by the quick reader of its format, or from the start again by the general one."""
    try:
        with source.open() as raw:
            return _read(ByteStream(raw), source, out, progress, quick=True)
    except Unrecognised:
        with source.open() as raw:
            return _read(ByteStream(raw), source, out, progress, quick=False)


def _read(
    stream: ByteStream, source: Source, out: Path, progress: Callable[[int], None] | None, *, quick: bool
) -> FileResult:
    blocks = stream.blocks()
    first = next(blocks, b"")
    if stream.damage is not None and not first:
        return _rejected(source, f"{stream.damage}, before any event")
    form = format_of(first)
    if form is not None:
        read = (form.quick(source) if quick else None) or form.read
        result = read(stream, _watched(chain([first], blocks), stream, progress), source, out)
        return result if result.format else replace(result, format=form.name)
    if source.name.lower().endswith(REPORT_ENDS):
        return _rejected(source, REPORT)
    if _is_pickle(first):
        return FileResult(source.label, "foreign", "it is a Python pickle, which is never opened here")
    return _rejected(source, next((reason for known, reason in REFUSED if known(first)), "it is not JSON"))


def _watched(
    blocks: Iterable[bytes], stream: ByteStream, progress: Callable[[int], None] | None
) -> Iterator[bytes]:
    for block in blocks:
        yield block
        if progress is not None:
            progress(stream.raw_bytes)


def quality_of_foreign(labels: Sequence[str]) -> Quality:
    """Return one row for all files set aside: how many, and the first names."""
    names = ", ".join(Path(label).name for label in labels[:FILES_NAMED])
    more = f" and {len(labels) - FILES_NAMED} more" if len(labels) > FILES_NAMED else ""
    return Quality("foreign_files", None, len(labels), f"not traces, left alone: {names}{more}")
