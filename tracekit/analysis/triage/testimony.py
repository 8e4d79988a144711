"""What each kind of evidence, taken alone, makes of the answer; and what to collect next. Part of `triage`."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final, get_args

from tracekit.analysis.hang.witnesses.judge import judge_evidence
from tracekit.analysis.triage.beside_traces import SOUND, listed
from tracekit.analysis.triage.found_files import Job
from tracekit.errors import TracekitError
from tracekit.evidence.bundle import Bundle
from tracekit.evidence.counters import Sample, signs_of
from tracekit.evidence.stack_lines import StackKind
from tracekit.findings.hang import HangFinding
from tracekit.findings.slowrank import SlowRankFinding
from tracekit.findings.triage import EvidenceKind, Says, Testimony, ToCollect
from tracekit.placement import same_host
from tracekit.text import rank_names
from tracekit.thresholds.hang import NAMED_IN_DOUBT

DUMPS: Final = ToCollect(
    "TORCH_FR_BUFFER_SIZE=2000 TORCH_NCCL_DUMP_ON_TIMEOUT=1 TORCH_FR_DUMP_TEMP_FILE=/shared/fr/rank_ torchrun ...",
    "flight-recorder dumps hold each rank's calls, with sizes and stacks (earlier names: TORCH_NCCL_TRACE_BUFFER_SIZE, "
    "TORCH_NCCL_DEBUG_INFO_TEMP_FILE)",
)
RAS: Final = ToCollect(
    "ncclras -f json > ras_1.json; sleep 60; ncclras -f json > ras_2.json",
    "while it hangs, on any host (NCCL 2.24 and later; without -f json before 2.28.7): counts that do not grow show "
    "which rank is late",
)
LOGS: Final = ToCollect(
    "torchrun --log-dir /shared/logs --redirects 3 --tee 3 ...",
    "one log of all ranks, each line with its rank",
)
TRACES: Final = ToCollect(
    "torch.profiler.profile(schedule=torch.profiler.schedule(wait=10, warmup=2, active=3), "
    "on_trace_ready=torch.profiler.tensorboard_trace_handler('traces'))",
    "traces of some steps of all ranks show which rank is slow",
)

EXPORT: Final = ToCollect(
    "nsys export --type sqlite --include-blobs=true --output rank3.sqlite rank3.nsys-rep",
    "for the report of each rank: only nsys reads its own reports, and `tracekit slowrank` reads what it exports",
)

_TIMED: Final[tuple[EvidenceKind, ...]] = ("run", "trace", "operation_table", "nsys", "nccl_inspector")
"""Kinds that show which rank is slow, in the order in which they are asked."""


def testimonies(
    bundle: Bundle,
    answer: HangFinding | SlowRankFinding | None,
    job: Job,
    mesh: dict[str, int] | None,
    order: Sequence[str] | None,
) -> tuple[Testimony, ...]:
    """Return what each kind of evidence says of the answer where it is asked alone."""
    if isinstance(answer, SlowRankFinding):
        ranks = answer.ranks
        detail = f"{ranks.read} of {ranks.expected} ranks: {answer.verdict}"
        kind = next((kind for kind in _TIMED if any(file.kind == kind for file in job.files)), None)
        return () if kind is None else (Testimony(kind, "supports", detail),)
    if answer is None:
        return ()
    return tuple(_say(kind, alone, answer, mesh, order) for kind, alone in _alone(bundle))


def counters_say(samples: Sequence[Sample], answer: HangFinding | None) -> tuple[Testimony, ...]:
    """Return what counters add to an answer about a hang: support by a sign of a named rank's host."""
    if not samples:
        return ()
    signs = signs_of(samples)
    named = () if answer is None else answer.culprits
    own = [sign for sign in signs if any(same_host(sign.host, culprit.host) for culprit in named)]
    shown = listed(own or signs)
    return (Testimony("counters", "supports" if own else "silent", shown or f"{len(samples)} values{SOUND}"),)


def _alone(bundle: Bundle) -> Iterator[tuple[EvidenceKind, Bundle]]:
    """Yield each kind of evidence with a bundle of it alone."""
    nothing = Bundle(expected=bundle.expected)
    if bundle.dumps is not None:
        yield "dump", replace(nothing, dumps=bundle.dumps)
    if bundle.logs:
        kind: EvidenceKind = "watchdog_log" if any(log.watchdog for log in bundle.logs) else "job_log"
        yield kind, replace(nothing, logs=bundle.logs)
    if bundle.ras:
        yield "nccl_ras", replace(nothing, ras=bundle.ras)
    for program in get_args(StackKind):
        if stacks := tuple(s for s in bundle.stacks if s.kind == program):
            yield program, replace(nothing, stacks=stacks)


def _say(
    kind: EvidenceKind,
    alone: Bundle,
    answer: HangFinding,
    mesh: dict[str, int] | None,
    order: Sequence[str] | None,
) -> Testimony:
    """Return what one kind says: the same ranks, others, or nothing."""
    try:
        finding = judge_evidence(alone, mesh, order)[0]
    except TracekitError as error:
        return Testimony(kind, "silent", str(error))
    own, named = ({c.rank for c in f.culprits} for f in (finding, answer))
    says: Says = "silent"
    if own and named:
        says = "supports" if own <= named else "contradicts"
    elif named and finding.verdict == "none":
        says = "silent"
    elif finding.verdict == answer.verdict and not named:
        says = "supports"
    elif own:
        says = "contradicts"
    return Testimony(kind, says, finding.headline())


def collect_next(
    answer: HangFinding | SlowRankFinding | None, bundle: Bundle, job: Job | None
) -> tuple[ToCollect, ...]:
    """Return what would tell more, the most telling first; nothing where nothing is wrong."""
    if isinstance(answer, SlowRankFinding):
        if answer.verdict == "inconclusive" and answer.to_decide:
            return (ToCollect("tracekit slowrank PATH --explain", answer.to_decide),)
        return ()
    if answer is None and job is not None and job.by_form.get("nsys_report"):
        return (EXPORT,)
    if answer is None:
        return (LOGS, DUMPS, TRACES) if job is None else (TRACES,) if not job.by_form.get("trace") else ()
    if answer.verdict == "none":
        return ()
    return tuple(_for_hang(answer, bundle))


def _for_hang(answer: HangFinding, bundle: Bundle) -> Iterator[ToCollect]:
    asked = [c.rank for c in answer.culprits if c.kind in {"host_stalled", "device_stalled"}] or list(
        answer.candidates
    )
    stacks = {stack.rank for stack in bundle.stacks}
    lacking = [rank for rank in asked if rank not in stacks]
    if lacking:
        which = rank_names(lacking, NAMED_IN_DOUBT)
        yield ToCollect(
            "py-spy dump --pid PID > rank_R.txt",
            f"for {which}, twice, some seconds apart: the stacks show where each process is",
        )
    if answer.verdict != "inconclusive":
        return
    if answer.to_decide:
        yield ToCollect("tracekit triage PATH", f"again, with more: {answer.to_decide}")
    if bundle.dumps is None:
        yield DUMPS
    if not bundle.ras:
        yield RAS
    if not bundle.logs:
        yield LOGS
