"""Shares of the factors of an operation table: what curing one alone saves, beside what curing all saves.

A long stage takes typical work (M_S of Lin et al., OSDI'25, section 5.2), uneven data even micro-batches. Factors
overlap, because ranks wait for whichever is longest, so that shares add up to more than one: they are compared only.
"""

from tracekit.analysis.slowrank.case import Case
from tracekit.thresholds.slowrank import MIN_LOST_SHARE
from tracekit.units import ms


def everybody_ns(case: Case, gain: float) -> float:
    """Return what typical work on all ranks saves where the model is an operation table's, else `gain`; ns a step."""
    return gain if case.table is None else max(gain, case.table.lost_ns)


def share_in_words(case: Case, cure: str, gain: float, others: dict[str, float]) -> str:
    """Return the share that a `cure` alone saves, which is `gain` (ns a step), and those that the `others` save.

    It is empty where the run is no operation table. Others below the least cost of a finding are left out.
    """
    if case.table is None or case.table.lost_ns <= 0:
        return ""
    whole = case.table.lost_ns
    told = f"; {cure} alone saves {ms(gain):.1f} ms a step, {gain / whole:.0%} of what typical work on all ranks saves"
    rest = [
        f"{other} alone {ns / whole:.0%} ({ms(ns):.1f} ms)"
        for other, ns in others.items()
        if ns >= MIN_LOST_SHARE * case.step_ns
    ]
    return f"{told} ({ms(whole):.1f} ms)" + (f"; {' and '.join(rest)}, partly the same time" if rest else "")
