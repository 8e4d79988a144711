"""Distinguishes what a program wrote into a folder from a stranger's files, which are never removed.

Links always count as of other origin, and are not followed.
"""

import re
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

Own = Callable[[str], bool]
"""Whether a program writes a path, relative to its folder."""

_RUN_FILES: Final = {
    "": r"(run|order_plan|timeline)\.json",
    "trace": r"rank\d+\.json\.gz|\.raw-\w+\.json|window_\d+",
    "fr": r"rank_\d+",
    ".fr-tails": r"rank_\d+",
    "log": r"(rank_\d+|launcher)\.log",
    "stacks": r"rank_\d+\.txt",
    "counters": r"[\w.-]+\.prom",
    "metrics": r"(rank\d+|evaluation)\.jsonl",
    "infer": r"rank\d+\.json",
    "shadow": r"rank\d+\.json",
    "memory": r"rank\d+\.pickle",
    "capture": r"stamp\.json|rank\d+\.parquet(\.partial)?|values_rank\d+\.safetensors(\.\w+)?",
    "attempts": r"attempt-\d+",
    "checkpoint": r"\.?step-\d+",
    "checkpoint/step": r"\.metadata|__\d+_\d+\.distcp",
}
"""Names of files in each folder of a run folder."""

_INNER: Final = re.compile(
    r"(\.without-faults-\w+/|attempts/attempt-\d+/|\.?replay(-\w+/run)?/|forwards/)?((exact|error)/)?"
)
"""Runs within a run folder: the baseline of a lag, failed attempts, replays, forwards; also what a kill left."""
_TEMPORARY: Final = re.compile(r"\.(.+)\.tmp")


def of_a_run(path: str) -> bool:
    """Return whether a path is in the contract of the run folder, or is what a killed writer of one leaves."""
    if _INNER.fullmatch(f"{path}/") or _INNER.fullmatch(f"{path}/run/"):
        return True
    folder, _, name = path[_prefix(path) :].rpartition("/")
    if not folder and name in _RUN_FILES:
        return True
    if temporary := _TEMPORARY.fullmatch(name):
        name = temporary[1]
    folder = re.sub(r"^checkpoint/\.?step-\d+$", "checkpoint/step", folder)
    names = _RUN_FILES.get(re.sub(r"^trace/window_\d+$", "trace", folder))
    return names is not None and bool(re.fullmatch(names, name))


def _prefix(path: str) -> int:
    """Return the length of the prefix that names a run within the run."""
    found = _INNER.match(path)
    return found.end() if found else 0


def strangers(folder: Path, own: Own) -> list[str]:
    """Return the paths below a folder, relative to it and sorted, that its program does not write."""
    found = ((str(p.relative_to(folder)), p) for p in folder.rglob("*"))
    return sorted(name for name, path in found if path.is_symlink() or not own(name))


def remove_own(folder: Path, own: Own) -> None:
    """Remove below a folder what its program wrote, and folders that are empty then, itself too; strangers stay."""
    below = sorted(folder.rglob("*"), key=lambda p: len(p.parts), reverse=True)
    for path in below:
        if path.is_symlink() or not own(str(path.relative_to(folder))):
            continue
        with suppress(OSError):  # a folder that holds a stranger's file
            path.rmdir() if path.is_dir() else path.unlink()
    with suppress(OSError):
        folder.rmdir()


def unwritable(folder: Path) -> str | None:
    """Return why nothing can be written into a folder, as on a full disk; None where a byte could."""
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"\0")
            file.flush()
    except OSError as error:
        return error.strerror or str(error)
    return None


def odd_name(folder: Path) -> str | None:
    """Return why no run can be kept in a folder of this path: the libraries for tables take UTF-8 only; None else."""
    try:
        str(folder.absolute()).encode()
    except UnicodeEncodeError:
        return "its path is not UTF-8"
    return None
