"""What a rank adds to transfers that its own threads carry out: a stopped process holds them up as it does its work.

Such transfers are long although all members have arrived, and members leave them late. On a device no thread of the
host takes part, so that a transfer keeps its length there.
"""

from dataclasses import replace

import numpy as np

from tracekit.analysis.slowrank.case import Case
from tracekit.analysis.slowrank.expected.like_transfers import message_of
from tracekit.analysis.slowrank.hypotheses.candidates import typical_without, usual_of
from tracekit.units import F64, I64, Mask


def carried_ns(case: Case, rows: I64) -> tuple[float, float]:
    """(what a step saves besides if transfers of `rows` are as long as their peers', the most it may save); ns a step.

    A transfer without a peer that lacks all of `rows` may be as short as the shortest of its message at most. Zeros for
    operation tables, and where a device carries out the transfers.
    """
    model, ranks = case.timeline, [case.steps.ranks[row] for row in rows.tolist()]
    if model is None or any(case.ops.per_rank[rank].on_gpu for rank in ranks):
        return 0.0, 0.0
    target, usual = typical_without(case, rows), usual_of(case, rows)
    without = model.step_ns(target, usual=usual)
    likely, least = _usual_transfers(case, ranks)
    leaves = replace(model, later=_usual_departures(case, model.later, ranks))
    best, high = (max(without - leaves.step_ns(target, t, usual), 0.0) for t in (likely, least))
    return best, max(best, high)


def _usual_transfers(case: Case, ranks: list[int]) -> tuple[F64, F64]:
    """The transfers of instances with any of `ranks` as long as those without, and as the shortest of all; ns."""
    ops, waits = case.ops, case.waits
    channel, transfer = ops.channel[waits.first_row], waits.transfer.astype(np.float64)
    struck = np.array([bool(set(ranks) & set(c.members)) for c in ops.channels], bool)[channel]
    words, _ = message_of(case)
    shapes = [case.shape_of(c) for c in ops.channels]
    kinds: dict[object, int] = {}
    kind = np.array(
        [kinds.setdefault((w, shapes[c]), len(kinds)) for w, c in zip(words, channel.tolist(), strict=True)],
        np.int64,
    )
    likely, least = transfer.copy(), transfer.copy()
    for number in range(len(kinds)):
        same = waits.complete & (kind == number)
        mine, others = same & struck, same & ~struck
        if mine.any():
            likely[mine] = _no_longer(transfer, mine, others)
            least[mine] = likely[mine] if others.any() else transfer[same].min()
    return likely, least


def _usual_departures(case: Case, later: F64, ranks: list[int]) -> F64:
    """`later` (by operation, ns) with `ranks` leaving no later than the others leave the same operation."""
    mine, result = np.isin(case.ops.rank, ranks), later.copy()
    for token in np.unique(case.ops.token[mine].astype(str)).tolist():
        same = case.ops.token == token
        result[same & mine] = _no_longer(later, same & mine, same & ~mine)
    return result


def _no_longer(spent: F64, mine: Mask, others: Mask) -> F64:
    """`spent` of `mine`, at most the median of `others` where there are any; ns."""
    return np.minimum(spent[mine], np.median(spent[others])) if others.any() else spent[mine]
