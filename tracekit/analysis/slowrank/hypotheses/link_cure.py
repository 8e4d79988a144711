"""The saving of a step if slow transfers take no longer than their peers' transfers.

A late message delays its receiver, its sender, because it drains the sender's buffer slowly, and the other messages of
the two kernels that carry it.
"""

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from tracekit.analysis.slowrank.case import Case
from tracekit.analysis.slowrank.price import Price
from tracekit.step_graph.replay import StepModel
from tracekit.thresholds.slowrank import MINOR, MOST_STRETCHED
from tracekit.units import F64


def price_of(case: Case, late: F64) -> Price:
    """The price of transfers without what they are `late` (by instance, ns).

    An operation that waits for a late transfer slows overlapping compute, which only `high` counts. No rank can save
    more than it spends in late transfers.
    """
    own, models = case.steps.own, case.timelines
    transfer = np.maximum(case.waits.transfer - _with_mates(case, late), 0.0)
    if models is None:
        gain = case.model.recorded_ns - case.model.step_ns(own, transfer)
        return Price(gain, gain, gain)
    gain, low, high = (
        models.likely.recorded_ns
        - _cured(case, m, late).step_ns(own, np.minimum(m.transfer[: len(transfer)], transfer))
        for m in (models.likely, models.pinned, models.free)
    )
    low += models.pinned.recorded_ns - models.likely.recorded_ns
    hidden = (case.waits.wait - case.waits.exposed_wait).astype(np.float64)
    waited = np.where(case.ops.instance >= 0, late[case.ops.instance], 0.0)
    high += case.residual_ns + MOST_STRETCHED * _most_on_a_rank(case, hidden)
    return Price.between(low, gain, min(high, _most_on_a_rank(case, waited)))


def dear_channels(case: Case, slow: Iterable[int], late: F64) -> set[int]:
    """The `slow` channels of the most expensive one's axes that cost a fair share of it; `late` is by instance, ns.

    Only an operation table prices a channel alone; for traces all are returned. Messages of stages differ by design,
    for example with an embedding, so a channel that costs little compared with the most expensive one is not faulty.
    """
    if case.table is None:
        return set(slow)
    channel = case.ops.channel[case.waits.first_row]
    alone = {c: price_of(case, np.where(channel == c, late, 0.0)).best for c in slow}
    dearest = max(alone, key=lambda c: (alone[c], -c))
    shape = case.shape_of(case.ops.channels[dearest])
    same = {c for c in alone if case.shape_of(case.ops.channels[c]) == shape}
    return {c for c in same if alone[c] >= MINOR * alone[dearest]}


def _most_on_a_rank(case: Case, spent: F64) -> float:
    """The largest total of `spent` (by operation, ns) over the operations of one rank, ns a step."""
    counts = (case.ops.instance >= 0) & case.analysed
    by_rank = [float(spent[mine][counts[mine]].sum()) for mine in map(case.ops.of, case.ops.ranks)]
    return max(by_rank, default=0.0) / len(case.steps.numbers)


def _of_kernel(case: Case, late: F64) -> F64:
    """The largest lateness of a message in the kernel of each operation, ns."""
    ops = case.ops
    rows = np.flatnonzero(ops.instance >= 0)
    most = np.zeros(int(ops.kernel.max(initial=-1)) + 1)
    np.maximum.at(most, ops.kernel[rows], late[ops.instance[rows]])
    return np.asarray(most[ops.kernel], np.float64)


def _with_mates(case: Case, late: F64) -> F64:
    """`late`, extended by the delay of other messages in the kernels of late ones (by instance, ns).

    No message becomes shorter than the usual transfer of its token.
    """
    ops, waits = case.ops, case.waits
    rows = np.flatnonzero((ops.instance >= 0) & (ops.op == "recv"))
    held = _of_kernel(case, late)[rows]
    mates = rows[(held > 0) & (late[ops.instance[rows]] == 0)]
    result = late.copy()
    for token in _tokens(ops.token[mates]):
        punctual = ops.instance[rows[(held == 0) & (ops.token[rows] == token)]]
        mine = mates[ops.token[mates] == token]
        if len(punctual):
            over = waits.transfer[ops.instance[mine]] - float(np.median(waits.transfer[punctual]))
            result[ops.instance[mine]] = np.minimum(_of_kernel(case, late)[mine], over).clip(0.0)
    return result


def _cured(case: Case, model: StepModel, late: F64) -> StepModel:
    """`model` with buffered sends shortened by what a message of their kernel is `late` (by instance, ns).

    No send becomes shorter than the usual send of its token in punctual kernels.
    """
    ops, fixed = case.ops, model.fixed.copy()
    own = fixed[: len(ops.op)]  # operations of ranks without a trace follow
    rows = np.flatnonzero((ops.op == "send") & (ops.instance >= 0) & (own >= 0))
    by = _of_kernel(case, late)[rows]
    for token in _tokens(ops.token[rows[by > 0]]):
        same = ops.token[rows] == token
        sound = fixed[rows[same & (by == 0)]]
        if len(sound):
            mine = rows[same & (by > 0)]
            least = np.minimum(fixed[mine], float(np.median(sound)))
            fixed[mine] = np.maximum(fixed[mine] - by[same & (by > 0)], least)
    return model.retimed(fixed=fixed)


def _tokens(found: npt.NDArray[np.object_]) -> list[str]:
    """The different tokens in `found`, sorted."""
    return sorted(set(found.astype(str).tolist()))
