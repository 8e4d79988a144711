"""Answers about slow links, blamed or with an open price, and the proven part of a price."""

from dataclasses import replace
from typing import TypeVar

from tracekit.analysis.slowrank.answers.open_answers import why_open
from tracekit.analysis.slowrank.case import Case
from tracekit.analysis.slowrank.descent import descend
from tracekit.analysis.slowrank.expected.nodes import NAME_NODES, UNPLACED
from tracekit.analysis.slowrank.gaps.evidence_gaps import coverage, what_would_decide
from tracekit.analysis.slowrank.hypotheses.long_stage import LongStage
from tracekit.analysis.slowrank.hypotheses.slow_link import SlowLink
from tracekit.analysis.slowrank.price_uncertainty import NOT_EXACT, may_cost_ns
from tracekit.analysis.slowrank.suspects import Answer, left_open, suspect_of
from tracekit.analysis.slowrank.wording import ranks_in_words
from tracekit.causes import CAUSES
from tracekit.findings import Evidence, Suspect
from tracekit.thresholds.slowrank import COVERAGE_WHOLE, MIN_LOST_SHARE
from tracekit.units import ms


def shown(case: Case, found: LongStage | SlowLink) -> bool:
    """Whether the evidence proves a price of `found`: the model reproduces the recording, or the lower bound suffices.

    Where much is unmatched, the model that keeps recorded lengths reproduces the recording best.
    """
    least = MIN_LOST_SHARE * case.step_ns
    if isinstance(found, SlowLink) and (found.guessed or found.layout):
        return False
    if found.gain < case.residual_ns:
        return found.low >= max(least, case.pinned_residual_ns)
    return coverage(case).matched == 1 or found.low >= least


_Found = TypeVar("_Found", LongStage, SlowLink)


def least_proven(case: Case, found: _Found) -> _Found:
    """`found` with its lower bound as the price where the model's error exceeds its likely price."""
    return replace(found, gain=min(found.gain, found.low)) if found.gain < case.residual_ns else found


def link_answer(case: Case, link: SlowLink) -> Answer:
    """The answer that blames a slow link and names its ranks."""
    (row,) = CAUSES["network"].signs[0].rows
    evidence = (Evidence(row.what, ms(link.slow_ns), ms(link.peers_ns), "ms"),)
    suspects = link_suspects(case, link, evidence)
    named = ", ".join(str(s.rank) for s in suspects)
    took = f"transfers of rank {named} take {link.ratio:.1f} times as long as their peers'"
    path = descend(case, suspects[0].rank) if suspects else ()
    return Answer(
        "slow_link", "network", f"{took} although all members arrived in time", suspects, path, link.gain
    )


def open_link_answer(case: Case, link: SlowLink) -> Answer:
    """The open answer that a link is slow at an unproven price."""
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
    return left_open(reason, decide, candidates)


_GUESSED = "only the end times show which ranks take part in its transfers"
_BESIDE = "communication that waits for it slows the compute that overlaps with it, by an unknown amount"
_WITHOUT_LINK = (
    "record a few steps with these ranks on other hosts, or with another cable, and compare the step times"
)


def link_suspects(case: Case, link: SlowLink, evidence: tuple[Evidence, ...]) -> tuple[Suspect, ...]:
    """The recorded ranks at a slow link, each with the price interval of the link."""
    return tuple(
        replace(
            suspect_of(case, case.steps.row(r), link.gain, link.z, "network", evidence, every=True),
            lost_ms_low=ms(min(link.low, link.gain)),
            lost_ms_high=ms(link.high),
        )
        for r in link.ranks
        if r in case.steps.ranks
    )
