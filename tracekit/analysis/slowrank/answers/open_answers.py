"""Open answers: the reason, the ranks that may be slow, and what to record to decide."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from tracekit.analysis.slowrank.case import Case
from tracekit.analysis.slowrank.gaps.evidence_gaps import (
    Undecided,
    coverage,
    undecided,
    what_would_decide,
)
from tracekit.analysis.slowrank.gaps.recurrence import OneStep, in_one_step, told
from tracekit.analysis.slowrank.hypotheses.excess_parts import may_be_pace
from tracekit.analysis.slowrank.price import Price
from tracekit.analysis.slowrank.suspects import Answer, explain_rank, left_open, stands, suspect_of
from tracekit.analysis.slowrank.unrecorded.unrecorded import Unseen, reason_of
from tracekit.analysis.slowrank.wording import fewest_traces
from tracekit.findings import Suspect
from tracekit.thresholds.slowrank import COVERAGE_WHOLE, PROVING_STEPS, RANKS_LISTED
from tracekit.units import ms


def leave_unseen_open(case: Case, unseen: Unseen) -> Answer:
    """The open answer where a rank without a trace may be the culprit.

    The ranks without a trace are candidates; each costs at most what the others spend in its groups. A recorded rank
    that works longer than its peers is one as well, and comes first if that is more than the others are known to wait.
    """
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
        recorded = candidates_of(case, open_)
        candidates = (*recorded, *candidates) if longer > unseen.known else (*candidates, *recorded)
        reason += f"; rank {case.steps.ranks[open_.rows[0]]} works {ms(longer):.1f} ms longer than its peers"
    elif (once := in_one_step(case)) is not None:
        first = once.excess > unseen.known
        recorded = (_once_candidate(case, once),)
        candidates = (*recorded, *candidates) if first else (*candidates, *recorded)
        reason += f"; {told(case, once)}"
    return left_open(reason, fewest_traces(case, unseen.ranks), candidates)


def leave_one_step_open(case: Case, found: OneStep) -> Answer:
    """The open answer about a rank that was slow in one step; too few others were recorded to know if it recurs."""
    candidate = _once_candidate(case, found)
    costs = f"which costs up to {ms(found.gain):.1f} ms a step"
    reason = f"{told(case, found)}, {costs}: one step cannot separate a fault from chance"
    return left_open(reason, "record more steps: a fault recurs", (candidate,))


def _once_candidate(case: Case, found: OneStep) -> Suspect:
    """The rank that was slow in one step as a candidate, priced from zero, because that may be chance."""
    why = explain_rank(case, found.row, (found.row,))
    return suspect_of(case, found.row, Price.up_to(found.gain, found.gain), 0.0, *why)


def leave_unproven_open(case: Case, price: float) -> Answer:
    """The open answer where the step model's error exceeds the price that it gives."""
    reason = (
        f"the model of the step puts the cost at {ms(price):.1f} ms, but that model differs from the recorded steps "
        f"by {ms(case.residual_ns):.1f} ms of {ms(case.step_ns):.1f} ms, so the cost is not proven"
    )
    open_ = undecided(case)
    candidates = candidates_of(case, open_) if open_ is not None else ()
    return left_open(reason, what_would_decide(case), candidates)


def leave_disagreeing_open(case: Case, suspects: Sequence[Suspect]) -> Answer:
    """The open answer about ranks with an excess that does not support their price: all are candidates."""
    first = next(s for s in suspects if not stands(case, s) or may_be_pace(case, s, suspects))
    reason = f"without rank {first.rank} a step would save {first.lost_ms_per_step:.1f} ms of {ms(case.step_ns):.1f} ms"
    reason += f", but {_PACE if may_be_pace(case, first, suspects) else _DISAGREE}"
    candidates = tuple(replace(s, confidence=0.0, lost_ms_low=0.0) for s in suspects)
    return left_open(reason, what_would_decide(case), candidates)


_DISAGREE: Final = "its own time exceeds its peers' by less: excess, cost and cause disagree"
_PACE: Final = (
    "its gaps may be the usual pace of hosts: where hosts set the pace, only the device of the last host is idle, and "
    "nothing shows that this host is slower than others"
)


