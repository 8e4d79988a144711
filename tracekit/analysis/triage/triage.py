"""One answer from whatever is left: files are recognised, grouped by job, and asked what hangs and what is slow.

Archives are unpacked within bounds for as long as it takes. A question is asked where the files support it; a refusal
becomes the reason of an open answer. Each kind is then asked alone, to say what it makes of the answer.
"""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, fields, is_dataclass, replace
from math import prod
from pathlib import Path
from typing import Any, Final

from tracekit.analysis.hang.witnesses.judge import judge_evidence
from tracekit.analysis.slowrank.analyse import analyse
from tracekit.analysis.triage.beside_traces import counters_beside, kernel_lines, recorded
from tracekit.analysis.triage.found_files import Job, jobs_of
from tracekit.analysis.triage.testimony import collect_next, counters_say, testimonies
from tracekit.analysis.triage.unread import unread_counters
from tracekit.case.opened import with_hosts
from tracekit.dumps.load import load_dumps
from tracekit.errors import TracekitError, UsageError
from tracekit.evidence.archives import unpack
from tracekit.evidence.bundle import Bundle
from tracekit.evidence.gather import Gathered, Progress, find_everything, gather
from tracekit.files.discover import Inputs, listed
from tracekit.files.source import Source
from tracekit.findings import Rejected
from tracekit.findings.hang import HangFinding
from tracekit.findings.slowrank import SlowRankFinding
from tracekit.findings.triage import JobAnswer, Question, ToCollect, TriageFinding
from tracekit.ingest import load
from tracekit.locked_folders import LOCK, temporary
from tracekit.mesh.hardware import Hardware
from tracekit.placement import HostList, HostsFile
from tracekit.store import Run

_PREFIX: Final = "tracekit-triage-"
_CALM: Final = frozenset({"healthy", "none"})
"""Verdicts that name nothing."""


@dataclass(frozen=True)
class Ask:
    """How the questions are asked: mesh and order of axes, processes, which of several jobs, hosts, and their links."""

    mesh: dict[str, int] | None = None
    order: tuple[str, ...] | None = None
    jobs: int = 1
    job: int | None = None
    hosts: HostsFile | HostList | None = None
    hardware: Hardware | None = None


def triage(inputs: Inputs, ask: Ask | None = None, progress: Progress | None = None) -> TriageFinding:
    """Return what files, folders and archives are, and the answer that they support.

    Raises InputError where an input names nothing, UsageError where the mesh or the job is none of theirs.
    """
    ask = ask or Ask()
    with ExitStack() as stack:
        found = find_everything(listed(inputs))
        gathered = gather(found.sources, progress, named=found.named)
        skipped = list(gathered.rejected) + list(found.unreadable)
        names: dict[str, str] = {}
        if archives := gathered.by_form.pop("archive", []):
            folder = stack.enter_context(temporary(_PREFIX))
            extra = _unpacked(archives, found.sources, folder, names, skipped)
            found = find_everything([*_without(listed(inputs), archives), *extra])
            gathered = gather([s for s in found.sources if s.name != LOCK], progress, named=found.named)
            skipped.extend(gathered.rejected)
            gathered.unknown.extend(gathered.by_form.pop("archive", []))
        jobs, unknown = jobs_of(found, gathered)
        answers = tuple(_answer(job, gathered, ask, several=len(jobs) > 1) for job in jobs)
        if not answers:
            reason = "no file here holds evidence of a slow or stuck job"
            answers = (JobAnswer(None, "none", None, reason, (), collect_next(None, Bundle(), None)),)
        files = tuple(
            file for job in jobs for file in sorted(job.files, key=lambda file: (file.kind, file.path))
        )
        answers = _hinted(answers, inputs, gathered)
        finding = TriageFinding(files, tuple(unknown), answers, tuple(skipped))
        return _renamed(finding, names) if names else finding


def triage_files(
    inputs: Inputs,
    mesh: dict[str, int] | None = None,
    order: Sequence[str] | None = None,
    *,
    jobs: int = 1,
    progress: Progress | None = None,
    job: int | None = None,
    hosts: HostsFile | HostList | None = None,
    hardware: Hardware | None = None,
) -> TriageFinding:
    """Return what files, folders and archives are, and the answer that they support.

    inputs: logs, dumps, traces, stacks, RAS answers, records of Inspector, run folders, archives, in any mixture.
    mesh: ranks on each axis; order: axes inner to outer. jobs: processes that read. progress: called with files done,
    files in all, bytes done, bytes in all. job: which of several jobs of dumps or traces, from 1. hosts, hardware: as
    for `tracekit.slowrank`. Raises InputError where an input names nothing, UsageError where the mesh or the job does
    not fit the files.
    """
    axes = None if order is None else tuple(order)
    return triage(inputs, Ask(mesh, axes, jobs, job, hosts, hardware), progress)


