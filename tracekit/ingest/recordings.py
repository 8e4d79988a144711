"""Selects the files of one job in an input: the others are rejected with the reason, or the input is refused."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from tracekit.files.job_choice import refused
from tracekit.files.rival_recordings import unpacked
from tracekit.files.witness import GroupNames, Window, Witness
from tracekit.findings import Quality
from tracekit.ingest.claims import window_name
from tracekit.ingest.file_result import UNKNOWN_RANK, FileResult
from tracekit.mesh.group_descriptions import hinted_dims


def of_one_job(
    results: Sequence[FileResult], runs: Mapping[str, str], wanted: int | None
) -> tuple[list[FileResult], int | None]:
    """Return `results` with the files of other jobs as rejected, and the job's number; None where there is only one.

    runs: folder of the recorded run by label. wanted and errors are those of `refused`.
    """
    results = _of_one_process(results)
    witnesses = [_witness(r, runs.get(r.label, "")) for r in results if r.tables]
    reasons = _of_other_loops(witnesses)
    more, number = refused([w for w in witnesses if w.label not in reasons], wanted)
    reasons |= more
    return [
        replace(r, status="rejected", reason=reasons[r.label], rank=None, tables=(), quality=())
        if r.label in reasons
        else r
        for r in results
    ], number


def _of_one_process(results: Sequence[FileResult]) -> list[FileResult]:
    """Return `results` with files that name no rank as rank 0 if all files are of one place, else rejected."""
    used = [r for r in results if r.tables]
    places = {name.place if (name := window_name(r.label)) else unpacked(r.label) for r in used}
    if len(places) == 1 and all(r.rank_unknown for r in used):
        row = "it names no rank and talks to no other process: it is taken as the only process of its job, rank 0"
        return [
            replace(
                r,
                rank=0,
                reason="",
                tables=tuple(replace(t, world_size=t.world_size or 1) for t in r.tables),
                quality=(*r.quality, Quality("rank_assumed", r.label, 1, row)),
            )
            if r.tables
            else r
            for r in results
        ]
    return [
        replace(r, status="rejected", reason=UNKNOWN_RANK.format(r.reason), rank=None, tables=(), quality=())
        if r.rank_unknown
        else r
        for r in results
    ]


def _of_other_loops(files: Sequence[Witness]) -> dict[str, str]:
    """Return why files are left out, by label: they hold validation or similar, and their place also has training."""
    trained = {f.window.place for f in files if f.window is not None and not f.window.loop}
    return {
        f.label: f"its name says {f.window.loop}, and its folder holds training as well; give it alone to read it"
        for f in files
        if f.window is not None and f.window.loop and f.window.place in trained
    }


def _witness(result: FileResult, run: str) -> Witness:
    """Return what a file shows of its job."""
    sizes = {t.world_size for t in result.tables if t.world_size}
    windows = tuple(Window(t.rank, t.first, t.last, t.steps, t.host, t.events) for t in result.tables)
    hint = result.mesh_hint
    mesh = ",".join(f"{a}={hint['sizes'][a]}" for a in hint["order"]) if hint else ""
    world = sizes.pop() if len(sizes) == 1 else None
    return Witness(
        result.label, result.sha256, windows, run, world, mesh, _named(result, world),
        window=window_name(result.label),
    )  # fmt: skip


def _named(result: FileResult, world: int | None) -> GroupNames:
    """Return the groups of the file's rank along one axis that have a description of their own."""
    if len(result.tables) != 1:
        return ()
    (table,) = result.tables
    described = [
        (g.descs[0], g.ranks)
        for g in table.groups
        if len(g.descs) == 1 and table.rank in g.ranks and g.ranks[-1] < (world or g.ranks[-1] + 1)
    ]
    count = Counter(desc for desc, _ in described)
    return tuple(sorted((d, ranks) for d, ranks in described if count[d] == 1 and len(hinted_dims([d])) == 1))
