"""Ranks of one stage that run more or larger work than others in every step: no rank is slow, and the others wait.

An optimizer that divides parameters by their number, a role that few ranks have, or batches of unequal size: what
ranks launch shows it, so that it is neither a slow device nor healthy.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tracekit.analysis.slowrank.price import Price, spread_of_ranks
from tracekit.case.case import Case
from tracekit.case.cures import saved_in, typical_without, usual_of
from tracekit.expected.equal_work import QuickRanks
from tracekit.steps.medians import median_by_column
from tracekit.units import I64


@dataclass(frozen=True)
class UnevenWork:
    """The rows with more work and those with less; what even work saves, ns a step.

    At most, the ranks with more work do no more than the others.
    """

    rows: I64
    others: I64
    price: Price
    z: float  # the least difference between both over the spread of ranks that do the same work


def uneven_work(case: Case) -> UnevenWork | None:
    """Return the work that few ranks of their stages have less of, in all stages together; None without such work."""
    quick = [one for one in case.met.peers.quick if one.work == "less"]
    if not quick:
        return None
    rows, others = (np.concatenate(found) for found in zip(*((q.others, q.rows) for q in quick), strict=True))
    z = min(shorter_ns(case, one) for one in quick) / spread_of_ranks(case, rows)
    return UnevenWork(rows, others, like_quick(case, quick), z)


def like_quick(case: Case, quick: Sequence[QuickRanks]) -> Price:
    """What a step saves if the work of stages is spread over all their ranks; at most, if all work like `quick` ones.

    Where it is spread, the quick ranks take as long as the others. Ranks that are slow beside their peers are cured as
    well, because all of them may be late together.
    """
    slow = case.significant(case.suspect_ns)
    peers: dict[int, I64] = {row: one.rows for one in quick for row in one.others.tolist()}
    usual = {**usual_of(case, slow), **case.model.usual(peers)}
    rows = np.union1d(slow, np.array(list(peers), np.int64))
    own = case.steps.own - case.met.explained

    def saved(*, spread: bool) -> float:
        target = typical_without(case, slow)
        for one in quick:
            share = len(one.rows) / (len(one.rows) + len(one.others)) if spread else 1.0
            longer = np.fmax(own[one.others] - median_by_column(own[one.rows]), 0.0)
            target[one.others] = np.fmin(target[one.others], case.steps.own[one.others] - share * longer)
        return saved_in(case, case.model, rows, lambda m: m.step_ns(target, usual=usual))

    even, most = saved(spread=True), saved(spread=False)
    shown = min((one.shown for one in quick), default=0.0)
    return Price.between(shown * even - case.residual_ns, even, most + case.residual_ns)


def shorter_ns(case: Case, one: QuickRanks) -> float:
    """Return what quick ranks work shorter than the others of their stage, ns a step."""
    return case.steps.mean(case.steps.own[one.others]) - case.steps.mean(case.steps.own[one.rows])
