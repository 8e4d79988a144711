"""Ingest as one call: inputs to an open `Run`. The CLI and every test start here."""

import atexit
import multiprocessing
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from tracekit.errors import InputError
from tracekit.files.discover import Found, discover
from tracekit.files.source import Source
from tracekit.findings import Quality
from tracekit.ingest.file_result import FileResult
from tracekit.ingest.merge import merge
from tracekit.ingest.readers import (
    FORMATS,
    TRACES,
    Format,
    SetReader,
    format_of_file,
    quality_of_foreign,
    read_file,
)
from tracekit.store import Run, is_run, open_run
from tracekit.thresholds import FILES_NAMED, LOOKED_INTO


@dataclass(frozen=True)
class ProgressEvent:
    """Progress of reading: files and raw bytes done and in all, and the file last read from."""

    done_files: int
    total_files: int
    done_bytes: int
    total_bytes: int
    path: str


Progress = Callable[[ProgressEvent], None]


def load(
    inputs: Sequence[str], *, out: Path | None = None, jobs: int = 1, progress: Progress | None = None
) -> Run:
    """Return a run read from traces, operation tables or flight-recorder dumps with timing, or open an ingested one.

    inputs: files, folders (searched through), globs, fsspec URLs, or one ingested run folder.
    out: where the run is kept; None keeps it in a temporary folder until the process ends.
    jobs: processes that read files; the result has the same bytes whatever their number.
    progress: called with a `ProgressEvent` as files are read.
    Raises InputError where nothing can be used; files that cannot are in `Run.rejected` otherwise.
    """
    if not inputs:
        raise InputError("no input was given; name files, folders, globs or URLs")
    if len(inputs) == 1 and is_run(Path(inputs[0])):
        if out is not None:
            raise InputError(f"{inputs[0]}: is an ingested run already; every command reads it as it is")
        return open_run(Path(inputs[0]))
    for text in inputs:
        if "://" not in text and is_run(Path(text)):
            raise InputError(f"{text}: is an ingested run; give it alone, or give the traces it came from")
    if out is not None:
        _refuse_foreign(out)
    found = discover(inputs, TRACES)
    with _building(out) as folder:
        results = _read_all(found.sources, folder, jobs, progress) if found.sources else []
        together = _read_together(found, results)
        if together is not None:
            run = _of_set(together, inputs, found, folder, jobs, progress)
        elif results:
            run = _merged(results, found, folder, inputs)
        else:
            raise InputError(_nothing(inputs, found))
        run.save_manifest()
    return replace(run, folder=out) if out is not None else run


def _refuse_foreign(out: Path) -> None:
    if out.exists() and not is_run(out) and (not out.is_dir() or any(out.iterdir())):
        raise InputError(f"{out}: exists and is no ingested run; name another folder, or remove it")
    if not out.absolute().parent.is_dir():
        raise InputError(f"{out}: the folder to put it in does not exist; create it first")


@contextmanager
def _building(out: Path | None) -> Iterator[Path]:
    """Lend a folder to build the run in; it takes the place of `out` at the end, and vanishes on error."""
    if out is None:
        folder = Path(tempfile.mkdtemp(prefix="tracekit-run-"))
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
    else:
        folder = Path(tempfile.mkdtemp(prefix=f".{out.name}.", suffix=".partial", dir=out.absolute().parent))
    try:
        yield folder
        if out is not None:
            folder.chmod(0o755)
            _replace(folder, out)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def _replace(folder: Path, out: Path) -> None:
    if out.exists():
        old = Path(tempfile.mkdtemp(prefix=f".{out.name}.", suffix=".old", dir=out.absolute().parent))
        out.rename(old / "run")
        folder.rename(out)
        shutil.rmtree(old, ignore_errors=True)
    else:
        folder.rename(out)


