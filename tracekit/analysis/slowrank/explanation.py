"""The working of an answer: hypotheses with their intervals, gaps with what they could hide, the rule that decided.

The functions of the decision measure everything, so that the table and the verdict cannot differ.
"""

from collections.abc import Iterator
from typing import Final

import numpy as np

from tracekit.analysis.slowrank.case import Case
from tracekit.analysis.slowrank.decision.gaps import widest_first
from tracekit.analysis.slowrank.evidence import Evidence
from tracekit.analysis.slowrank.gaps.evidence_gaps import bounds_of, least_ns, most_ns
from tracekit.analysis.slowrank.hypotheses.candidates import beside_waits, saved_ns, typical_without
from tracekit.analysis.slowrank.hypotheses.moving_stalls import MovingStalls
from tracekit.analysis.slowrank.price import Price
from tracekit.analysis.slowrank.suspects import Answer
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
    least = MIN_LOST_SHARE * case.step_ns
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
    case = measured.case
    excess = np.nan_to_num(case.found.mean, nan=-np.inf)
    mentioned = [
        case.steps.row(s.rank) for s in (*answer.suspects, *answer.candidates) if s.rank in case.steps.ranks
    ]
    longest = [int(r) for r in np.argsort(-excess, kind="stable") if excess[r] > 0][:RANKS_SHOWN]
    for row in dict.fromkeys([*longest, *(row for row in mentioned[:RANKS_SHOWN] if excess[row] > 0)]):
        rank, z = case.steps.ranks[row], float(np.nan_to_num(case.found.z[row]))
        low, likely, high = _answered(answer, rank) or _measured(case, row)
        outcome = _outcome(case, answer, (rank,), low, high, significant=z > case.found.limit)
        yield Considered(
            "rank", f"rank {rank} works longer than its peers", (rank,), ms(float(excess[row])), z, case.found.limit,
            ms(low), ms(likely), ms(high), outcome,
        )  # fmt: skip
    together = measured.slow
    if together is not None and len(together.rows) > 1:
        rows = np.array(together.rows)
        ranks = tuple(case.steps.ranks[row] for row in together.rows)
        low, high = min(least_ns(case, rows), together.gain), max(most_ns(case, rows), together.gain)
        outcome = _outcome(case, answer, ranks, low, high, significant=True)
        yield Considered(
            "ranks", f"{ranks_in_words(ranks)} work longer than their peers", ranks, None, max(together.z),
            case.found.limit, ms(low), ms(together.gain), ms(high), outcome,
        )  # fmt: skip


def _answered(answer: Answer, rank: int) -> tuple[float, float, float] | None:
    """The price of the work of `rank` in the answer: least, likely, most, ns a step; None where it has none."""
    ranks = answer.suspects if answer.verdict == "slow_rank" else answer.candidates
    found = next((s for s in ranks if s.rank == rank and s.cause != NETWORK), None)
    if found is None or found.lost_ms_low is None or found.lost_ms_high is None:
        return None
    return (
        found.lost_ms_low * NS_PER_MS, found.lost_ms_per_step * NS_PER_MS, found.lost_ms_high * NS_PER_MS
    )  # fmt: skip


def _measured(case: Case, row: int) -> tuple[float, float, float]:
    """The price of the rank in `row` alone: least, likely, most, ns a step."""
    rows = np.array([row])
    bounds = bounds_of(case, rows)
    _, likely = beside_waits(case, rows, saved_ns(case, rows, typical_without(case, rows)))
    return min(bounds.low[0], likely), likely, max(bounds.high[0], likely)


def _others(measured: Evidence, answer: Answer) -> Iterator[Considered]:
    """The hypotheses beside single ranks: a stage, a link, stalls in turn, uneven data, ranks without a trace."""
    case = measured.case
    stage = measured.stage
    if stage is not None:
        ranks = tuple(case.steps.ranks[row] for row in stage.rows)
        named = answer.blames_stage
        subject = f"the stage of {ranks_in_words(ranks)} {'is idle' if stage.idle else 'works'} longer"
        yield _of(case, answer, "stage", subject, ranks, stage.z, stage.price, named=named)
    link = measured.link
    if link is not None:
        subject = (
            f"transfers at {ranks_in_words(link.ranks)} take {link.ratio:.1f} times as long as their peers'"
        )
        named = answer.verdict == "slow_link"
        yield _of(case, answer, "link", subject, link.ranks, link.z, link.price, named=named)
    yield from _in_turn(case, answer, "stalls in turn", measured.stalls)
    yield from _in_turn(case, answer, "slow in turn", measured.moving)
    data = max(measured.data, measured.tokens)
    if data > 0:
        named = answer.blames_data
        subject = "work follows the data, and the longest rank changes"
        yield _of(case, answer, "uneven data", subject, (), None, Price(data, data, data), named=named)
    unseen = measured.unseen
    if max(unseen.known, unseen.undecided) > 0:
        high = max(unseen.known, unseen.undecided)
        subject = f"the ranks read wait for {ranks_in_words(unseen.ranks)}, and there is no trace of these"
        price = Price(unseen.known, unseen.known, high)
        yield _of(case, answer, "ranks without a trace", subject, unseen.ranks, None, price, named=False)


def _in_turn(case: Case, answer: Answer, kind: str, found: MovingStalls | None) -> Iterator[Considered]:
    """The hypothesis that the ranks of `found` stall or work longer in turn; nothing where there are none."""
    if found is None:
        return
    ranks = tuple(case.steps.ranks[row] for row in found.rows)
    subject = f"{ranks_in_words(ranks)} work longer in turn"
    if kind == "stalls in turn":
        subject = f"hosts of {ranks_in_words(ranks)} stall {'at once' if found.together else 'in turn'}"
    named = answer.verdict == "imbalance" and answer.gain == found.gain
    price = Price(found.gain, found.gain, found.gain).widened(case.residual_ns)
    yield _of(case, answer, kind, subject, ranks, None, price, named=named)


def _of(
    case: Case, answer: Answer, kind: str, subject: str, ranks: tuple[int, ...], z: float | None,
    price: Price, *, named: bool,
) -> Considered:  # fmt: skip
    """The hypothesis about more than one rank; `price` is what the step saves without it."""
    low, likely, high = price.low, price.best, price.high
    outcome = "named" if named else _outcome(case, answer, ranks, low, high, significant=True, alone=False)
    return Considered(kind, subject, ranks, None, z, None, ms(low), ms(likely), ms(high), outcome)


def _outcome(
    case: Case, answer: Answer, ranks: tuple[int, ...], low: float, high: float, *, significant: bool,
    alone: bool = True,
) -> Outcome:  # fmt: skip
    """The outcome of a hypothesis with a price between `low` and `high` ns a step."""
    least = MIN_LOST_SHARE * case.step_ns
    if alone and answer.verdict == "slow_rank" and set(ranks) <= {s.rank for s in answer.suspects}:
        return "named"
    if ranks and set(ranks) <= {s.rank for s in answer.candidates}:
        return "candidate"
    if high < least:
        return "below the threshold"
    if not significant:
        return "not significant"
    return "not proven" if low < least else "not first"
