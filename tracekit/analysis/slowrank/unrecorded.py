"""What the absence of some ranks' traces does to an answer: others may be waiting for a rank that nobody sees."""

import numpy as np

from tracekit.analysis.slowrank.case import Case
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
    single = _usual_message(case)
    for i in np.flatnonzero(partial & analysed):
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
    """Pipeline stages of source and destination."""
    source, destination = case.ops.channels[channel].members
    return case.mesh.coords(source)["pp"], case.mesh.coords(destination)["pp"]


def _usual_message(case: Case) -> dict[tuple[str, int, int], float]:
    """Mean duration of sends and receives between two stages where both ends were seen: bubbles are in it; ns."""
    ops = case.ops
    spent: dict[tuple[str, int, int], list[float]] = {}
    for i in np.flatnonzero((ops.instance >= 0) & np.isin(ops.op.astype(str), ["send", "recv"])):
        key = (str(ops.op[i]), *_stages(case, int(ops.channel[i])))
        spent.setdefault(key, []).append(float(min(ops.exposed[i], ops.end[i] - ops.start[i])))
    return {k: float(np.mean(v)) for k, v in spent.items()}


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
