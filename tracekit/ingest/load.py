"""Ingest as one call: inputs to an open `Run`. The CLI and every test start here."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from os import PathLike, fspath
from pathlib import Path

from tracekit.errors import InputError, UsageError, with_rejected
from tracekit.files.discover import Found, Inputs, discover, listed
from tracekit.files.far import is_url
from tracekit.files.source import Source
from tracekit.findings import Quality
from tracekit.ingest.far_run import fetch_run, is_run_at, open_kept, put_run, refuse_foreign_at
from tracekit.ingest.file_result import FileResult
from tracekit.ingest.kept_files import KeptFiles, kept_files, save_files
from tracekit.ingest.merge import merge, with_base_times
from tracekit.ingest.nsys.reader import REPORT, REPORT_ENDS
from tracekit.ingest.output_folder import building, check_room, refuse_foreign
from tracekit.ingest.readers import (
    ARCHIVES,
    FORMATS,
    TRACES,
    Format,
    SetReader,
    format_of_file,
    quality_of_foreign,
)
from tracekit.ingest.reading import PARTS, Progress, ProgressEvent, read_files
from tracekit.manifest import open_run, save_manifest
from tracekit.store import Run, is_run
from tracekit.thresholds.ingest import FILES_NAMED, LOOKED_INTO
from tracekit.workers import Engine


def load(
    inputs: Inputs,
    *,
    out: str | PathLike[str] | None = None,
    jobs: int = 1,
    progress: Progress | None = None,
    job: int | None = None,
    engine: Engine | None = None,
    append: bool = False,
) -> Run:
    """Return a run read from traces, operation tables or flight-recorder dumps with timing, or open an ingested one.

    inputs: files, folders (searched through), globs, fsspec URLs, or one ingested run folder (or its URL).
    out: where the run is kept, a folder or an fsspec URL; None keeps it in a temporary folder as long as the run is
    referenced.
    jobs: processes that read files; the result has the same bytes whatever their number.
    progress: called with a `ProgressEvent` as files are read.
    job: number of the job to read, from 1, if the files, or the operations of the ranks, are of several jobs.
    engine: reads the files in place of processes here, as `ray_engine.on_ray` does; the run has the same bytes.
    append: read only the files that the run at `out` does not hold yet, and keep the run of all.
    Raises InputError if nothing can be used, or files are of several jobs and `job` is None; files that cannot be
    used are in `Run.rejected` otherwise. Raises UsageError where there are several jobs, but none of that number.
    """
    inputs = listed(inputs)
    local = partial(_load, jobs=jobs, progress=progress, job=job, engine=engine, append=append)
    if out is not None and is_url(fspath(out)):
        return _kept_afar(inputs, fspath(out), local, append=append)
    if len(inputs) == 1 and is_url(inputs[0]) and is_run_at(inputs[0]):
        return _fetched(inputs[0], local, None if out is None else Path(out))
    return local(inputs, None if out is None else Path(out))


def _kept_afar(inputs: list[str], out: str, local: Callable[..., Run], *, append: bool) -> Run:
    """Build the run in a temporary folder and put it at `out`; with `append`, starts from the run already there."""
    if any(is_url(text) and is_run_at(text) for text in inputs):
        raise InputError(f"{inputs[0]}: is an ingested run already; every command reads it as it is")
    refuse_foreign_at(out)
    with building(None) as (folder, lease):
        kept = folder / "run"
        if append and is_run_at(out):
            fetch_run(out, kept)
        run = local(inputs, kept)
        put_run(kept, out)
    return replace(run, lease=lease)


def _fetched(url: str, local: Callable[..., Run], out: Path | None) -> Run:
    """Return the run behind a URL, opened in a temporary folder; InputError if `out` is given."""
    if out is not None:
        raise InputError(f"{url}: is an ingested run already; every command reads it as it is")
    with building(None) as (folder, lease):
        fetched = folder / "run"
        fetch_run(url, fetched)
        try:
            run = local([str(fetched)], None).verified()
        except InputError as error:  # name the user's URL, not the temporary folder
            raise type(error)(str(error).replace(str(fetched), url.rstrip("/"))) from error
    return replace(run, lease=lease)


def _load(
    inputs: list[str],
    out: Path | None,
    *,
    jobs: int,
    progress: Progress | None,
    job: int | None,
    engine: Engine | None,
    append: bool,
) -> Run:
    """Return a run from local or remote files in a local folder, as `load` does."""
    if len(inputs) == 1 and is_run(Path(inputs[0])):
        return replace(_opened(Path(inputs[0]), out, jobs), job=job)
    _check_inputs(inputs, out)
    found = discover(inputs, TRACES)
    kept = kept_files(out, jobs) if append and out is not None and is_run(out) else KeptFiles()
    if out is not None and kept.results and not kept.new(found):
        return open_run(out)
    with building(out) as (folder, lease):
        check_room(folder, kept.new(found), jobs)
        results, found = kept.joined(read_files(kept.new(found), folder, jobs, progress, engine), found)
        together = _read_together(found, results)
        if together is not None:
            run = _of_set(together, inputs, found, folder, (jobs, job), progress)
        else:
            run = _merged(results, found, folder, inputs, job, kept=out is not None)
        _check_job(run, kept=out is not None)
        save_manifest(run, kept=out is not None)
    return open_run(out) if out is not None else replace(run, lease=lease)


def _opened(folder: Path, out: Path | None, jobs: int) -> Run:
    """Return the ingested run in `folder`; InputError if `out` is given."""
    if out is not None:
        raise InputError(f"{folder}: is an ingested run already; every command reads it as it is")
    return open_kept(folder, jobs)


def _check_inputs(inputs: Sequence[str], out: Path | None) -> None:
    """Raise InputError without inputs, for an ingested run among other inputs, or if `out` must not be written."""
    if not inputs:
        raise InputError("no input was given; name files, folders, globs or URLs")
    for text in inputs:
        if "://" not in text and is_run(Path(text)):
            raise InputError(f"{text}: is an ingested run; give it alone, or give the traces it came from")
    if out is not None:
        refuse_foreign(out)


def _check_job(run: Run, *, kept: bool) -> None:
    """Raise UsageError for a kept run without the wanted job; an unkept one may still be split by its analysis."""
    if kept and run.job not in {None, 1}:
        raise UsageError(f"--job {run.job}: the files are of one job; leave --job out")


def _read_together(found: Found, results: Sequence[FileResult]) -> SetReader | None:
    """Return the reader of a format with files read together, if no single file is a trace and one has this format."""
    if any(r.status == "ok" for r in results):
        return None
    sets = {form.name: form.read_set for form in FORMATS if form.read_set is not None}
    names = [r.format for r in results]
    names += [form.name for label in found.foreign[:LOOKED_INTO] if (form := _format_of(label)) is not None]
    return next((sets[name] for name in names if name in sets), None)


def _format_of(label: str) -> Format | None:
    return format_of_file(Source(label, label, 0))


def _of_set(
    read_set: SetReader,
    inputs: Sequence[str],
    found: Found,
    folder: Path,
    wanted: tuple[int, int | None],
    progress: Progress | None,
) -> Run:
    """Return the run of files that are read together; wanted: number of reading processes, number of the job."""

    def tell(files: int, of: int, done: int, total: int) -> None:
        if progress is not None:
            progress(ProgressEvent(files, of, done, total, ""))

    results, quality, number = read_set(inputs, folder, *wanted, tell)
    merged, _ = merge(results, folder, found)
    picked = wanted[1] is not None and number is not None
    run = replace(merged, job=None if number is not None else wanted[1], chosen=picked)
    rows = sorted((*run.quality, *quality), key=lambda q: (q.path or "", q.kind, q.detail))
    refused = {r.path: r for r in (*run.rejected, *found.unreadable)}
    return replace(run, quality=tuple(rows), rejected=tuple(refused[path] for path in sorted(refused)))


def _merged(
    results: list[FileResult],
    found: Found,
    folder: Path,
    inputs: Sequence[str],
    job: int | None,
    *,
    kept: bool,
) -> Run:
    """Return the run of files that are read one by one; a `kept` run lists them."""
    if not results:
        raise InputError(_nothing(inputs, found))
    foreign = [
        *found.foreign,
        *(r.label for r in results if r.status == "foreign" and r.label not in found.named),
    ]
    used = [
        replace(r, status="rejected") if r.status == "foreign" and r.label in found.named else r
        for r in results
        if r.status != "foreign" or r.label in found.named
    ]
    if not any(r.status == "ok" for r in used):
        refused = [r for r in results if r.status != "ok"]
        files = [(r.label, r.reason) for r in refused if r.status == "rejected"]
        raise with_rejected(InputError(_nothing(inputs, found, refused)), files if len(files) > 1 else ())
    run, placed = merge(with_base_times(used, folder), folder, found, job)
    for part in folder.glob(PARTS):  # of rejected or joined files
        part.unlink()
    if not run.ranks:
        first = run.rejected[0]
        error = InputError(f"{first.path}: cannot be used: {first.reason}")
        raise with_rejected(error, [(r.path, r.reason) for r in run.rejected[1:]])
    run = replace(run, rejected=tuple(sorted((*run.rejected, *found.unreadable), key=lambda r: r.path)))
    extra: tuple[Quality, ...] = (quality_of_foreign(sorted(foreign)),) if foreign else ()
    if kept:
        save_files(folder, results, found, placed)
    return replace(run, quality=extra + run.quality)


def _nothing(inputs: Sequence[str], found: Found, refused: Sequence[FileResult] = ()) -> str:
    """Return one sentence: where, why, and what to do."""
    more = f" and {len(inputs) - FILES_NAMED} more" if len(inputs) > FILES_NAMED else ""
    where = ", ".join(inputs[:FILES_NAMED]) + more
    if found.ingested and not refused:
        runs = ", ".join(found.ingested[:FILES_NAMED])
        others = f" and {len(found.ingested) - FILES_NAMED} more" if len(found.ingested) > FILES_NAMED else ""
        return f"{where}: holds ingested runs ({runs}{others}); give one of them"
    rejected = [r for r in refused if r.status == "rejected"] or list(refused)
    if found.unreadable:
        return f"{found.unreadable[0].path}: {found.unreadable[0].reason}"
    for ends, advice in (
        (REPORT_ENDS, REPORT),
        (ARCHIVES, "it is an archive; unpack it, and give that folder"),
    ):
        packed = [label for label in found.foreign if label.lower().endswith(ends)]
        if packed and all(r.status == "foreign" for r in rejected):
            return f"{where}: holds no traces, but {packed[0]}: {advice}"
    if len(rejected) == 1 and rejected[0].status == "foreign" and rejected[0].label not in found.named:
        return f"{where}: holds no traces ({rejected[0].label}: {rejected[0].reason}); give their folder"
    if len(rejected) == 1:
        return f"{rejected[0].label}: cannot be used: {rejected[0].reason}"
    if rejected:
        first = rejected[0]
        return f"{where}: none of {len(rejected)} files can be used; the first, {first.label}: {first.reason}"
    others = f" ({len(found.foreign)} other files)" if found.foreign else ""
    return f"{where}: holds no traces{others}; give the folder that the profiler wrote to"
