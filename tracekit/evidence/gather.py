"""All evidence of a stuck job among files: recognised by content, read by the module of its kind.

Dumps and traces have readers of their own; this module only recognises them. Used by the commands `hang` and `triage`.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, cast

from tracekit.dumps.load import DumpSet, load_dumps, load_dumps_without
from tracekit.evidence.bundle import Bundle
from tracekit.evidence.counters import Sample, samples_of
from tracekit.evidence.log_file import LogFile, agent_of_path
from tracekit.evidence.logs import read_log
from tracekit.evidence.ras import RasReport, read_ras
from tracekit.evidence.recognise import Form, form_of, quotes_logs
from tracekit.evidence.stack_places import RankStack
from tracekit.evidence.stacks import stacks_in
from tracekit.files.discover import Found, Inputs, Wanted, discover, listed
from tracekit.files.source import ByteStream, Source
from tracekit.findings import Quality, Rejected
from tracekit.findings.triage import EvidenceKind, FoundFile
from tracekit.text import rank_names
from tracekit.thresholds.evidence import HOSTS_SHOWN, MAX_RAS_BYTES

Progress = Callable[[int, int, int, int], None]
"""Called with files done, files in all, bytes done, bytes in all."""
_QUOTED: Final = frozenset({"text", "ras", "stacks", "inspector"})
"""Forms of texts that pages and programs may quote."""
EVERYTHING: Final = Wanted(lambda name: not name.startswith("."), part="", patterns_name_files=True)
"""The files that a search for evidence takes: any."""


@dataclass
class Gathered:
    """The evidence of a set of files. by_form: the files of forms that others read; unknown: what nothing reads."""

    logs: list[LogFile] = field(default_factory=list)
    ras: list[RasReport] = field(default_factory=list)
    stacks: list[RankStack] = field(default_factory=list)
    counters: dict[str, list[Sample]] = field(default_factory=dict)
    """Values of counters, by file."""
    files: list[FoundFile] = field(default_factory=list)
    by_form: dict[Form, list[str]] = field(default_factory=dict)
    unknown: list[str] = field(default_factory=list)
    rejected: list[Rejected] = field(default_factory=list)

    @property
    def read(self) -> frozenset[str]:
        """Return the paths of the files that were read here."""
        return frozenset(file.path for file in self.files)

    def bundle(self, expected: int | None = None) -> Bundle:
        """Return the evidence that was read here, without dumps."""
        reports = sorted(self.ras, key=lambda report: (report.time or "", report.path))
        quality = [
            Quality("damaged_file", log.path, 1, f"{log.damage}; the part before that was read")
            for log in self.logs
            if log.damage
        ]
        return Bundle(
            None,
            tuple(self.logs),
            tuple(reports),
            tuple(self.stacks),
            expected,
            tuple(self.rejected),
            tuple(quality),
        )


def find_everything(inputs: Sequence[str]) -> Found:
    """Return all files that inputs name; InputError where one of them names nothing."""
    return discover(inputs, EVERYTHING)


def load_evidence(
    inputs: Inputs,
    jobs: int = 1,
    progress: Progress | None = None,
    *,
    job: int | None = None,
    expected: int | None = None,
) -> Bundle:
    """Return all evidence of a stuck job in the files that `inputs` name: dumps, logs, RAS answers, stacks.

    Of a recorded run, the attempts that failed before are left out.

    jobs, progress, job: as for `load_dumps`. expected: the job's ranks, where a mesh gives them. Where there is nothing
    but dumps, or nothing at all, the errors are those of `load_dumps`.
    """
    named = listed(inputs)
    everything = find_everything(named)
    own = (s for s in everything.sources if not everything.within_another(s.label))
    found = gather(own, named=everything.named)
    if not found.read:
        return Bundle(load_dumps(named, jobs, progress, job=job), expected=expected)
    bundle = found.bundle(expected)
    return replace(bundle, dumps=dumps_beside(found, named, jobs, progress, job))


def dumps_beside(
    found: Gathered, inputs: Sequence[str], jobs: int, progress: Progress | None, job: int | None
) -> DumpSet | None:
    """Return the dumps among inputs that hold other evidence as well; None where there are none."""
    if not found.by_form.get("dump"):
        return None
    return load_dumps_without(found.read, inputs, jobs, progress, job=job)


def gather(
    sources: Iterable[Source], progress: Progress | None = None, *, named: Collection[str] = ()
) -> Gathered:
    """Return the evidence in these files; a file that cannot be read is listed with the reason.

    named: labels of the files that the user names one by one. Of others, pages and programs are no evidence: they may
    quote some.
    """
    listed = list(sources)
    agents = len({agent[0] for source in listed if (agent := agent_of_path(source.uri)) is not None}) or 1
    total, done = sum(s.size for s in listed), 0
    found = Gathered()
    for number, source in enumerate(listed):
        try:
            _read(found, source, agents, named=source.label in named)
        except OSError as error:
            found.rejected.append(Rejected(source.label, f"cannot be read ({error.strerror or error})"))
        except (ValueError, RecursionError, MemoryError) as error:
            found.rejected.append(
                Rejected(source.label, f"damaged ({type(error).__name__}: {str(error)[:100]})")
            )
        done += source.size
        if progress is not None:
            progress(number + 1, len(listed), done, total)
    return found


def _read(found: Gathered, source: Source, agents: int, *, named: bool) -> None:
    form = form_of(source)
    if form in _QUOTED and not named and quotes_logs(source):
        found.unknown.append(source.label)
    elif form == "text":
        _read_log(found, source, agents)
    elif form == "ras":
        report = read_ras(source.label, _whole(source))
        found.ras.append(report)
        detail = f"{len(report.communicators)} communicators" + (
            f"; dead: {len(report.dead)}" if report.dead else ""
        )
        _add(found, "nccl_ras", source, report.ranks, (report.time, report.time), detail)
    elif form == "stacks":
        stacks = stacks_in(source.label, _whole(source), agents=agents)
        found.stacks.extend(stacks)
        ranks = {s.rank for s in stacks if s.rank is not None}
        kind = cast("EvidenceKind", stacks[0].kind if stacks else "py_spy")
        unnamed = sum(s.rank is None for s in stacks)
        detail = f"{len(stacks)} processes" + (f", {unnamed} of unknown rank" if unnamed else "")
        _add(found, kind, source, ranks, (None, None), detail)
    elif form == "counters":
        host = source.name.partition(".")[0]
        samples = list(samples_of(_whole(source).splitlines(), host))
        found.counters[source.label] = samples
        hosts = sorted({sample.host for sample in samples})
        times = [f"{at // 1000} s" if at else None for at in _span(sample.ms for sample in samples)]
        detail = f"{len(samples)} values of {', '.join(hosts[:HOSTS_SHOWN])}" + (
            f" and {len(hosts) - HOSTS_SHOWN} more hosts" if len(hosts) > HOSTS_SHOWN else ""
        )
        _add(found, "counters", source, (), (times[0], times[1]), detail)
    elif form in {"unknown", "empty"}:
        found.unknown.append(source.label)
    else:
        found.by_form.setdefault(form, []).append(source.label)


def _read_log(found: Gathered, source: Source, agents: int) -> None:
    """Read a text file; it is a log where a line reports a failure, else it is unknown."""
    log = read_log(source, agents=agents)
    if not log.lines:
        found.unknown.append(source.label)
        return
    found.logs.append(log)
    found.stacks.extend(log.stacks)
    times = tuple(when.text if when is not None else None for when in (log.first, log.last))
    kind: EvidenceKind = "watchdog_log" if log.watchdog else "job_log"
    _add(found, kind, source, log.ranks, cast("tuple[str | None, str | None]", times), _log_detail(log))


def _log_detail(log: LogFile) -> str:
    """Return what a log shows, in a few words."""
    own = [death for death in log.deaths if not death.consequence]
    timed_out = {rank for rank, marks in log.marks.items() if any(mark.work for mark in marks.values())}
    parts = [f"states of {len(log.marks)} ranks"] if log.marks else []
    parts += [f"time-outs of {rank_names(timed_out)}"] if timed_out else []
    parts += [f"{len(own)} reports of processes that died"] if own else []
    parts += [f"{len(log.waits.signs)} warnings"] if log.waits.signs else []
    parts += [f"stacks of {len({(s.rank, s.pid) for s in log.stacks})} processes"] if log.stacks else []
    calling = sum(bool(process.lines) for process in log.nccl)
    parts += [f"calls of {calling} process{'es'[: 2 * (calling > 1)]}"] if calling else []
    return ", ".join(parts)


def _add(
    found: Gathered,
    kind: EvidenceKind,
    source: Source,
    ranks: Iterable[int],
    times: tuple[str | None, str | None],
    detail: str,
) -> None:
    found.files.append(FoundFile(kind, source.label, tuple(sorted(ranks)), times[0], times[1], None, detail))


def _span(times: Iterable[int]) -> tuple[int, int]:
    """Return the first and the last known time; 0 for none."""
    known = [at for at in times if at]
    return min(known, default=0), max(known, default=0)


def _whole(source: Source) -> bytes:
    """Return the decompressed bytes of a file; ValueError where they are more than any such file holds."""
    parts, size = [], 0
    with source.open() as raw:
        for block in ByteStream(raw).blocks():
            parts.append(block)
            size += len(block)
            if size > MAX_RAS_BYTES:
                raise ValueError(f"larger than {MAX_RAS_BYTES >> 20} MiB")
    return b"".join(parts)
