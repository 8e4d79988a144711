"""Prices as intervals: what a step saves by a cure, at least, likely and at most."""

from dataclasses import dataclass, replace
from typing import Final, Self

import numpy as np

from tracekit.case.case import Case
from tracekit.step_graph.statistics import NORMAL_95
from tracekit.thresholds.slowrank import LITTLE_SHARE, MAJORITY
from tracekit.units import F64, I64, ms

NOT_EXACT: Final = "the model of the steps is not exact enough for a price so near the threshold"
"""The reason that such a price decides nothing."""


@dataclass(frozen=True)
class Price:
    """What a step saves by a cure, ns: 0 ≤ `low` ≤ `best` ≤ `high`.

    The ends differ by unmatched waits, by the error of the replay, and by the spread between ranks that do the same
    work: a cured rank may be any of them.
    """

    low: float
    best: float
    high: float

    @classmethod
    def exactly(cls, best: float) -> Self:
        """Return a price without doubt."""
        return cls(best, best, best)

    @classmethod
    def up_to(cls, high: float, best: float | None = None) -> Self:
        """Return a price between zero and `high`, likely `best`; zero where that is not known."""
        return cls(0.0, min(best or 0.0, high), high)

    @classmethod
    def between(cls, low: float, best: float, high: float) -> Self:
        """Return the price `best` with ends that hold it, however the three were measured; a cure never costs time."""
        likely = max(best, 0.0)
        return cls(max(min(low, likely), 0.0), likely, max(high, likely))

    def without(self, part: float) -> "Price":
        """Return the rest of the price where `part` of it, ns, has another cause."""
        return Price(*(max(end - part, 0.0) for end in (self.low, self.best, self.high)))

    def widened(self, doubt: float) -> Self:
        """Return the price with both ends moved by `doubt`, ns."""
        return replace(self, low=max(self.low - doubt, 0.0), high=self.high + doubt)


def beyond_error(case: Case, best: float, low: float) -> bool:
    """Return whether a price, ns, exceeds the error of its model: likely, or at its low end with recorded lengths."""
    return best >= case.residual_ns or low >= max(case.threshold_ns, case.pinned_residual_ns)


def rank_doubt_ns(case: Case, rows: I64) -> float:
    """Return what a price of `rows` may be off although all waits were matched, ns a step.

    The error of the replay, and twice the spread between ranks that do the same work, with what their waits likely
    conceal.
    """
    return float(np.hypot(case.residual_ns, NORMAL_95 * spread_of_ranks(_working(case), rows)))


def slower_ns(case: Case, rows: I64) -> float:
    """Return how much longer than a typical peer cured `rows` may work, ns a step: twice the spread of their peers.

    Peers that work shorter than the typical one count for nothing.
    """
    working = _working(case)
    slower = max(spread_of_ranks(working, rows, slower=True), LITTLE_SHARE * case.step_ns)
    return NORMAL_95 * min(slower, spread_of_ranks(working, rows))


def _working(case: Case) -> Case:
    """The case with what waits likely conceal."""
    return case if case.concealing is None else case.concealing[1]


def stage_doubt_ns(case: Case, rows: I64, *, least: bool = False) -> float:
    """Return what a price of the stages of `rows` may be off although all waits were matched, ns a step.

    The error of the replay, and twice the spread between other stages: a cured stage may save less work or more.
    With `least` what is certain: stages differ by half a percent of the step, devices of a stage as much, and the mean
    of its devices by twice the standard error. The same where too few stages show more.
    """
    others = [g for g in case.compared_stages if len(np.setdiff1d(g, rows)) == len(g)]
    known = [mean for g in others if np.isfinite(mean := case.steps.mean(case.steps.own[g]))]
    fewest = min((len(g) for g in case.stages if len(np.intersect1d(g, rows))), default=1)
    differ = LITTLE_SHARE * case.step_ns * (1.0 + NORMAL_95 / np.sqrt(fewest))
    spread = NORMAL_95 * float(np.std(known, ddof=1)) if len(known) > 2 else differ
    spread = min(spread, differ) if least else spread
    return float(np.hypot(case.residual_ns, spread))


