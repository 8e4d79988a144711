"""Which files may be dumps, and the bytes of one of them. Used by `load`."""

import os
import re
from collections.abc import Collection, Iterable, Sequence
from io import BytesIO
from pathlib import Path
from typing import Final

from tracekit.errors import InputError
from tracekit.files.discover import Found, Wanted, discover
from tracekit.files.rival_recordings import unpacked
from tracekit.files.source import ByteStream, compression_of
from tracekit.thresholds.dumps import MAX_DUMP_BYTES

_NO_DUMP = (".log", ".txt", ".md", ".yaml", ".yml", ".csv", ".parquet", ".html", ".py")
"""Ends of names that no recorder gives a dump; any other name may be a dump's, also compressed."""
_TRACES = (".json.gz", ".json.zst", ".pt.trace.json")
"""Ends of names that profilers give to traces."""
_LOG_NAME = re.compile(r"\.(?:log|out|err|txt)(?:\.\d+)?$|^std(?:out|err)$|^slurm-\d+")
"""Names that launchers and schedulers give to the output of a job."""
HOW_TO_DUMP: Final = (
    "for dumps start the job with TORCH_FR_BUFFER_SIZE=2000 (earlier TORCH_NCCL_TRACE_BUFFER_SIZE), "
    "TORCH_NCCL_DUMP_ON_TIMEOUT=1 and TORCH_FR_DUMP_TEMP_FILE=/a/shared/folder/rank_ (earlier "
    "TORCH_NCCL_DEBUG_INFO_TEMP_FILE; by default ~/.cache/torch/ or /tmp/nccl_trace_rank_ on each host)"
)
"""What makes NCCL's watchdog write dumps: torch's variables, under their present and earlier names."""


def _may_be_dump(name: str) -> bool:
    low = name.lower()
    return not low.startswith(".") and not low.endswith(_TRACES) and not unpacked(low).endswith(_NO_DUMP)


DUMPS = Wanted(_may_be_dump, part="fr", patterns_name_files=True)


def read_bytes(path: str) -> bytes:
    """Give the bytes of a file, decompressed.

    Raises InputError where it is larger than any dump, and OSError or a backend's own error where it cannot be read.
    """
    if "://" in path:
        import fsspec  # what reads local files need not wait for it

        with fsspec.open(path, "rb") as file:
            data: bytes = file.read(MAX_DUMP_BYTES + 1)
    else:
        with Path(path).open("rb") as file:
            # 0 of a pipe or device; to make room for the greatest dump takes long
            size = os.fstat(file.fileno()).st_size
            data = file.read(min(size or MAX_DUMP_BYTES, MAX_DUMP_BYTES) + 1)
    if compression_of(data) is not None:
        blocks, data = ByteStream(BytesIO(data)).blocks(), b""
        while len(data) <= MAX_DUMP_BYTES and (block := next(blocks, b"")):
            data += block
    if len(data) > MAX_DUMP_BYTES:
        raise InputError(
            f"refused: larger than {MAX_DUMP_BYTES >> 20} MiB; no flight recorder writes that much"
        )
    return data


def find_files(inputs: Sequence[str], without: Collection[str] = ()) -> Found:
    """Return what `inputs` name, one file at least, and what cannot be read; InputError where one names nothing.

    without: files to leave out.
    """
    found = discover(inputs, DUMPS)
    found.sources = [source for source in found.sources if source.label not in without]
    if not found.sources and found.unreadable:
        raise InputError(f"{found.unreadable[0].path}: {found.unreadable[0].reason}")
    if not found.sources:
        count = len(found.foreign)
        what = f"none of the {count} files in there is named as a dump is" if count else "no file in there"
        problem = f"{', '.join(inputs)}: {what}{traces_in_words(found)}{logs_in_words(found.foreign)}"
        raise InputError(f"{problem}; give the folder that holds the dumps")
    return found


def traces_in_words(found: Found) -> str:
    """Say which of the files that were set aside looks like a profiler's trace; empty where none does."""
    traces = [path for path in found.foreign if path.lower().endswith(_TRACES)]
    return f" ({traces[0]} looks like a profiler's trace: `tracekit slowrank` reads it)" if traces else ""


def logs_in_words(paths: Iterable[str]) -> str:
    """Say which of these files seems to be a job's log, and how dumps are recorded; empty where none does."""
    logs = [path for path in paths if _LOG_NAME.search(path.rpartition("/")[2].lower())]
    if not logs:
        return ""
    more = f" and {len(logs) - 1} more look" if len(logs) > 1 else " looks"
    return f" ({logs[0]}{more} like a log, and no line of it reports a hang; {HOW_TO_DUMP})"


def size_of(path: str) -> int:
    """Return the size of a local file, for progress; 0 if it is unknown."""
    try:
        return Path(path).stat().st_size if "://" not in path else 0
    except OSError:
        return 0
