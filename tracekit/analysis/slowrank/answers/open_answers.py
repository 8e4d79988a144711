"""Answers that leave it open who is slow, with the candidates and what would decide."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from tracekit.analysis.slowrank.case import Case
from tracekit.analysis.slowrank.expected.nodes import NAME_NODES, UNPLACED
from tracekit.analysis.slowrank.gaps.evidence_gaps import (
    Undecided,
    coverage,
    undecided,
    unmeasured,
    what_would_decide,
)
from tracekit.analysis.slowrank.gaps.lopsided import Lopsided
from tracekit.analysis.slowrank.gaps.recurrence import OneStep, in_one_step, told
from tracekit.analysis.slowrank.hypotheses.slow_link import SlowLink
from tracekit.analysis.slowrank.hypotheses.usual_pace import may_be_pace
from tracekit.analysis.slowrank.price_uncertainty import NOT_EXACT, may_cost_ns
from tracekit.analysis.slowrank.suspects import Answer, explain_rank, stands, suspect_of
from tracekit.analysis.slowrank.unrecorded.fewest import fewest_traces
from tracekit.analysis.slowrank.unrecorded.unrecorded import Unseen, reason_of
from tracekit.analysis.slowrank.wording import ranks_in_words
from tracekit.findings import Evidence, Suspect
from tracekit.step_graph.table_model import TableModel
from tracekit.thresholds.slowrank import COVERAGE_WHOLE, MIN_LOST_SHARE, RANKS_LISTED
from tracekit.units import ms


def unseen_answer(case: Case, unseen: Unseen) -> Answer:
    """A rank without a trace may be the culprit, so nobody is named and nothing is healthy.

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
    decide = fewest_traces(case, unseen.ranks)
    return Answer("inconclusive", "unknown", reason, candidates=candidates, to_decide=decide)


def one_step_answer(case: Case, found: OneStep) -> Answer:
    """A rank was slow in one step, and too few other steps were recorded to tell whether that recurs."""
    candidate = _once_candidate(case, found)
    costs = f"which costs up to {ms(found.gain):.1f} ms a step"
    reason = f"{told(case, found)}, {costs}: one step does not tell a fault from chance"
    return Answer(
        "inconclusive",
        "unknown",
        reason,
        candidates=(candidate,),
        to_decide="record more steps: a fault recurs",
    )


def _once_candidate(case: Case, found: OneStep) -> Suspect:
    """The rank that was slow in one step, as a candidate: what that costs may be chance."""
    cause, evidence = explain_rank(case, found.row, (found.row,))
    candidate = suspect_of(case, found.row, found.gain, 0.0, cause, evidence)
    return replace(candidate, lost_ms_low=0.0, lost_ms_high=ms(found.gain))


def unproven_answer(case: Case, price: float) -> Answer:
    """The step model does not reproduce the recorded steps well enough for the price that it gives."""
    reason = (
        f"by the model of the step, what was found costs {ms(price):.1f} ms; but that model misses the recorded steps "
        f"by {ms(case.residual_ns):.1f} ms of {ms(case.step_ns):.1f} ms, so the price proves nothing"
    )
    open_ = undecided(case)
    candidates = candidates_of(case, open_) if open_ is not None else ()
    return Answer("inconclusive", "unknown", reason, candidates=candidates, to_decide=what_would_decide(case))


def disagreeing_answer(case: Case, suspects: Sequence[Suspect]) -> Answer:
    """Ranks have a price that their own time beside their peers' does not carry: they are candidates."""
    first = next(s for s in suspects if not stands(case, s) or may_be_pace(case, s, suspects))
    reason = f"without rank {first.rank} a step would save {first.lost_ms_per_step:.1f} ms of {ms(case.step_ns):.1f} ms"
    reason += f", but {_PACE if may_be_pace(case, first, suspects) else _DISAGREE}"
    candidates = tuple(replace(s, confidence=0.0, lost_ms_low=0.0) for s in suspects)
    return Answer("inconclusive", "unknown", reason, candidates=candidates, to_decide=what_would_decide(case))


_DISAGREE: Final = "its own time beside its peers' does not explain as much: excess, price and cause disagree"
_PACE: Final = (
    "its gaps may be the usual pace of hosts: where these set it, only the device of the last one stands still, and "
    "nothing tells that its host needs longer than others"
)


