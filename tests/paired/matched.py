"""The matched operations of a job: what `slowrank` reads before it judges."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.paired.jobs import Truth, make, read
from tracekit.case import opened as room
from tracekit.errors import MeshUnknownError
from tracekit.inference.mesh.mesh_choice import MeshChoice, without_mesh
from tracekit.ingest import load
from tracekit.matching.match import Operations
from tracekit.steps.recorded_windows import last_windows
from tracekit.store import Run

Matched = tuple[Run, Operations, MeshChoice]


@contextmanager
def matched_of(suite: str, seed: int, keep: Path | None) -> Iterator[tuple[Truth, Matched]]:
    """The truth of a job and its matched operations; files are below `keep`, or removed at the end.

    A job that `keep` holds is read from its run folder, which is quicker than its traces.
    """
    with TemporaryDirectory() as scratch:
        folder = keep or Path(scratch)
        mine = folder / f"{suite}-{seed}"
        truth = read(mine / "truth.json") if (mine / "truth.json").is_file() else make(suite, seed, folder)
        yield truth, _matched(truth, mine)


def _matched(truth: Truth, folder: Path) -> Matched:
    mesh = dict(_sizes(truth.mesh)) if truth.mesh else None
    held = folder / "run"
    run = load(str(held)) if held.is_dir() else load(str(folder / "traces"), jobs=1, out=held)
    run, ranks = room.read_ranks(last_windows(run, None), mesh, None)
    try:
        return room.matched(run, ranks, mesh, None)
    except MeshUnknownError as error:
        world = range(max(run.world_size or 0, max(r.rank for r in ranks) + 1))
        return room.matched(*without_mesh(run, ranks, world, str(error)), mesh, None)


def _sizes(mesh: str) -> Iterator[tuple[str, int]]:
    for part in mesh.split(","):
        axis, size = part.split("=")
        yield axis, int(size)


def kept(folder: Path) -> list[tuple[str, int]]:
    """(suite, seed) of all jobs below a folder, those of other generators too; the smallest first."""
    jobs = sorted((path.parent for path in folder.glob("*/truth.json")), key=lambda j: (_size(j), j.name))
    found = [re.fullmatch(r"(.+)-(\d+)", job.name) for job in jobs]
    return [(match[1], int(match[2])) for match in found if match]


def _size(job: Path) -> int:
    """Bytes of the traces of a job."""
    return sum(path.stat().st_size for path in (job / "traces").rglob("*") if path.is_file())
