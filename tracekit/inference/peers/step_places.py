"""Operations at the same position of several steps."""

from collections import Counter

import numpy as np

from tracekit.rank_events.step_marks import I32, NO_STEP
from tracekit.units import I64


def places(step: I32, rows: I64) -> list[I64]:
    """Return the rows at each position, over the steps with the most frequent number of operations among `rows`."""
    steps = [rows[step[rows] == s] for s in np.unique(step[rows]) if s != NO_STEP]
    if not steps:
        return []
    usual = Counter(len(s) for s in steps).most_common(1)[0][0]
    return list(np.array([s for s in steps if len(s) == usual], np.int64).reshape(-1, usual).T)
