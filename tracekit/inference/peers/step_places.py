"""Operations at the same place of several steps."""

from collections import Counter

import numpy as np

from tracekit.intervals import I64
from tracekit.rank_events.step_marks import I32, NO_STEP


def places(step: I32, rows: I64) -> list[I64]:
    """The rows at each place of the steps that run as many operations of a stream as most steps do."""
    steps = [rows[step[rows] == s] for s in np.unique(step[rows]) if s != NO_STEP]
    if not steps:
        return []
    usual = Counter(len(s) for s in steps).most_common(1)[0][0]
    return list(np.array([s for s in steps if len(s) == usual], np.int64).reshape(-1, usual).T)
