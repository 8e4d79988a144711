"""Answers that leave it open who is slow, with the candidates and what would decide."""

from dataclasses import replace

from tracekit.analysis.slowrank.case import Case
from tracekit.analysis.slowrank.evidence_gaps import Undecided, coverage, undecided, what_would_decide
from tracekit.analysis.slowrank.recurrence import OneStep, told
from tracekit.analysis.slowrank.suspects import Answer, explain_rank, suspect_of
from tracekit.analysis.slowrank.unrecorded import Unseen, reason_of
from tracekit.analysis.slowrank.wording import listed
from tracekit.findings import Suspect
from tracekit.thresholds.slowrank import COVERAGE_WHOLE, RANKS_LISTED
from tracekit.units import ms


def unseen_answer(case: Case, unseen: Unseen) -> Answer:
    """A rank without a trace may be the culprit, so nobody is named and nothing is healthy.

    The ranks without a trace are candidates. What each costs is known only as a bound: at most what the others spend in
    its groups. A recorded rank that works longer than its peers is a candidate as well, and stands first if it does so
    by more than the others are known to wait.
    """
    to_decide = f"add the trace of rank {listed(unseen.ranks)}"
    low, high = ms(unseen.known), ms(max(unseen.known, unseen.undecided))
    steps, mesh = case.steps.numbers, case.mesh
    candidates = tuple(
        Suspect(
            r,
            None,
            mesh.coords(r) if r in mesh.coordinates else {},
            low,
            0.0,
            steps,
            "unknown",
            (),
            0.0,
            high,
        )
        for r in unseen.ranks[:RANKS_LISTED]
    )
    reason = reason_of(case, unseen)
    open_ = undecided(case)
    if open_ is not None:
        longer = float(case.found.mean[open_.rows[0]])
        recorded = _candidates(case, open_)
        candidates = (*recorded, *candidates) if longer > unseen.known else (*candidates, *recorded)
        reason += f"; rank {case.steps.ranks[open_.rows[0]]} works {ms(longer):.1f} ms longer than its peers"
    return Answer("inconclusive", "unknown", reason, candidates=candidates, to_decide=to_decide)


def one_step_answer(case: Case, found: OneStep) -> Answer:
    """A rank was slow in one step, and too few other steps were recorded to tell whether that recurs."""
    cause, evidence = explain_rank(case, found.row, (found.row,))
    candidate = suspect_of(case, found.row, found.gain, 0.0, cause, evidence)
    candidate = replace(candidate, lost_ms_low=0.0, lost_ms_high=ms(found.gain))
    costs = f"which costs {ms(found.gain):.1f} ms a step"
    reason = f"{told(case, found)}, {costs}: one step does not tell a fault from chance"
    return Answer(
        "inconclusive",
        "unknown",
        reason,
        candidates=(candidate,),
        to_decide="record more steps: a fault recurs",
    )


def unproven_answer(case: Case, price: float) -> Answer:
    """The step model does not reproduce the recorded steps well enough for the price that it gives."""
    reason = (
        f"an explanation costs {ms(price):.1f} ms a step, but the model of the recorded steps misses them by "
        f"{ms(case.residual_ns):.1f} ms of {ms(case.step_ns):.1f} ms: the price proves nothing"
    )
    open_ = undecided(case)
    candidates = _candidates(case, open_) if open_ is not None else ()
    return Answer("inconclusive", "unknown", reason, candidates=candidates, to_decide=what_would_decide(case))


def open_answer(case: Case, found: Undecided) -> Answer:
    """A rank works longer than its peers, and too much is unmatched to tell whether the others wait for it."""
    candidates = _candidates(case, found)
    first, matched = candidates[0], coverage(case).matched
    longer = ms(float(case.found.mean[found.rows[0]]))
    reason = (
        f"rank {first.rank} works {longer:.1f} ms of {ms(case.step_ns):.1f} ms a step longer than its peers; the "
        f"others lose between {ms(found.low[0]):.1f} and {ms(found.high[0]):.1f} ms by it, because {_why_open(matched)}"
    )
    return Answer("inconclusive", "unknown", reason, candidates=candidates, to_decide=what_would_decide(case))


def _why_open(matched: float | None) -> str:
    """Why a price is an interval: waits without partners, or launches that were not recorded."""
    if matched is not None and matched >= COVERAGE_WHOLE:
        return "the traces do not tell when queued operations could have started"
    share = "none" if matched is None else f"only {matched:.0%}"
    return f"{share} of the exposed communication could be matched between ranks"


def unread_answer(case: Case) -> Answer:
    """Nobody works longer than the others, but hardly any wait was matched: a slow link would not show."""
    matched = coverage(case).matched or 0.0
    reason = (
        f"no rank works longer than its peers, but only {matched:.0%} of the exposed communication could be matched "
        "between ranks, so that slow transfers and late ranks would not show"
    )
    return Answer("inconclusive", "unknown", reason, to_decide=what_would_decide(case))


def only_step_answer(case: Case, found: Undecided) -> Answer:
    """A rank works longer than its peers in the only step that there is."""
    candidates = _candidates(case, found)
    longer = ms(float(case.found.mean[found.rows[0]]))
    reason = (
        f"rank {candidates[0].rank} works {longer:.1f} ms of {ms(case.step_ns):.1f} ms longer than its peers, but only "
        "one step was recorded, and one step cannot tell a slow rank from an accident"
    )
    decide = (
        "record three steps or more, and call the profiler's step() after each, so that the traces mark them"
    )
    return Answer("inconclusive", "unknown", reason, candidates=candidates, to_decide=decide)


def _candidates(case: Case, found: Undecided) -> tuple[Suspect, ...]:
    """The ranks that may cost more than the threshold, each with its interval."""
    made = []
    for row, low, high in zip(found.rows, found.low, found.high, strict=True):
        cause, evidence = explain_rank(case, row, found.rows)
        suspect = suspect_of(case, row, low, float(case.found.z[row]), cause, evidence)
        made.append(replace(suspect, lost_ms_low=ms(low), lost_ms_high=ms(high)))
    return tuple(made)
