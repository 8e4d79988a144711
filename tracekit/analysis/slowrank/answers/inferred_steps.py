"""Inferred steps must last equally long on ranks that do the same work; otherwise they were inferred wrongly."""

import numpy as np
from numpy.typing import NDArray

from tracekit.analysis.slowrank.case import Case
from tracekit.analysis.slowrank.suspects import Answer, left_open
from tracekit.thresholds.slowrank import MIN_LOST_SHARE
from tracekit.units import ms


def unequal_steps_answer(case: Case) -> Answer | None:
    """The open answer where steps inferred from repetitions last longer on some ranks of a stage than on others.

    Such ranks end each step together, so only a wrongly inferred begin makes the steps of one rank shorter. Its own
    time is short by the same amount, which may hide that it is slow. None where the steps are marked or agree, or where
    the longer ones only wait longer: a late profiler start makes a rank join its first operation late.
    """
    if all(q.kind != "no_step_marks" for q in case.run.quality):
        return None
    apart = max((_apart_ns(case.steps.wall[rows], case.steps.own[rows]) for rows in case.stages), default=0.0)
    if apart < MIN_LOST_SHARE * case.step_ns:
        return None
    reason = (
        "the traces mark no steps, and the repetitions used as steps last up to "
        f"{ms(apart):.1f} ms of {ms(case.step_ns):.1f} ms longer on one rank than on another, although both ranks end "
        "them together: the own times of these ranks cannot be compared"
    )
    decide = "record again with the steps marked: call the profiler's step() at the end of each"
    return left_open(reason, decide)


def _apart_ns(wall: NDArray[np.float64], own: NDArray[np.float64]) -> float:
    """The mean of `_begun_early_ns` over the steps of one stage, ns; 0 where no step is known.

    `wall` and `own` are [rank, step] in ns.
    """
    known = ~np.isnan(wall) & ~np.isnan(own)
    apart = [_begun_early_ns(w[k], o[k]) for w, o, k in zip(wall.T, own.T, known.T, strict=True) if k.any()]
    return float(np.mean(apart)) if apart else 0.0


def _begun_early_ns(wall: NDArray[np.float64], own: NDArray[np.float64]) -> float:
    """The excess of one step on the ranks that began it early, ns: the lesser of its wall time and its own time."""
    short, long = wall.min(), wall.max()
    early = wall > (short + long) / 2
    if early.all() or not early.any():
        return 0.0
    longer = float(np.median(own[early]) - np.median(own[~early]))
    return min(float(long - short), max(longer, 0.0))
