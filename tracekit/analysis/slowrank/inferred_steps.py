"""Steps that no mark told must last equally long on ranks that do the same: else they were told wrongly."""

import numpy as np

from tracekit.analysis.slowrank.case import Case
from tracekit.analysis.slowrank.suspects import Answer
from tracekit.thresholds.slowrank import MIN_LOST_SHARE
from tracekit.units import ms


def unequal_steps_answer(case: Case) -> Answer | None:
    """The open answer where repetitions stand for steps, and ranks of a stage disagree about how long they lasted.

    Such ranks end each step together, so that only a begin that was told wrongly makes one's steps shorter; its own
    time is short by as much, and may hide that it is slow. None where the steps are marked, or agree.
    """
    if all(q.kind != "no_step_marks" for q in case.run.quality):
        return None
    apart = 0.0
    for rows in case.stages:
        lasted = np.nanmean(case.steps.wall[rows], axis=1)
        apart = max(apart, float(np.nanmax(lasted) - np.nanmin(lasted)))
    if apart < MIN_LOST_SHARE * case.step_ns:
        return None
    reason = (
        "the traces mark no steps, and the repetitions that stand for them last up to "
        f"{ms(apart):.1f} ms of {ms(case.step_ns):.1f} ms longer on one rank than on another, though both end them "
        "together: the own times of these ranks cannot be compared"
    )
    decide = "record again with the steps marked: call the profiler's step() at the end of each"
    return Answer("inconclusive", "unknown", reason, to_decide=decide)
