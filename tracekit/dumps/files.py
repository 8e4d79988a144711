"""Which files may be dumps, and the bytes of one of them. Used by `load`."""

import os
from collections.abc import Sequence
from pathlib import Path

from tracekit.errors import InputError
from tracekit.files.discover import Found, Wanted, discover
from tracekit.thresholds.dumps import MAX_DUMP_BYTES

_NO_DUMP = (".log", ".txt", ".md", ".yaml", ".yml", ".csv", ".parquet", ".html", ".py", ".gz", ".zst")
"""Ends of names that no recorder gives a dump; any other name may be a dump's."""
_TRACES = (".json.gz", ".json.zst", ".pt.trace.json")
"""Ends of names that profilers give to traces."""
DUMPS = Wanted(
    lambda name: not name.startswith(".") and not name.lower().endswith(_NO_DUMP),
    part="fr",
    patterns_name_files=True,
)


def read_bytes(path: str) -> bytes:
    """Give the bytes of a file.

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
    if len(data) > MAX_DUMP_BYTES:
        raise InputError(
            f"refused: larger than {MAX_DUMP_BYTES >> 20} MiB; no flight recorder writes that much"
        )
    return data


def find_files(inputs: Sequence[str]) -> Found:
    """Return what `inputs` name, one file at least, and what cannot be read; InputError where one names nothing."""
    found = discover(inputs, DUMPS)
    if not found.sources and found.unreadable:
        raise InputError(f"{found.unreadable[0].path}: {found.unreadable[0].reason}")
    if not found.sources:
        count = len(found.foreign)
        what = f"none of the {count} files in there is named as a dump is" if count else "no file in there"
        told = f"{', '.join(inputs)}: {what}{traces_told(found)}"
        raise InputError(f"{told}; give the folder that holds the dumps")
    return found


def traces_told(found: Found) -> str:
    """Say which of the files that were set aside looks like a profiler's trace; empty where none does."""
    traces = [path for path in found.foreign if path.lower().endswith(_TRACES)]
    return f" ({traces[0]} looks like a profiler's trace: `tracekit slowrank` reads it)" if traces else ""


def size_of(path: str) -> int:
    """Give the size of a local file, for progress; 0 where it cannot be told."""
    try:
        return Path(path).stat().st_size if "://" not in path else 0
    except OSError:
        return 0
