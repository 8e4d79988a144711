"""What the absence of some ranks' traces does to an answer: others may be waiting for a rank that nobody sees."""

import numpy as np

from tracekit.analysis.case import Case
from tracekit.tables.match import Operations
from tracekit.tables.waits import Waits


def waited_for_missing(case: Case) -> float:
    """Exposed time a step, on the rank most hit, that operations with unseen members last longer than they should.

    Should: the transfer, plus what the others wait when one member is left out of a complete operation, because
    members wait for each other in every job. ns.
    """
    waits, ops = case.waits, case.ops
    missing = set(case.missing)
    if not missing or not len(ops.start):
        return 0.0
    usual = _usual_least(ops, waits)
    lost = dict.fromkeys(ops.ranks, 0.0)
    analysed = np.isin(ops.step, case.steps.numbers) if case.steps.labelled else np.ones(len(ops.step), bool)
    absent = np.array([bool(missing & set(c.members)) for c in ops.channels] or [False])
    partial = (ops.channel >= 0) & absent[np.maximum(ops.channel, 0)]
    for i in np.flatnonzero(partial & analysed):
        least = waits.transfer[ops.instance[i]] if ops.instance[i] >= 0 else ops.end[i] - ops.start[i]
        lost[int(ops.rank[i])] += min(float(least), float(ops.exposed[i])) - usual.get(
            ops.token[i], float(least)
        )
    return max(lost.values(), default=0.0) / len(case.steps.numbers)


def _usual_least(ops: Operations, waits: Waits) -> dict[str, float]:
    """Mean duration of the quickest member, by message, when one member of a complete operation goes unseen; ns."""
    duration = (ops.end - ops.start).astype(np.float64)
    second = np.full(len(waits.members), np.inf)
    rows = np.flatnonzero(
        (ops.instance >= 0) & (waits.last[np.maximum(ops.instance, 0)] != np.arange(len(ops.start)))
    )
    np.minimum.at(second, ops.instance[rows], duration[rows])
    least = waits.transfer + (second - waits.transfer) / np.maximum(waits.members, 1)
    token = ops.token[waits.first_row]
    good = waits.complete & np.isfinite(least)
    return {t: float(np.mean(least[good & (token == t)])) for t in set(token[good])}
