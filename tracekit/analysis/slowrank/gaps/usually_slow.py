"""Transfers that are slow in most groups: these wait for somebody who is not taken for a member."""

import numpy as np

from tracekit.analysis.slowrank.case import Case
from tracekit.analysis.slowrank.expected.dealt_transfers import message_of
from tracekit.analysis.slowrank.hypotheses.slow_link import comparable
from tracekit.thresholds.slowrank import USUALLY_SLOW


def usually_slow_ns(case: Case) -> float:
    """Return by how much transfers last longer than those of the quickest channels, ns a step, median over ranks.

    Where most channels take twice as long as a few, and those few are no fault, their members wait for somebody who is
    not taken for one: groups that were told from streams may be too small.
    """
    extra = np.zeros(len(case.waits.first_row))
    for channels in comparable(case, message_of(case)[0], {}):
        level = {c: float(np.median(case.waits.transfer[n])) for c, n in channels.items()}
        least = min(level.values())
        for c, numbers in channels.items():
            if level[c] > USUALLY_SLOW * least and np.median(list(level.values())) > USUALLY_SLOW * least:
                extra[numbers] = np.maximum(case.waits.transfer[numbers] - least, 0.0)
    rows = np.flatnonzero((case.ops.instance >= 0) & case.analysed)
    ranks, place = np.unique(case.ops.rank[rows], return_inverse=True)
    spent = np.bincount(place, extra[case.ops.instance[rows]], len(ranks)) / max(len(case.steps.numbers), 1)
    return float(np.median(spent)) if len(spent) else 0.0
