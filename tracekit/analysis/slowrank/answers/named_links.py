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
from tracekit.analysis.slowrank.price import NOT_EXACT, Price, link_doubt_ns, may_cost_ns
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
    if found.price.best < case.residual_ns:
        return found.price.low >= max(least, case.pinned_residual_ns)
    return coverage(case).matched == 1 or found.price.low >= least


_Found = TypeVar("_Found", LongStage, SlowLink)


def least_proven(case: Case, found: _Found) -> _Found:
    """`found` with its lower bound as the price where the model's error exceeds its likely price."""
    price = found.price
    if price.best >= case.residual_ns:
        return found
    return replace(found, price=Price(price.low, price.low, price.high))


def link_answer(case: Case, link: SlowLink) -> Answer:
    """The answer that blames a slow link and names its ranks."""
    (row,) = CAUSES["network"].signs[0].rows
    evidence = (Evidence(row.what, ms(link.slow_ns), ms(link.peers_ns), "ms"),)
    price = link.price.widened(link_doubt_ns(case, link.price.best, link.z))
    suspects = link_suspects(case, link, price, evidence)
    named = ", ".join(str(s.rank) for s in suspects)
    took = f"transfers of rank {named} take {link.ratio:.1f} times as long as their peers'"
    path = descend(case, suspects[0].rank) if suspects else ()
    return Answer(
        "slow_link",
        "network",
        f"{took} although all members arrived in time",
        suspects,
        path,
        link.price.best,
    )


def open_link_answer(case: Case, link: SlowLink) -> Answer:
    """The open answer that a link is slow at an unproven price."""
    near = link.price.high < MIN_LOST_SHARE * case.step_ns
    high = may_cost_ns(link.price.high, link.late) if near else link.price.high
    reason = (
        f"transfers of {ranks_in_words(link.ranks)} take {link.ratio:.1f} times as long as their peers'; the others "
        f"lose between {ms(link.price.low):.1f} and {ms(high):.1f} ms of {ms(case.step_ns):.1f} ms a step by it, "
        "because "
    )
    matched = coverage(case).matched
    beside = matched is not None and matched >= COVERAGE_WHOLE
    why = NOT_EXACT if near else _BESIDE if beside else why_open(case)
    reason += link.layout or (_GUESSED if link.guessed else why)
    unproven = beside or near or link.guessed or link.layout
    decide = NAME_NODES if link.layout == UNPLACED else _WITHOUT_LINK if unproven else what_would_decide(case)
    candidates = link_suspects(case, link, Price.between(link.price.low, link.price.best, high), ())
    return left_open(reason, decide, candidates)


_GUESSED = "only the end times show which ranks take part in its transfers"
_BESIDE = "communication that waits for it slows the compute that overlaps with it, by an unknown amount"
_WITHOUT_LINK = (
    "record a few steps with these ranks on other hosts, or with another cable, and compare the step times"
)


def link_suspects(
    case: Case, link: SlowLink, price: Price, evidence: tuple[Evidence, ...]
) -> tuple[Suspect, ...]:
    """The recorded ranks at a slow link, each with the `price` of the link."""
    return tuple(
        suspect_of(case, case.steps.row(r), price, link.z, "network", evidence, every=True)
        for r in link.ranks
        if r in case.steps.ranks
    )
