"""Ingested runs of unknown origin: every table is read once in a worker before the run is opened.

Runs behind fsspec URLs are fetched whole first, and put there with the manifest last. Only the files that a run has are
fetched: no name in a bucket becomes a path here otherwise. A run that ingest itself has just written is opened by
`manifest.open_run` alone.
"""

from glob import has_magic
from pathlib import Path, PurePosixPath

from tracekit.errors import InputError
from tracekit.files.far import FileSystem, check_target, put_file, reached, written_to
from tracekit.ingest.output_folder import is_written
from tracekit.ingest.reading import LIMITS
from tracekit.manifest import open_run
from tracekit.store import MANIFEST, Run, is_run
from tracekit.thresholds.ingest import MANIFEST_HEAD
from tracekit.workers import deaths


def open_kept(folder: Path, jobs: int = 1) -> Run:
    """Return the run in a folder; a rank with a table that kills its reader is among the rejected ones.

    jobs: processes that read. Raises InputError where the manifest or the groups are damaged, or no rank is left.
    """
    if dead := deaths([folder], open_run, LIMITS):
        raise InputError(f"{folder}: {dead[0]}; ingest the traces again")
    run = open_run(folder)
    dead = deaths([r.rank for r in run.ranks], run.events, LIMITS, jobs)
    if len(dead) == len(run.ranks):
        raise InputError(f"{folder / run.ranks[0].table}: {dead[0]}; ingest the traces again")
    for reason in set(dead.values()):
        run = run.without([run.ranks[place].rank for place, why in dead.items() if why == reason], reason)
    return run


def is_run_at(url: str) -> bool:
    """Whether an ingested run lies behind a URL; InputError where the URL cannot be reached."""
    if has_magic(url):
        return False
    with reached(url) as (system, path):
        manifest = f"{path.rstrip('/')}/{MANIFEST}"
        if not system.exists(manifest):
            return False
        return b'"schema": "tracekit.run/' in system.cat_file(manifest, start=0, end=MANIFEST_HEAD)


def fetch_run(url: str, folder: Path) -> None:
    """Copy the run behind a URL into a folder, which is made."""
    with reached(url) as (system, path):
        for name in _names(system, path):
            if is_written(name):
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                system.get_file(f"{path.rstrip('/')}/{name}", str(folder / name))
    if not is_run(folder):
        raise InputError(f"{url}: the run there changed while it was read; ask again")


def refuse_foreign_at(url: str) -> None:
    """Raise InputError if a run may not be put behind a URL: other programs' files are there.

    Raises OutputError where nothing can be written there.
    """
    check_target(url.rstrip("/"))
    with written_to(url) as (system, path):
        foreign = [name for name in _names(system, path) if not is_written(name)]
        taken = bool(foreign) or (system.exists(path) and not system.isdir(path))
    if taken:
        held = f"holds {foreign[0]}" if foreign else "is a file"
        raise InputError(f"{url}: {held}, which tracekit did not write; name another place")


def put_run(folder: Path, url: str) -> None:
    """Put a run behind a URL in place of the one there; its manifest comes last, so that a partial run is no run."""
    names = sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file())
    base = url.rstrip("/")
    with written_to(url) as (system, path):
        there = _names(system, path)
        for name in sorted(there, key=lambda n: n != MANIFEST):
            if name == MANIFEST or name not in names:
                system.rm_file(f"{path.rstrip('/')}/{name}")
    for name in sorted(names, key=lambda n: n == MANIFEST):
        put_file(f"{base}/{name}", str(folder / name))


def _names(system: FileSystem, path: str) -> list[str]:
    """Return the files below a path, relative to it and sorted; [] where there is no folder."""
    system.invalidate_cache()
    if not system.isdir(path):
        return []
    root = PurePosixPath("/" + path.strip("/"))
    found = (PurePosixPath("/" + name.strip("/")) for name in system.find(path))
    return sorted(str(name.relative_to(root)) for name in found)