def link_doubt_ns(case: Case, gain: float, z: float) -> float:
    """Return what a price `gain` of transfers may be off, ns a step; their excess is `z` standard errors."""
    return float(np.hypot(case.residual_ns, NORMAL_95 * gain / max(z, NORMAL_95)))


def spread_of_ranks(case: Case, rows: I64, *, slower: bool = False) -> float:
    """Return the standard deviation of mean own times between ranks of the same work without `rows`, ns.

    Without others that are slow alike, such as those of the same node, as well: a cured rank does not work like them.
    Where one part of own time alone shows that `rows` are slow, that of this part, but at least half a percent of the
    step. Devices of one kind differ by that much where too few ranks show it. With `slower` that of a distribution with
    both sides like that of ranks above the median.
    """
    least, mean = LITTLE_SHARE * case.step_ns, np.nan_to_num(case.found.mean)
    alike = (mean >= MAJORITY * float(mean[rows].min())) & (mean >= case.suspect_ns)
    slow = np.union1d(rows, np.flatnonzero(alike & (np.nan_to_num(case.found.z) > case.found.limit)))
    spread = _pooled(case, case.found.mean, slow, slower=slower)
    if spread is None:
        return least
    parts = (part.mean for part, alone in case.met.parts() if set(rows.tolist()) <= set(alone))
    of_part = _pooled(case, next(parts, case.found.mean), slow, slower=slower)
    return min(spread, max(of_part or 0.0, least))


def _pooled(case: Case, mean: F64, rows: I64, *, slower: bool) -> float | None:
    """The spread of `mean` over all stages without `rows`, ns, as in `spread_of_ranks`; None where too few show it."""
    squares, free = 0.0, 0
    for stage in case.stages:
        others = np.setdiff1d(stage, rows)
        known = mean[others][np.isfinite(mean[others])]
        if len(known) > 1:
            above = np.maximum(known - np.median(known), 0.0)
            squares += float(2 * np.square(above).sum() if slower else np.square(known - known.mean()).sum())
            free += len(known) - 1
    return float(np.sqrt(squares / free)) if free >= 2 else None


def may_cost_ns(price: float, longer: float) -> float:
    """Return the most that an excess of `longer` with that `price` may cost, ns a step; never more than the excess."""
    return min(price / MAJORITY, longer)


# Shares of the factors of an operation table: the saving of curing one factor over the saving of curing all.
#
# A long stage is cured by typical work (M_S of Lin et al., OSDI'25, section 5.2), uneven data by equal micro-
# batches. Factors overlap, because ranks wait for the longest one, so that shares may add up to more than
# one: they only rank the factors.


def everybody_ns(case: Case, gain: float) -> float:
    """Return the saving of typical work on all ranks for an operation table, otherwise `gain`; ns a step."""
    return gain if case.table is None else max(gain, case.table.lost_ns)


def share_in_words(case: Case, cure: str, gain: float, others: dict[str, float]) -> str:
    """Return the words on the share that `cure` alone saves, `gain` (ns a step), and on the shares of the `others`.

    Empty for traces. Others below the threshold are left out.
    """
    if case.table is None or case.table.lost_ns <= 0:
        return ""
    whole = case.table.lost_ns
    words = f"; {cure} alone saves {ms(gain):.1f} ms a step, {gain / whole:.0%} of what typical work on all ranks saves"
    rest = [
        f"{other} alone {ns / whole:.0%} ({ms(ns):.1f} ms)"
        for other, ns in others.items()
        if ns >= case.threshold_ns
    ]
    return f"{words} ({ms(whole):.1f} ms)" + (f"; {' and '.join(rest)}, partly the same time" if rest else "")
