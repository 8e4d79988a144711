"""Opens an ingested run of unknown origin: every table is read once in a worker first.

A run that ingest has just written is opened by `manifest.open_run` directly.
"""

from pathlib import Path

from tracekit.errors import InputError
from tracekit.ingest.reading import LIMITS
from tracekit.manifest import open_run
from tracekit.store import Run
from tracekit.workers import deaths


def open_kept(folder: Path, jobs: int = 1) -> Run:
    """Return the run in a folder, with the files of ranks rejected if their table kills the process that reads it.

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