def _hinted(answers: tuple[JobAnswer, ...], inputs: Inputs, gathered: Gathered) -> tuple[JobAnswer, ...]:
    """Return the answers, each with the command that would read the counters which lie beside the files, if any do."""
    unread = unread_counters(inputs, {*gathered.read, *gathered.unknown})
    if unread is None:
        return answers
    hint = ToCollect(unread.command, f"lies beside these files, not read: {unread.in_words()}")
    return tuple(replace(answer, collect=(*answer.collect, hint)) for answer in answers)


def _unpacked(
    archives: Sequence[str],
    sources: Sequence[Source],
    folder: Path,
    names: dict[str, str],
    skipped: list[Rejected],
) -> list[str]:
    """Unpack archives into a folder each; note by which name each folder is to be shown."""
    by_label = {source.label: source for source in sources}
    made = []
    for number, path in enumerate(archives):
        inside = folder / f"{number:04}"
        inside.mkdir()
        names[str(inside)] = path
        skipped.extend(unpack(by_label[path], inside))
        made.extend([str(inside)] if any(inside.iterdir()) else [])
    return made


def _without(inputs: Sequence[str], archives: Sequence[str]) -> list[str]:
    """Return the inputs that are no archives themselves."""
    return [given for given in inputs if given not in archives]


def _answer(job: Job, gathered: Gathered, ask: Ask, *, several: bool) -> JobAnswer:
    """Return the answer for one job: what hangs where that is shown, else what is slow."""
    bundle, hang, why_hang = _ask_hang(job, gathered, ask)
    slow, why_slow, run = _ask_slow(job, ask)
    folder = (job.folder or None) if several else None
    first: HangFinding | SlowRankFinding | None = slow
    if hang is not None and (slow is None or hang.verdict not in _CALM):
        first = hang if slow is None or hang.verdict != "inconclusive" or slow.verdict in _CALM else slow
    other = next((a for a in (hang, slow) if a is not None and a is not first), None)
    question: Question = (
        "hang" if isinstance(first, HangFinding) else "slowrank" if first is not None else "none"
    )
    reason = "; ".join(filter(None, (why_hang, why_slow))) or "its files answer no question here"
    evidence = testimonies(bundle, first, job, ask.mesh, ask.order)
    paths = {file.path for file in job.files}
    samples = [s for path, own in gathered.counters.items() if path in paths for s in own]
    if isinstance(first, SlowRankFinding):
        when = None if run is None else recorded(run, first)
        evidence = (*evidence, *counters_beside(samples, kernel_lines(bundle.logs), first, when))
    else:
        evidence = (*evidence, *counters_say(samples, first))
    return JobAnswer(
        folder,
        question,
        first,
        "" if first is not None else reason,
        evidence,
        collect_next(first, bundle, job),
        other,
    )


def _ask_hang(job: Job, gathered: Gathered, ask: Ask) -> tuple[Bundle, HangFinding | None, str]:
    """Return the evidence of a hang, the answer to which rank hung the job, and why there is none."""
    paths = {file.path for file in job.files}
    world = None if ask.mesh is None else prod(ask.mesh.values())
    own = gathered.bundle(world)
    bundle = replace(
        own,
        logs=tuple(log for log in own.logs if log.path in paths),
        ras=tuple(report for report in own.ras if report.path in paths),
        stacks=tuple(stack for stack in own.stacks if stack.path in paths),
    )
    why = ""
    if dumps := job.by_form.get("dump"):
        try:
            read = load_dumps(dumps, ask.jobs, job=ask.job)
            bundle = replace(bundle, dumps=read)
            ranks = {dump.path: rank for rank, dump in read.dumps.items()}
            job.files = [replace(f, ranks=(ranks[f.path],)) if f.path in ranks else f for f in job.files]
        except UsageError:
            raise
        except TracekitError as error:
            why = str(error)
    if bundle.dumps is None and not (bundle.logs or bundle.ras or bundle.stacks):
        return bundle, None, why
    return bundle, judge_evidence(bundle, ask.mesh, ask.order)[0], why


def _ask_slow(job: Job, ask: Ask) -> tuple[SlowRankFinding | None, str, Run | None]:
    """Return slowrank's finding, the reason if it fails, and the run; traces are read first, records of calls last."""
    paths = job.runs or [*job.by_form.get("trace", []), *job.by_form.get("table", [])]
    records = job.by_form.get("nsys", []) or job.by_form.get("inspector", [])
    whole = [job.folder] if paths and job.folder and not job.runs else paths or records
    if not whole:
        return None, "", None
    try:
        run = with_hosts(load(whole, jobs=ask.jobs, job=ask.job), ask.hosts)
        return analyse(run, ask.mesh, ask.order, hardware=ask.hardware), "", run
    except UsageError:
        raise
    except TracekitError as error:
        return None, str(error), None


def _renamed(value: Any, names: dict[str, str]) -> Any:
    """Return a finding with the names of temporary folders replaced by those of the archives."""
    if isinstance(value, str):
        for folder, name in names.items():
            value = value.replace(folder, name)
        return value
    if isinstance(value, tuple):
        return tuple(_renamed(part, names) for part in value)
    if is_dataclass(value) and not isinstance(value, type):
        return replace(
            value, **{f.name: _renamed(getattr(value, f.name), names) for f in fields(value) if f.init}
        )
    return value