def open_answer(case: Case, found: Undecided) -> Answer:
    """A rank works longer than its peers, and too much is unmatched to tell whether the others wait for it."""
    candidates = candidates_of(case, found)
    first = candidates[0]
    longer = ms(float(case.found.mean[found.rows[0]]))
    reason = (
        f"rank {first.rank} works {longer:.1f} ms of {ms(case.step_ns):.1f} ms a step longer than its peers; the "
        f"others lose between {ms(found.low[0]):.1f} and {ms(found.high[0]):.1f} ms by it, because {why_open(case)}"
    )
    return Answer("inconclusive", "unknown", reason, candidates=candidates, to_decide=what_would_decide(case))


def open_tokens_answer(case: Case, found: Undecided) -> Answer:
    """A rank works longer than its peers behind all-to-alls alone, whose sizes were not recorded."""
    candidates = candidates_of(case, found)
    longer = ms(float(case.found.mean[found.rows[0]]))
    reason = (
        f"rank {candidates[0].rank} works {longer:.1f} ms of {ms(case.step_ns):.1f} ms a step longer than its peers, "
        "but mostly behind every second all-to-all, as experts do that get many tokens, and no sizes were recorded"
    )
    return Answer("inconclusive", "unknown", reason, candidates=candidates, to_decide=_SIZES)


_SIZES = (
    "record the sizes of all-to-alls: torch 2.2 or newer, with ProfilerActivity.CPU and record_shapes=True"
)


def open_link_answer(case: Case, link: SlowLink) -> Answer:
    """A link is slow, and too much is unmatched to tell whether anybody loses by it."""
    near = link.high < MIN_LOST_SHARE * case.step_ns
    high = may_cost_ns(link.high, link.late) if near else link.high
    reason = (
        f"transfers of {ranks_in_words(link.ranks)} take {link.ratio:.1f} times as long as their peers'; the others "
        f"lose between {ms(link.low):.1f} and {ms(high):.1f} ms of {ms(case.step_ns):.1f} ms a step by it, because "
    )
    matched = coverage(case).matched
    beside = matched is not None and matched >= COVERAGE_WHOLE
    why = NOT_EXACT if near else _BESIDE if beside else why_open(case)
    reason += link.layout or (_GUESSED if link.guessed else why)
    unproven = beside or near or link.guessed or link.layout
    decide = NAME_NODES if link.layout == UNPLACED else _WITHOUT_LINK if unproven else what_would_decide(case)
    candidates = link_suspects(case, replace(link, high=high), ())
    return Answer("inconclusive", "unknown", reason, candidates=candidates, to_decide=decide)


_GUESSED = "nothing tells who takes part in its transfers but when they ended"
_BESIDE = "compute takes longer beside communication that waits for it, and nothing tells by how much"
_WITHOUT_LINK = (
    "record a few steps with these ranks on other hosts, or with another cable, and compare the step times"
)


def link_suspects(case: Case, link: SlowLink, evidence: tuple[Evidence, ...]) -> tuple[Suspect, ...]:
    """The recorded ranks at a slow link, each with what the link may cost."""
    return tuple(
        replace(
            suspect_of(case, case.steps.row(r), link.gain, link.z, "network", evidence, every=True),
            lost_ms_low=ms(min(link.low, link.gain)),
            lost_ms_high=ms(link.high),
        )
        for r in link.ranks
        if r in case.steps.ranks
    )


def contradicted_answer(case: Case) -> Answer:
    """Nobody works longer than the others, but the recorded waits do not follow from the operations as matched."""
    if isinstance(case.model, TableModel):
        return _idle_answer(case, case.model)
    reason = (
        f"no rank works longer than its peers, but a replay of the recorded steps misses what the ranks waited by "
        f"{ms(case.pinned_residual_ns):.1f} ms of {ms(case.step_ns):.1f} ms a step: steps or operations of different "
        "ranks were put together that do not belong together"
    )
    if any(rank.on_gpu for rank in case.ops.per_rank.values()):
        return Answer("inconclusive", "unknown", reason, to_decide=_MARKS)
    reason += ", or devices worked unseen: the traces hold no kernel"
    return Answer("inconclusive", "unknown", reason, to_decide=f"{_KERNELS}; else {_MARKS}")


