"""Transfers that are slow in most groups: the inferred groups probably lack a member, and the transfer waits for it."""

import numpy as np

from tracekit.analysis.slowrank.case import Case
from tracekit.analysis.slowrank.expected.dealt_transfers import message_of
from tracekit.analysis.slowrank.hypotheses.slow_link import comparable
from tracekit.thresholds.slowrank import USUALLY_SLOW


def usually_slow_ns(case: Case) -> float:
    """Return the extra time of transfers over the fastest comparable channel, ns a step, as the median over ranks.

    Where most channels take twice as long as a few fast ones, their members probably wait for a rank that the inferred
    group lacks: groups inferred from streams may be too small.
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
