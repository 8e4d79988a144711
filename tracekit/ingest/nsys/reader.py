"""Databases that nsys exported as event tables: one file a rank, or one with several processes.

All files are looked through first, because ranks, communicators and steps follow from all of them together; then each
is read into a table for each of its processes. What the files do not record becomes a row of the answer's quality, with
the option of nsys that records it. Used by `readers`.
"""

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from tracekit.dumps.load import Progress
from tracekit.errors import InputError, with_rejected
from tracekit.files.discover import Wanted, discover
from tracekit.files.source import Source, opening
from tracekit.findings import Quality
from tracekit.ingest.file_result import FileGroup, FileResult, RankTable
from tracekit.ingest.identify import rank_of_name
from tracekit.ingest.nsys.database import MAGIC, Database, UnusableDatabaseError
from tracekit.ingest.nsys.events import write_events
from tracekit.ingest.nsys.identity import Identity, identify
from tracekit.ingest.nsys.output import Output
from tracekit.ingest.nsys.step_ranges import Steps, find_steps
from tracekit.ingest.nsys.survey import Process, Survey, survey

NSYS: Final = "nsys"
REPORT_ENDS: Final = (".nsys-rep", ".qdrep", ".qdstrm")
"""Names of nsys' own reports; their format is not published."""
REPORT: Final = (
    "it is a report of nsys, which only nsys reads; export it: `nsys export --type sqlite --include-blobs=true "
    "REPORT`"
)
_ANY: Final = Wanted(lambda name: not name.startswith("."), part="", patterns_name_files=True)
_BLOCK: Final = 1 << 20


def set_aside(label: str) -> FileResult:
    """Return the result for one database, which is set aside: databases of all ranks are read together."""
    reason = "this is a database that nsys exported; give it apart from traces"
    return FileResult(label, "foreign", reason, None, NSYS)


def read_databases(
    inputs: Sequence[str], folder: Path, _jobs: int, _job: int | None, progress: Progress | None
) -> tuple[list[FileResult], list[Quality], int | None]:
    """Read the databases in the files that `inputs` name into Parquet files in `folder`.

    Returns as `flight_recorder.reader.read_dumps` does. Raises InputError where no file can be used, or where a
    process shows no rank.
    """
    sources = {source.label: source for source in discover(inputs, _ANY).sources if _is_database(source)}
    found, refused = _surveyed(list(sources.values()))
    if not found:
        reasons = [(r.label, r.reason) for r in refused]
        error = InputError(
            f"{reasons[0][0]}: cannot be used: {reasons[0][1]}" if reasons else f"{inputs[0]}: no database"
        )
        raise with_rejected(error, reasons[1:])
    processes = [process for survey in found.values() for process in survey.processes.values()]
    identity = identify(processes, sources)
    steps = find_steps(processes)
    results = [*refused]
    sizes = [sources[label].size for label in found]
    for at, (label, own) in enumerate(found.items()):
        results.append(
            _read(sources[label], own, _Job(processes, identity, steps), folder / f"nsys-{at:06d}")
        )
        if progress is not None:
            progress(at + 1, len(found), sum(sizes[: at + 1]), sum(sizes))
    if not any(result.status == "ok" for result in results):
        raise InputError(f"{results[0].label}: cannot be used: {results[0].reason}")
    return results, _gaps(processes, identity, steps, list(found.values())), None


class _Job:
    """What all files together show. processes: in the order of the ranks of `identity` and the spans of `steps`."""

    def __init__(self, processes: Sequence[Process], identity: Identity, steps: Steps | None) -> None:
        self.identity = identity
        self._places = {id(process): at for at, process in enumerate(processes)}
        self._steps = steps

    def output(self, process: Process, own: Survey, path: Path) -> Output:
        """Return where the events of a process go."""
        at = self._places[id(process)]
        rank, identity = self.identity.ranks[at], self.identity
        groups: dict[int, int] = {}
        listed: list[FileGroup] = []
        for name in sorted(process.users):
            ranks = identity.members.get(name)
            if ranks is not None and rank in ranks:
                groups[name] = len(listed)
                listed.append(FileGroup(ranks, (f"0x{name:x}",), ()))
        spans = self._steps.spans[at] if self._steps is not None else {}
        return Output(process, rank, path, own.base, spans, groups, tuple(listed), identity.peers)


def _is_database(source: Source) -> bool:
    try:
        return opening(source).startswith(MAGIC)
    except OSError:
        return False


def _surveyed(sources: Sequence[Source]) -> tuple[dict[str, Survey], list[FileResult]]:
    """Look through all databases; return what they show, and a result for each that cannot be used."""
    found: dict[str, Survey] = {}
    refused = []
    for source in sources:
        try:
            base = opened(source)
            try:
                own = survey(base, source.label)
            finally:
                base.close()
            if any(len(process.devices) > 1 for process in own.processes.values()):
                reason = "one process in it uses several GPUs, and a rank is read as one GPU; start a process for each"
                refused.append(_refused(source, reason))
            else:
                found[source.label] = own
        except UnusableDatabaseError as error:
            refused.append(_refused(source, str(error)))
    return found, refused