def _read_all(sources: list[Source], folder: Path, jobs: int, progress: Progress | None) -> list[FileResult]:
    total = sum(s.size for s in sources)
    parts = [folder / f"part-{i:06d}" for i in range(len(sources))]
    if jobs > 1 and len(sources) > 1:
        return _in_processes(sources, parts, min(jobs, len(sources)), progress, total)
    results = []
    before = 0
    for i, (source, part) in enumerate(zip(sources, parts, strict=True)):

        def tell(count: int, done: int = i, start: int = before, label: str = source.label) -> None:
            if progress is not None:
                progress(ProgressEvent(done, len(sources), start + count, total, label))

        results.append(read_file(source, part, tell))
        before += source.size
        if progress is not None:
            progress(ProgressEvent(i + 1, len(sources), before, total, source.label))
    return results


def _in_processes(
    sources: list[Source], parts: list[Path], jobs: int, progress: Progress | None, total: int
) -> list[FileResult]:
    """Spawned, not forked: Arrow's and a caller's threads do not survive a fork."""
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(jobs, mp_context=context)
    try:
        largest_first = sorted(range(len(sources)), key=lambda i: -sources[i].size)
        pending: dict[Future[FileResult], int] = {
            pool.submit(read_file, sources[i], parts[i]): i for i in largest_first
        }
        results: dict[int, FileResult] = {}
        done_bytes = 0
        while pending:
            for future in wait(pending, return_when=FIRST_COMPLETED).done:
                i = pending.pop(future)
                results[i] = future.result()
                done_bytes += sources[i].size
                if progress is not None:
                    progress(ProgressEvent(len(results), len(sources), done_bytes, total, sources[i].label))
    except BrokenProcessPool as error:
        raise InputError(
            "a reading process was killed, most often for want of memory; use fewer --jobs"
        ) from error
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
    return [results[i] for i in range(len(sources))]


def _read_together(found: Found, results: Sequence[FileResult]) -> SetReader | None:
    """The reader of a format whose files are read together, where no file alone is a trace and one has this format."""
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
    jobs: int,
    progress: Progress | None,
) -> Run:
    """Make the run of files that are read together."""

    def tell(files: int, of: int, done: int, total: int) -> None:
        if progress is not None:
            progress(ProgressEvent(files, of, done, total, ""))

    results, quality = read_set(inputs, folder, jobs, tell)
    run = merge(results, folder, found.hosts, found.mesh_hints)
    rows = sorted((*run.quality, *quality), key=lambda q: (q.path or "", q.kind, q.detail))
    return replace(run, quality=tuple(rows))


def _merged(results: list[FileResult], found: Found, folder: Path, inputs: Sequence[str]) -> Run:
    foreign = [
        *found.foreign,
        *(r.label for r in results if r.status == "foreign" and r.label not in found.named),
    ]
    kept = [
        replace(r, status="rejected") if r.status == "foreign" and r.label in found.named else r
        for r in results
        if r.status != "foreign" or r.label in found.named
    ]
    if not any(r.status == "ok" for r in kept):
        raise InputError(_nothing(inputs, found, [r for r in results if r.status != "ok"]))
    run = merge(kept, folder, found.hosts, found.mesh_hints)
    run = replace(run, rejected=tuple(sorted((*run.rejected, *found.unreadable), key=lambda r: r.path)))
    extra: tuple[Quality, ...] = (quality_of_foreign(sorted(foreign)),) if foreign else ()
    return replace(run, quality=extra + run.quality)


def _nothing(inputs: Sequence[str], found: Found, refused: Sequence[FileResult] = ()) -> str:
    """One sentence: where, why, and what to do."""
    more = f" and {len(inputs) - FILES_NAMED} more" if len(inputs) > FILES_NAMED else ""
    where = ", ".join(inputs[:FILES_NAMED]) + more
    rejected = [r for r in refused if r.status == "rejected"] or list(refused)
    if found.unreadable:
        return f"{found.unreadable[0].path}: {found.unreadable[0].reason}"
    if len(rejected) == 1:
        return f"{rejected[0].label}: cannot be used: {rejected[0].reason}"
    if rejected:
        first = rejected[0]
        return f"{where}: none of {len(rejected)} files can be used; the first, {first.label}: {first.reason}"
    others = f" ({len(found.foreign)} other files)" if found.foreign else ""
    return f"{where}: holds no traces{others}; give the folder that the profiler wrote to"