def leave_rank_open(case: Case, found: Undecided) -> Answer:
    """The open answer about a rank with an excess; too little was matched to show whether the others wait for it."""
    candidates = candidates_of(case, found)
    more = len(candidates) - 1
    subject = (
        f"rank {candidates[0].rank} and {more} more work" if more else f"rank {candidates[0].rank} works"
    )
    peers = "their peers" if more else "its peers"
    longer = ms(float(case.found.mean[found.rows[0]]))
    reason = (
        f"{subject} {longer:.1f} ms of {ms(case.step_ns):.1f} ms a step longer than {peers}; the others lose between "
        f"{ms(found.low[0]):.1f} and {ms(found.high[0]):.1f} ms by it, because {why_open(case)}"
    )
    return left_open(reason, what_would_decide(case), candidates)


def leave_tokens_open(case: Case, found: Undecided) -> Answer:
    """The open answer about a rank that works longer mostly after all-to-alls of unrecorded sizes."""
    candidates = candidates_of(case, found)
    longer = ms(float(case.found.mean[found.rows[0]]))
    reason = (
        f"rank {candidates[0].rank} works {longer:.1f} ms of {ms(case.step_ns):.1f} ms a step longer than its peers, "
        "but mostly after some all-to-alls alone, like an expert that receives many tokens, and the traces hold no "
        "sizes of all-to-alls"
    )
    return left_open(reason, _SIZES, candidates)


_SIZES = (
    "record the sizes of all-to-alls: torch 2.2 or newer, with ProfilerActivity.CPU and record_shapes=True"
)


def why_open(case: Case) -> str:
    """The reason that a price is an interval: unmatched waits, unrecorded launches, or gaps in a table."""
    matched = coverage(case).matched
    if case.table is not None:
        return f"the model of the table's operations differs from the recorded steps by {ms(case.residual_ns):.1f} ms"
    if case.concealing is not None and matched == 1:
        return "no compute was recorded: the others may have worked beside the communication that waited"
    if matched is not None and matched >= COVERAGE_WHOLE:
        return "the traces do not show when queued operations could have started"
    share = "none" if matched is None else f"only {matched:.0%}"
    return f"{share} of the exposed communication could be matched between ranks"


def leave_only_step_open(case: Case, found: Undecided) -> Answer:
    """The open answer about a rank that works longer than its peers in the only step that it recorded whole."""
    candidates = candidates_of(case, found)
    longer = ms(float(case.found.mean[found.rows[0]]))
    of, whole = ("of it ", " whole") if len(case.steps.numbers) > 1 else ("", "")
    reason = (
        f"rank {candidates[0].rank} works {longer:.1f} ms of {ms(case.step_ns):.1f} ms longer than its peers, but only "
        f"one step {of}was recorded{whole}, and one step cannot separate a slow rank from chance"
    )
    return left_open(reason, whole_steps(case), candidates)


def whole_steps(case: Case) -> str:
    """The advice on what to record where only one step was compared."""
    if case.table is not None:
        return "write three whole steps or more of every rank into the table"
    marks = ", and call the profiler's step() after each, so that the traces mark them"
    return "record three whole steps or more on every rank" + ("" if case.steps.labelled else marks)


def more_steps(case: Case) -> str:
    """The advice on how many steps to record: as many as prove a faint excess, or twice as many as there are."""
    recorded = len(case.steps.numbers)
    return f"record {PROVING_STEPS if recorded < PROVING_STEPS else 2 * recorded} steps or more"


def candidates_of(case: Case, found: Undecided) -> tuple[Suspect, ...]:
    """The ranks of `found` as candidates, each with its cause, its evidence and its price interval."""
    made = []
    for row, low, high in zip(found.rows, found.low, found.high, strict=True):
        z, why = float(case.found.z[row]), explain_rank(case, row, found.rows)
        made.append(suspect_of(case, row, Price.between(low, low, high), z, *why))
    return tuple(made)