def _idle_answer(case: Case, model: TableModel) -> Answer:
    """Nobody works longer than the others, but operations of a table start later than all they wait for ends."""
    idle = model.idle.mean(axis=1)
    row = int(np.argmax(idle))
    reason = (
        f"no rank works longer than its peers, but {ms(case.residual_ns):.1f} ms of {ms(case.step_ns):.1f} ms a step "
        f"go into gaps between operations that no operation of the table explains; rank {case.steps.ranks[row]} lies "
        f"idle longest, {ms(float(idle[row])):.1f} ms a step"
    )
    decide = f"look at what the host of rank {case.steps.ranks[row]} does between operations: a table does not hold it"
    return Answer("inconclusive", "unknown", reason, to_decide=decide)


_KERNELS = "if the job ran on GPUs, give the profiler activities=[CPU, CUDA], and see that CUPTI can be used"
_MARKS = "call the profiler's step() after every step on every rank, and record all ranks for the same steps"


def lopsided_answer(case: Case, found: Lopsided) -> Answer:
    """A rank stands still longer than its peers in operations that were not matched, so that nothing tells for whom."""
    row, rank = found.row, case.steps.ranks[found.row]
    candidate = replace(
        suspect_of(case, row, 0.0, 0.0, "network", (), every=True),
        lost_ms_low=0.0,
        lost_ms_high=ms(found.over),
    )
    reason = (
        f"no rank works longer than its peers, but rank {rank} stands still {ms(found.over):.1f} ms of "
        f"{ms(case.step_ns):.1f} ms a step longer than they do in {found.kind} operations of which some were not "
        "matched: a slow link or a late rank would show so"
    )
    return Answer(
        "inconclusive", "unknown", reason, candidates=(candidate,), to_decide=what_would_decide(case)
    )


def why_open(case: Case) -> str:
    """Why a price is an interval: waits without partners, launches that were not recorded, gaps in a table."""
    matched = coverage(case).matched
    if isinstance(case.model, TableModel):
        return (
            f"the model of the table's operations misses the recorded steps by {ms(case.residual_ns):.1f} ms"
        )
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


def unmeasured_answer(case: Case) -> Answer:
    """Nobody who was measured works longer than the others, but some ranks recorded no compared step whole."""
    ranks = ranks_in_words(unmeasured(case))
    reason = (
        f"no rank works longer than its peers, but {ranks} recorded none of the compared steps whole, so that nothing "
        "is known of how long they work"
    )
    return Answer("inconclusive", "unknown", reason, to_decide=whole_steps(case))


def only_step_answer(case: Case, found: Undecided) -> Answer:
    """A rank works longer than its peers in the only step that it recorded whole."""
    candidates = candidates_of(case, found)
    longer = ms(float(case.found.mean[found.rows[0]]))
    of, whole = ("of it ", " whole") if len(case.steps.numbers) > 1 else ("", "")
    reason = (
        f"rank {candidates[0].rank} works {longer:.1f} ms of {ms(case.step_ns):.1f} ms longer than its peers, but only "
        f"one step {of}was recorded{whole}, and one step cannot tell a slow rank from an accident"
    )
    return Answer("inconclusive", "unknown", reason, candidates=candidates, to_decide=whole_steps(case))


def whole_steps(case: Case) -> str:
    """What decides where one step alone was compared."""
    return _STEPS_OF_TABLE if isinstance(case.model, TableModel) else _WHOLE_STEPS


_STEPS_OF_TABLE: Final = "write three whole steps or more of every rank into the table"
_WHOLE_STEPS: Final = (
    "record three whole steps or more on every rank, and call the profiler's step() after each, so that the traces "
    "mark them"
)


def candidates_of(case: Case, found: Undecided) -> tuple[Suspect, ...]:
    """The ranks that may cost more than the threshold, each with its interval."""
    made = []
    for row, low, high in zip(found.rows, found.low, found.high, strict=True):
        cause, evidence = explain_rank(case, row, found.rows)
        suspect = suspect_of(case, row, low, float(case.found.z[row]), cause, evidence)
        made.append(replace(suspect, lost_ms_low=ms(low), lost_ms_high=ms(high)))
    return tuple(made)
