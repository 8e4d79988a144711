"""The folder that a run is built in: it replaces its target whole or not at all, whenever the process ends.

A folder under construction is locked by the process that builds it. This separates the remains of a killed process from
a folder that another one is building; the next call removes them, or puts back the run that was about to be replaced.
"""

import os
import re
import shutil
import tempfile
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from tracekit.errors import InputError, OutputError
from tracekit.files.source import Source
from tracekit.locked_folders import LOCK, literal, locked, sweep
from tracekit.own_files import odd_name, strangers, unwritable
from tracekit.store import MANIFEST, is_run
from tracekit.thresholds.ingest import SPILLED_PER_JSON, STORED_PER_JSON

TEMPORARY: Final = "tracekit-run-"
_WRITTEN = re.compile(
    rf"{re.escape(MANIFEST)}|files\.json|groups\.parquet|events|events/rank-\d{{6,9}}\.parquet"
)
"""Every path below a run folder that tracekit writes."""


def is_written(path: str) -> bool:
    """Whether tracekit writes a path, relative to its run folder."""
    return _WRITTEN.fullmatch(path) is not None


def refuse_foreign(out: Path) -> None:
    """Raise InputError if a run may not be put at `out`: a link, or other programs' files.

    Raises OutputError where nothing can be written there.
    """
    if why := odd_name(out):
        raise InputError(f"{out}: {why}; name another folder")
    if out.is_symlink():
        raise InputError(f"{out}: is a symbolic link; name the folder itself")
    if out.exists() and not is_run(out) and (not out.is_dir() or any(out.iterdir())):
        raise InputError(f"{out}: exists and is not an ingested run; name another folder, or remove it")
    parent = out.absolute().parent
    if not parent.is_dir():
        raise InputError(f"{out}: the folder to put it in does not exist; create it first")
    if why := unwritable(parent):
        raise OutputError(f"{out}: cannot be written ({parent}: {why}); name another folder")
    if foreign := strangers(out, is_written):
        raise InputError(
            f"{out}: holds {foreign[0]}, which tracekit did not write; move it away, or name another folder"
        )


def check_room(folder: Path, sources: Sequence[Source], jobs: int) -> None:
    """Raise OutputError where the disk of `folder` has less free than the tables of `sources` take while they are made.

    jobs: files that are read at once, each of them sorted on disk.
    """
    sizes = sorted((source.json_size for source in sources), reverse=True)
    needed = int(STORED_PER_JSON * sum(sizes) + SPILLED_PER_JSON * sum(sizes[:jobs]))
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise OutputError(
            f"{folder.parent}: reading takes about {needed / 1e9:.1f} GB there for a while, and {free / 1e9:.1f} GB "
            "are free; free some space, name another folder by TMPDIR (or --out), or give fewer files"
        )


class Lease:
    """A temporary run folder: it is removed when the lease is no longer referenced, or when the process ends."""

    def __init__(self, folder: Path, lock: int | None) -> None:
        self._end = weakref.finalize(self, _give_back, folder, lock, os.getpid())

    def end(self) -> None:
        """Remove the folder now."""
        self._end()


def _give_back(folder: Path, lock: int | None, owner: int) -> None:
    if os.getpid() != owner:  # a forked child only has a copy
        return
    shutil.rmtree(folder, ignore_errors=True)
    if lock is not None:
        os.close(lock)


@contextmanager
def building(out: Path | None) -> Iterator[tuple[Path, Lease | None]]:
    """Lend a folder to build a run in. It replaces `out` at the end, and is removed on error.

    Without `out` the folder lives as long as its lease, which the run holds.
    """
    parent = Path(tempfile.gettempdir()) if out is None else out.absolute().parent
    prefix = TEMPORARY if out is None else f".{out.name}."
    if out is not None:
        _put_back(out)
    sweep(parent, prefix)
    folder = Path(tempfile.mkdtemp(prefix=prefix, suffix="" if out is None else ".partial", dir=parent))
    lock = locked(folder)
    lease = Lease(folder, lock) if out is None else None
    try:
        yield folder, lease
        if out is not None:
            (folder / LOCK).unlink()
            folder.chmod(0o755)
            _replace(folder, out)
    except BaseException:
        if lease is not None:
            lease.end()
        shutil.rmtree(folder, ignore_errors=True)
        raise
    finally:
        if out is not None and lock is not None:
            os.close(lock)


def _put_back(out: Path) -> None:
    """Restore the run that a killed process had moved aside, if `out` does not exist."""
    for aside in sorted(out.absolute().parent.glob(f"{literal('.' + out.name)}.*.old")):
        if not out.exists() and is_run(aside / "run"):
            (aside / "run").rename(out)
        with suppress(OSError):
            shutil.rmtree(aside)


def _replace(folder: Path, out: Path) -> None:
    if out.exists():
        old = Path(tempfile.mkdtemp(prefix=f".{out.name}.", suffix=".old", dir=out.absolute().parent))
        out.rename(old / "run")
        folder.rename(out)
        shutil.rmtree(old, ignore_errors=True)
    else:
        folder.rename(out)
