"""Answers that leave it open whether a pipeline stage is to blame, or clear it."""

from collections.abc import Sequence
from dataclasses import replace

from tracekit.analysis.slowrank.case import Case
from tracekit.analysis.slowrank.evidence_gaps import coverage, what_would_decide
from tracekit.analysis.slowrank.long_stage import LongStage
from tracekit.analysis.slowrank.open_answers import why_open
from tracekit.analysis.slowrank.suspects import Answer, suspect_of
from tracekit.analysis.slowrank.wording import add_traces, listed
from tracekit.findings import Cause, Suspect
from tracekit.thresholds.slowrank import MIN_LOST_SHARE
from tracekit.units import ms


def open_stage_answer(case: Case, stage: LongStage) -> Answer:
    """A stage works longer than the others, and too much is unmatched to tell whether they wait for it."""
    reason = (
        f"pipeline stage {stage_of(case, stage)} works {ms(stage.over):.1f} ms of {ms(case.step_ns):.1f} ms a step "
        f"longer than the others; they lose between {ms(stage.low):.1f} and {ms(stage.high):.1f} ms by it, because "
        f"{why_open(coverage(case).matched)}"
    )
    candidates = of_stage(case, stage, "stage_imbalance")
    return Answer("inconclusive", "unknown", reason, candidates=candidates, to_decide=what_would_decide(case))


def lonely_stage_answer(case: Case, stage: LongStage, unseen: Sequence[int]) -> Answer:
    """One rank of a stage was read, and works longer than the other stages: its peers left no trace to compare with."""
    rank = case.steps.ranks[stage.rows[0]]
    reason = (
        f"rank {rank} works {ms(stage.over):.1f} ms of {ms(case.step_ns):.1f} ms a step longer than the ranks of the "
        f"other stages, and of its own stage {stage_of(case, stage)} no other rank was read: nothing tells a slow rank "
        "from a long stage"
    )
    candidates = of_stage(case, stage, "stage_imbalance")
    to_decide = add_traces(unseen)
    return Answer("inconclusive", "unknown", reason, candidates=candidates, to_decide=to_decide)


def idle_stage_answer(case: Case, stage: LongStage) -> Answer:
    """The devices of a stage stand still between kernels more than the others': nobody's fault if hosts are alike."""
    still = (
        f"the devices of pipeline stage {stage_of(case, stage)} stand still {ms(stage.over):.1f} ms of "
        f"{ms(case.step_ns):.1f} ms a step more than the others' until their hosts launch"
    )
    if stage.by_design:
        reason = f"{still}: the processes of all its ranks pause alike, on every node, as if they loaded data"
        return Answer("healthy", None, reason)
    if stage.paused:
        few = replace(stage, rows=stage.paused)
        named = listed([case.steps.ranks[row] for row in stage.paused])
        return Answer(
            "inconclusive", "unknown", f"{still}, for the process of rank {named} pauses",
            candidates=of_stage(case, few, "host_stall"),
            to_decide="record its peers in the other replicas, and look at what that process does besides training",
        )  # fmt: skip
    if stage.hosts_alike:
        reason = (
            f"no rank, stage or link works {MIN_LOST_SHARE:.0%} of the step longer than its peers; {still}: the hosts "
            "of other stages are no quicker, but run ahead while they wait"
        )
        return Answer("healthy", None, reason)
    reason = f"{still}, and its hosts are slower than theirs or were not recorded"
    return Answer(
        "inconclusive", "unknown", reason, candidates=of_stage(case, stage, "cpu_launch"),
        to_decide="record the host as well (ProfilerActivity.CPU), and profile the hosts of that stage",
    )  # fmt: skip


def of_stage(case: Case, stage: LongStage, cause: Cause) -> tuple[Suspect, ...]:
    """The ranks of a stage as candidates, each with the interval of what the stage costs."""
    low, high = ms(stage.low), ms(stage.high)
    found = [suspect_of(case, row, stage.gain, stage.z, cause, ()) for row in stage.rows]
    return tuple(replace(s, lost_ms_low=low, lost_ms_high=high) for s in found)


def stage_of(case: Case, found: LongStage) -> int:
    """The index of the stage."""
    return case.mesh.coords(case.steps.ranks[found.rows[0]])["pp"]
