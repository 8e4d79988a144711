"""What ranks that load for others cost, in words: no fault, and worth to be known."""

import numpy as np

from tracekit.analysis.slowrank.case import Case
from tracekit.analysis.slowrank.wording import ranks_in_words
from tracekit.thresholds.slowrank import MIN_LOST_SHARE
from tracekit.units import ms


def role_in_words(case: Case) -> str | None:
    """Return the sentence that tells how long ranks stand still for their role; None where that is below 2 %."""
    rows = case.met.of_role
    longer = np.nanmean(case.met.role, axis=1)
    if not len(rows) or longer[rows].max() < MIN_LOST_SHARE * case.step_ns:
        return None
    return (
        f"{ranks_in_words([case.steps.ranks[row] for row in rows.tolist()])} stand still "
        f"{ms(float(np.median(longer[rows]))):.1f} ms of {ms(case.step_ns):.1f} ms a step longer than the others of "
        "their stages, as ranks do that load data for those: all have tensor index 0"
    )
