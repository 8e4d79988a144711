"""The files of one job among those of an input: the others are rejected with the reason, or the input is refused."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from tracekit.files.job_choice import refused
from tracekit.files.witness import GroupNames, Window, Witness
from tracekit.ingest.file_result import FileResult
from tracekit.mesh.group_descriptions import hinted_dims


def of_one_job(
    results: Sequence[FileResult], runs: Mapping[str, str], wanted: int | None
) -> tuple[list[FileResult], int | None]:
    """Return `results` with the files of other jobs as rejected, and the job's number; None where there is only one.

    runs: folder of the recorded run by label. wanted and errors are those of `refused`.
    """
    witnesses = [_witness(r, runs.get(r.label, "")) for r in results if r.tables]
    reasons, number = refused(witnesses, wanted)
    return [
        replace(r, status="rejected", reason=reasons[r.label], rank=None, tables=(), quality=())
        if r.label in reasons
        else r
        for r in results
    ], number


def _witness(result: FileResult, run: str) -> Witness:
    """What a file tells of its job."""
    sizes = {t.world_size for t in result.tables if t.world_size}
    windows = tuple(Window(t.rank, t.first, t.last, t.steps, t.host) for t in result.tables)
    hint = result.mesh_hint
    mesh = ",".join(f"{a}={hint['sizes'][a]}" for a in hint["order"]) if hint else ""
    world = sizes.pop() if len(sizes) == 1 else None
    return Witness(result.label, result.sha256, windows, run, world, mesh, _named(result, world))


def _named(result: FileResult, world: int | None) -> GroupNames:
    """The groups of one axis that a description names once, and that hold the file's rank."""
    if len(result.tables) != 1:
        return ()
    (table,) = result.tables
    told = [
        (g.descs[0], g.ranks)
        for g in table.groups
        if len(g.descs) == 1 and table.rank in g.ranks and g.ranks[-1] < (world or g.ranks[-1] + 1)
    ]
    count = Counter(desc for desc, _ in told)
    return tuple(sorted((d, ranks) for d, ranks in told if count[d] == 1 and len(hinted_dims([d])) == 1))
