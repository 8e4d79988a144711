"""The excess of collectives with an unrecorded member over fast ones that move as many bytes in the same group.

The last recorded member waits for no recorded rank. Where it stays longer than such a message takes, it waits for an
unrecorded member, or its network is busy.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np

from tracekit.analysis.slowrank.case import Case
from tracekit.rank_events.operation_names import MESSAGES, is_ring, ring_share
from tracekit.thresholds.slowrank import CLEARLY_MORE, FAR_MORE, SLOWEST_BYTES_PER_NS, SLOWEST_START_NS
from tracekit.timing.buffered_sends import bytes_of
from tracekit.units import F64


def beyond_quickest(case: Case, rows: Sequence[int]) -> dict[int, float]:
    """The exposed time of each GPU collective beyond the fastest transfer of the same message, ns, by operation.

    `rows` are operations of one message. A network needs about the same time for it at every place of a step; a slow
    unrecorded rank is late by more where it had more work. Empty for messages of unknown size and for messages between
    two ranks.
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
    """The exposed time of each GPU collective beyond what others of its group need for as many bytes, ns, by operation.

    `lasted` is the time of each operation without waits for recorded ranks, ns. Members of a ring send as many bytes in
    an all-gather as in a reduce-scatter, and twice as many in an all-reduce; one kind may be FAR_MORE times as slow
    as another.
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
        over = np.minimum(took - FAR_MORE * _quickest(moved, took), ops.exposed[mine])
        beyond.update({row: float(o) for row, o in zip(mine, over, strict=True) if o > 0})
    return beyond


def _quickest(moved: F64, lasted: F64) -> F64:
    """The time of each operation's bytes at the rate of the fastest operation that is not much larger, ns.

    Smaller operations need more time a byte, so that a larger one can keep up with their rate.
    """
    order = np.argsort(moved, kind="stable")
    rate = np.minimum.accumulate(lasted[order] / moved[order])
    upto = np.searchsorted(moved[order], CLEARLY_MORE * moved, side="right") - 1
    return np.asarray(rate[upto] * moved, np.float64)


def slowest_ns(token: str) -> float:
    """Return the longest time of a collective of `token` on any network, ns; without a size only the start-up time."""
    return (
        SLOWEST_START_NS + 2 * max(bytes_of(token), 0) / SLOWEST_BYTES_PER_NS
    )  # an all-reduce moves each byte twice
