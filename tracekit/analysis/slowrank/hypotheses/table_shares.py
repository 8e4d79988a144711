"""Shares of the factors of an operation table: the saving of curing one factor over the saving of curing all.

A long stage is cured by typical work (M_S of Lin et al., OSDI'25, section 5.2), uneven data by equal micro-batches.
Factors overlap, because ranks wait for the longest one, so that shares may add up to more than one: they only rank the
factors.
"""

from tracekit.analysis.slowrank.case import Case
from tracekit.thresholds.slowrank import MIN_LOST_SHARE
from tracekit.units import ms


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
        if ns >= MIN_LOST_SHARE * case.step_ns
    ]
    return f"{words} ({ms(whole):.1f} ms)" + (f"; {' and '.join(rest)}, partly the same time" if rest else "")
