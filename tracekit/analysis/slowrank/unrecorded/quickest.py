"""How much longer collectives with an unseen member last than quick ones that move as much through the same group.

The last recorded member waits for nobody who was recorded. Where it still stays longer than such a message takes, it
waited for an unseen one, or its network is busy.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np

from tracekit.analysis.slowrank.case import Case
from tracekit.matching.ring import is_ring, ring_share
from tracekit.rank_events.operation_names import MESSAGES
from tracekit.steps.steps import F64
from tracekit.thresholds.unlike import AS_LARGE, LIKE_RATIO
from tracekit.timing.buffered_sends import bytes_of


def beyond_quickest(case: Case, rows: Sequence[int]) -> dict[int, float]:
    """By collective of a device the exposed time beyond the quickest transfer of the same message, ns.

    `rows` are operations of one message. It takes one network about as long at every place of a step; an unseen rank
    that works slowly is late by more where there was more to do. Nothing of messages of unknown size, and of those
    between two ranks.
    """
    ops, waits = case.ops, case.waits
    rows = [row for row in rows if ops.instance[row] >= 0 and ops.per_rank[int(ops.rank[row])].on_gpu]
    token = str(ops.token[rows[0]]) if rows else ""
    if not rows or token.partition("/")[0] in MESSAGES or bytes_of(token) <= 0:
        return {}
    lasted = waits.transfer[ops.instance[rows]]
    beyond = np.minimum(lasted - lasted.min(), ops.exposed[rows])
    return dict(zip(rows, beyond.tolist(), strict=True))


def beyond_likes(case: Case, lasted: Mapping[int, float]) -> dict[int, float]:
    """By collective of a device the exposed time beyond what another of its group needs for as many bytes, ns.

    `lasted` is by operation how long it would last if it waited for no recorded rank, ns. Members of a ring send as
    much of an all-gather as of a reduce-scatter, and twice that of an all-reduce, and may be LIKE_RATIO times as slow
    at one as at another.
    """
    ops = case.ops
    by_channel: dict[int, list[int]] = defaultdict(list)
    for row in lasted:
        on_gpu = ops.per_rank[int(ops.rank[row])].on_gpu
        if on_gpu and is_ring(str(ops.op[row])) and bytes_of(str(ops.token[row])) > 0:
            by_channel[int(ops.channel[row])].append(row)
    beyond = {}
    for channel, mine in by_channel.items():
        members = len(ops.channels[channel].members)
        moved = np.array([bytes_of(str(ops.token[r])) * ring_share(str(ops.op[r]), members) for r in mine])
        took = np.array([lasted[row] for row in mine])
        over = np.minimum(took - LIKE_RATIO * _quickest(moved, took), ops.exposed[mine])
        beyond.update({row: float(o) for row, o in zip(mine, over, strict=True) if o > 0})
    return beyond


def _quickest(moved: F64, lasted: F64) -> F64:
    """The time in which the quickest operation that is not much larger would move as many bytes, ns; an entry each.

    Smaller ones are slower for a byte, so that they promise nothing that a large one could not keep.
    """
    order = np.argsort(moved, kind="stable")
    rate = np.minimum.accumulate(lasted[order] / moved[order])
    upto = np.searchsorted(moved[order], AS_LARGE * moved, side="right") - 1
    return np.asarray(rate[upto] * moved, np.float64)
