"""Ranks without a trace: the others may be waiting for one of them."""

import numpy as np

from tracekit.analysis.slowrank.case import Case
from tracekit.tables.operation_names import MESSAGES


def waited_for_missing(case: Case) -> float:
    """Exposed time that operations with unseen members last too long, on the rank most hit; ns a step.

    Too long is beyond the transfer and the wait that the other members would have if one member of a complete
    operation were left out, because members wait for each other in every job.
    """
    waits, ops = case.waits, case.ops
    missing = set(case.missing)
    if not missing or not len(ops.start):
        return 0.0
    usual = _usual_least(case)
    lost = dict.fromkeys(ops.ranks, 0.0)
    absent = np.array([bool(missing & set(c.members)) for c in ops.channels] or [False])
    partial = (ops.channel >= 0) & absent[np.maximum(ops.channel, 0)]
    single = _usual_message(case)
    for i in np.flatnonzero(partial & case.analysed):
        if ops.channels[int(ops.channel[i])].p2p:
            least = float(ops.end[i] - ops.start[i])
            should = single.get((str(ops.op[i]), *_stages(case, int(ops.channel[i]))), least)
        else:
            least = float(
                waits.transfer[ops.instance[i]] if ops.instance[i] >= 0 else ops.end[i] - ops.start[i]
            )
            should = usual.get(ops.token[i], least)
        lost[int(ops.rank[i])] += min(least, float(ops.exposed[i])) - should
    return max(lost.values(), default=0.0) / len(case.steps.numbers)


def _stages(case: Case, channel: int) -> tuple[int, int]:
    """Pipeline stages of the source and the destination of a channel between two ranks."""
    source, destination = case.ops.channels[channel].members
    return case.mesh.coords(source)["pp"], case.mesh.coords(destination)["pp"]


def _usual_message(case: Case) -> dict[tuple[str, int, int], float]:
    """(send or recv, stage, stage) → mean duration of messages with both ends seen, pipeline bubbles included; ns."""
    ops = case.ops
    spent: dict[tuple[str, int, int], list[float]] = {}
    for i in np.flatnonzero((ops.instance >= 0) & np.isin(ops.op.astype(str), MESSAGES)):
        key = (str(ops.op[i]), *_stages(case, int(ops.channel[i])))
        spent.setdefault(key, []).append(float(min(ops.exposed[i], ops.end[i] - ops.start[i])))
    return {k: float(np.mean(v)) for k, v in spent.items()}


def _usual_least(case: Case) -> dict[str, float]:
    """Message → mean duration of the quickest member if one member of a complete operation were unseen; ns."""
    ops, waits = case.ops, case.waits
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
