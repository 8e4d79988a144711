"""The working of an answer: hypotheses with their intervals, gaps with what they could hide, the rule that decided.

The functions of the decision measure everything, so that the table and the verdict cannot differ.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

import numpy as np

from tracekit.analysis.slowrank.case import Case
from tracekit.analysis.slowrank.decision.gaps import widest_first
from tracekit.analysis.slowrank.evidence import Evidence
from tracekit.analysis.slowrank.gaps.evidence_gaps import bounds_of, least_ns, most_ns
from tracekit.analysis.slowrank.hypotheses.candidates import beside_waits, likely_saved_ns
from tracekit.analysis.slowrank.price import Price
from tracekit.analysis.slowrank.suspects import Answer, rows_named
from tracekit.analysis.slowrank.wording import ranks_in_words
from tracekit.causes import NETWORK
from tracekit.findings.slowrank import Considered, EvidenceGap, Explanation, Outcome
from tracekit.thresholds.report import RANKS_SHOWN
from tracekit.thresholds.slowrank import MIN_LOST_SHARE
from tracekit.units import NS_PER_MS, ms

_RULES: Final = {
    "slow_rank": "the most expensive significant hypothesis is named if its lowest price reaches the threshold",
    "slow_link": "the most expensive significant hypothesis is named if its lowest price reaches the threshold",
    "imbalance": "a stage, the data or moving stalls cost more than any single rank, and no rank is slow by itself",
    "healthy": "no significant hypothesis costs as much as the threshold",
    "inconclusive": "a hypothesis or a gap may cost as much as the threshold, and its lowest price does not prove it",
}


def explanation_of(case: Case, answer: Answer) -> Explanation:
    """Return the working of `answer` about `case`; the same case and answer give the same table."""
    least = case.threshold_ns
    evidence = Evidence(case)
    found = [*_ranks(evidence, answer), *_others(evidence, answer)]
    found.sort(key=lambda c: (-c.high_ms, c.kind, c.ranks))
    gaps = tuple(EvidenceGap(g.what, ms(g.could_hide), g.to_decide) for g in widest_first(evidence))
    decided = ", then ".join(rule.replace("_", " ") for rule in answer.rules)
    rule = (
        f"{_RULES[answer.verdict]} ({MIN_LOST_SHARE:.0%} of the step, {ms(least):.2f} ms); decided by the rule "
        f'"{decided}": {answer.reason}'
    )
    return Explanation(tuple(found), gaps, ms(least), rule)


def _ranks(measured: Evidence, answer: Answer) -> Iterator[Considered]:
    """The ranks with the largest excess or named in the answer, each alone, and the ranks that are slow together."""
    case, limit = measured.case, measured.case.found.limit
    excess = np.nan_to_num(case.found.mean, nan=-np.inf)
    longest = [int(r) for r in np.argsort(-excess, kind="stable") if excess[r] > 0][:RANKS_SHOWN]
    for row in dict.fromkeys(
        [*longest, *(row for row in rows_named(case, answer)[:RANKS_SHOWN] if excess[row] > 0)]
    ):
        rank, z = case.steps.ranks[row], float(np.nan_to_num(case.found.z[row]))
        price, subject = _answered(answer, rank), f"rank {rank} works longer than its peers"
        price = price or _measured(case, row)
        found = _considered(case, answer, "rank", subject, (rank,), price, z=z, limit=limit)
        yield replace(found, longer_ms=ms(float(excess[row])))
    together = measured.slow
    if together is not None and len(together.rows) > 1:
        rows, ranks = np.array(together.rows), tuple(case.ranks_of(together.rows))
        each = [one for rank in ranks if (one := _answered(answer, rank)) is not None]
        best = answer.gain if set(ranks) == {s.rank for s in answer.suspects} else together.gain
        most = max([most_ns(case, rows), *(one.high for one in each)])  # a set costs what a member does
        price = Price.between(least_ns(case, rows), best, most)
        subject = f"{ranks_in_words(ranks)} work longer than their peers"
        yield _considered(case, answer, "ranks", subject, ranks, price, z=max(together.z), limit=limit)


def _answered(answer: Answer, rank: int) -> Price | None:
    """The price of the work of `rank` in the answer; None where it has none."""
    ranks = answer.suspects if answer.verdict == "slow_rank" else answer.candidates
    found = next((s for s in ranks if s.rank == rank and s.cause != NETWORK), None)
    if found is None or found.lost_ms_low is None or found.lost_ms_high is None:
        return None
    return Price(*(v * NS_PER_MS for v in (found.lost_ms_low, found.lost_ms_per_step, found.lost_ms_high)))


def _measured(case: Case, row: int) -> Price:
    """The price of the rank in `row` alone."""
    rows = np.array([row])
    (bounds,) = bounds_of(case, rows).prices
    _, likely = beside_waits(case, rows, likely_saved_ns(case, rows))
    return Price(min(bounds.low, likely), likely, max(bounds.high, likely))


def _others(measured: Evidence, answer: Answer) -> Iterator[Considered]:
    """The hypotheses beside single ranks: a stage, a link, stalls in turn, uneven data, ranks without a trace."""
    case, stage, link, unseen = measured.case, measured.stage, measured.link, measured.unseen
    if stage is not None:
        ranks = tuple(case.ranks_of(stage.rows))
        subject = f"the stage of {ranks_in_words(ranks)} {'is idle' if stage.idle else 'works'} longer"
        named = answer.blames_stage
        yield _considered(case, answer, "stage", subject, ranks, stage.price, z=stage.z, named=named)
    if (lone := measured.lone) is not None:
        price = Price.exactly(lone.gain).widened(case.residual_ns)
        subject = f"rank {case.steps.ranks[lone.row]} is slow compared with ranks of other stages: {lone.comparison}"
        yield _considered(case, answer, "rank", subject, (case.steps.ranks[lone.row],), price, z=lone.z)
    if link is not None:
        subject = (
            f"transfers at {ranks_in_words(link.ranks)} take {link.ratio:.1f} times as long as their peers'"
        )
        named = answer.verdict == "slow_link"
        yield _considered(case, answer, "link", subject, link.ranks, link.price, z=link.z, named=named)
    for kind, found in (("stalls in turn", measured.stalls), ("slow in turn", measured.moving)):
        if found is not None:
            ranks = tuple(case.ranks_of(found.rows))
            subject = f"{ranks_in_words(ranks)} work longer in turn"
            if found is measured.stalls:
                subject = (
                    f"hosts of {ranks_in_words(ranks)} stall {'at once' if found.together else 'in turn'}"
                )
            price = Price.exactly(found.gain).widened(case.residual_ns)
            named = answer.verdict == "imbalance" and answer.gain == found.gain
            yield _considered(case, answer, kind, subject, ranks, price, named=named)
    data = max(measured.data, measured.tokens)
    if data > 0:
        subject, price = "work follows the data, and the longest rank changes", Price.exactly(data)
        yield _considered(case, answer, "uneven data", subject, (), price, named=answer.blames_data)
    if unseen.most > 0:
        subject = f"the ranks read wait for {ranks_in_words(unseen.ranks)}, and there is no trace of these"
        price = Price.up_to(unseen.most, unseen.awaited)
        yield _considered(case, answer, "ranks without a trace", subject, unseen.ranks, price, named=False)


def _considered(
    case: Case, answer: Answer, kind: str, subject: str, ranks: tuple[int, ...], price: Price, *,
    z: float | None = None, limit: float | None = None, named: bool | None = None,
) -> Considered:  # fmt: skip
    """A hypothesis with its outcome; named: whether the answer is it, by default whether it blames `ranks`."""
    if named is None:
        named = answer.verdict == "slow_rank" and set(ranks) <= {s.rank for s in answer.suspects}
    least = case.threshold_ns
    outcome: Outcome = "not proven" if price.low < least else "not first"
    if named:
        outcome = "named"
    elif ranks and set(ranks) <= {s.rank for s in answer.candidates}:
        outcome = "candidate"
    elif price.high < least:
        outcome = "below the threshold"
    elif z is not None and limit is not None and z <= limit:
        outcome = "not significant"
    price_ms = ms(price.low), ms(price.best), ms(price.high)
    return Considered(kind, subject, ranks, None, z, limit, *price_ms, outcome)