def opened(source: Source) -> Database:
    """Return an open database; UnusableDatabaseError where it is compressed, or not on a local disk."""
    if "://" in source.uri:
        raise UnusableDatabaseError("a database is read from a local disk only; copy it here first")
    with source.open() as raw:
        if raw.read(len(MAGIC)) != MAGIC:
            raise UnusableDatabaseError(
                "it is a compressed database, which SQLite cannot read; unpack it first"
            )
    return Database(source.uri, source.size)


def _refused(source: Source, reason: str) -> FileResult:
    return FileResult(source.label, "rejected", reason, rank_of_name(source.name, source.folders)[0], NSYS)


def _read(source: Source, own: Survey, job: _Job, path: Path) -> FileResult:
    """Write the events of one database; a database that turns out damaged is rejected."""
    outputs = {
        key: job.output(process, own, path.with_name(f"{path.name}-{at}"))
        for at, (key, process) in enumerate(own.processes.items())
    }
    try:
        base = opened(source)
        try:
            write_events(base, outputs)
        finally:
            base.close()
    except UnusableDatabaseError as error:
        return _refused(source, str(error))
    tables = tuple(_table(out, job.identity.world) for out in outputs.values())
    rows = _doubts(source.label, outputs)
    rank = tables[0].rank if len(tables) == 1 else None
    return FileResult(
        source.label, "ok", rank=rank, format=NSYS, sha256=_digest(source), bytes=source.size, tables=tables,
        quality=tuple(rows),
    )  # fmt: skip


def _table(out: Output, world: int | None) -> RankTable:
    host, groups = out.process.host, out.listed
    return RankTable(out.rank, str(out.path), out.rows, out.first, out.last, host, world, False, groups, {})


def _digest(source: Source) -> str:
    digest = hashlib.sha256()
    with source.open() as raw:
        while block := raw.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()


def _doubts(label: str, outputs: Mapping[int, Output]) -> list[Quality]:
    """Return what one database leaves open."""
    wrong, grouped = (
        sum(own) for own in zip(*((o.wrong, o.joined.grouped) for o in outputs.values()), strict=True)
    )
    rows = []
    if wrong:
        rows.append(
            Quality(
                "absurd_timestamp", label, wrong, "events with a begin and end that cannot be true, left out"
            )
        )
    if grouped:
        detail = "kernels behind grouped calls (ncclGroupStart) without a known call; their group is inferred"
        rows.append(Quality("grouped_calls", label, grouped, detail))
    return rows


def _gaps(
    processes: Sequence[Process], identity: Identity, steps: Steps | None, found: Sequence[Survey]
) -> list[Quality]:
    """Return how steps are marked, and what the files do not record, each with what records it."""
    marked = (
        f"steps are the NVTX ranges {steps.name}"
        if steps is not None
        else "no NVTX range marks steps, so that they follow from what repeats: put one around each step "
        '(`with torch.cuda.nvtx.range(f"step {n}")`)'
    )
    detail = f"databases of nsys; {marked}; groups bear no names, so that --mesh names the axes"
    first = Quality("nsys_input", None, len(processes), detail)
    return [first, *_unrecorded(processes, identity, found)]


def _unrecorded(processes: Sequence[Process], identity: Identity, found: Sequence[Survey]) -> list[Quality]:
    """Return a row for each kind of evidence that the files lack."""
    rows = []
    calls = sum(len(p.calls) for p in processes)
    unnamed = sum(not call.communicator for p in processes for call in p.calls)
    talking = sum(len(p.talking) for p in processes)
    if talking and not calls:
        detail = (
            "NCCL kernels without NCCL's ranges, so that groups are inferred; record with `--trace=cuda,nvtx`"
        )
        rows.append(Quality("nsys_no_calls", None, talking, detail))
    elif unnamed:
        detail = (
            "NCCL calls without a communicator, so that groups are inferred; export with `nsys export --type sqlite "
            "--include-blobs=true` (NCCL 2.26 and later record it)"
        )
        rows.append(Quality("nsys_unnamed_groups", None, unnamed, detail))
    lost = sorted(name for name, ranks in identity.members.items() if ranks is None)
    if lost:
        detail = (
            "communicators with members that have no file here; give the files of all ranks, or record from the "
            "program's start (without --capture-range), where NCCL shows how many members there are"
        )
        rows.append(Quality("nsys_unknown_members", None, len(lost), detail))
    if graphs := sum(survey.graphs for survey in found):
        detail = (
            "CUDA graphs recorded as a whole, without their kernels; record with `--cuda-graph-trace=node`"
        )
        rows.append(Quality("nsys_whole_graphs", None, graphs, detail))
    return rows
