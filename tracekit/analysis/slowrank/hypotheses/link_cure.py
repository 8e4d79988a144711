"""The saving of a step if slow transfers take no longer than their peers' transfers.

Transfers are also slow where threads of a stopped process carry them out: they are long although all members have
arrived, and members leave them late. On a device no thread of the host takes part, and they keep their length.

A late message delays its receiver, its sender, because it drains the sender's buffer slowly, and the other messages of
the two kernels that carry it.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from tracekit.analysis.slowrank.price import Price
from tracekit.case.case import Case
from tracekit.case.cures import not_awaited, spared_parts, typical_without, usual_of
from tracekit.expected.like_transfers import message_of
from tracekit.step_graph.replay import StepModel, Usual
from tracekit.thresholds.slowrank import MINOR, MOST_STRETCHED
from tracekit.units import F64, I64, Mask


def price_of(case: Case, late: F64) -> Price:
    """The price of transfers without what they are `late` (by instance, ns).

    Kernels beside operations that wait for the ranks of late transfers lose what these waits add, but for `low`. What
    other waits add counts in `high` alone. No rank can save more than it spends in late transfers. `low` is the larger
    saving if unmatched operations keep their length, or by the likely model beyond its error, as for slow ranks.
    """
    own, models = case.steps.own, case.timelines
    if models is None:
        gain = case.model.recorded_ns - case.model.step_ns(own, _usual_transfer(case, late))
        return Price.exactly(gain)
    low, high = (
        models.likely.recorded_ns - without_link(case, m, late).step_ns(own)
        for m in (models.pinned, models.free)
    )
    low += models.pinned.recorded_ns - models.likely.recorded_ns
    early = case.early_model.of_traces or models.likely
    saved = (m.recorded_ns - without_link(case, m, late).step_ns(own) for m in (models.likely, early))
    low = case.least_saved(low, *saved)
    beside, usual = not_awaiting(case, own, late)
    gain = models.likely.recorded_ns - without_link(case, models.likely, late).step_ns(beside, usual=usual)
    hidden = (case.waits.wait - case.waits.exposed_wait).astype(np.float64)
    waited = np.where(case.ops.instance >= 0, late[case.ops.instance], 0.0)
    high += case.residual_ns + MOST_STRETCHED * _most_on_a_rank(case, hidden)
    return Price.between(low, gain, min(high, _most_on_a_rank(case, waited)))


def without_link(case: Case, model: StepModel, late: F64) -> StepModel:
    """Return `model` with transfers and buffered sends without what they are `late` (by instance, ns)."""
    usual = _usual_transfer(case, late)
    known = np.minimum(model.transfer[: len(usual)], usual)
    transfer = np.concatenate([known, model.transfer[len(usual) :]])
    return _cured(case, model, late).retimed(transfer=transfer)


def not_awaiting(case: Case, own: F64, late: F64) -> tuple[F64, Usual]:
    """(`own` without what waits for the ranks of `late` transfers add to others' kernels, the parts that lose it).

    `own` is ranks × steps, ns; `late` is by instance, ns.
    """
    found = np.unique(case.ops.channel[case.waits.first_row[late > 0]]).tolist()
    ranks = {member for number in found for member in case.ops.channels[number].members}
    rows = np.array([row for row, rank in enumerate(case.steps.ranks) if rank in ranks], np.int64)
    return np.fmin(own, not_awaited(case, case.steps.own, rows)), spared_parts(case, rows)


def _usual_transfer(case: Case, late: F64) -> F64:
    """The transfers without what they are `late`, with the other messages of their kernels (by instance, ns)."""
    return np.asarray(np.maximum(case.waits.transfer - _with_mates(case, late), 0.0), np.float64)


def carried_ns(case: Case, rows: I64) -> tuple[float, float]:
    """(what a step saves besides if transfers of `rows` are as long as their peers', the most it may save); ns a step.

    A transfer without a peer that lacks all of `rows` likely takes longer by the factor by which their work does, since
    one process does both, and may be as short as the shortest of its message at most. Zeros for operation tables, and
    where a device carries out the transfers.
    """
    model, ranks = case.timeline, case.ranks_of(rows)
    if model is None or any(case.ops.per_rank[rank].on_gpu for rank in ranks):
        return 0.0, 0.0
    target, usual = typical_without(case, rows), usual_of(case, rows)
    without = model.step_ns(target, usual=usual)
    pace = np.nansum(case.steps.own, axis=1)[rows] / np.nansum(target, axis=1)[rows]
    likely, least = _usual_transfers(case, dict(zip(ranks, pace.tolist(), strict=True)))
    mine, later = np.isin(case.ops.rank, ranks), model.later.copy()
    for token in _tokens(case.ops.token[mine]):  # left no later than the others leave the same operation
        same = case.ops.token == token
        later[same & mine] = _no_longer(model.later, same & mine, same & ~mine)
    leaves = replace(model, later=later)
    best, high = (max(without - leaves.step_ns(target, t, usual), 0.0) for t in (likely, least))
    return best, max(best, high)


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
    return max(by_rank, default=0.0) / case.steps.count


def _with_mates(case: Case, late: F64) -> F64:
    """`late`, extended by the delay of other messages in the kernels of late ones (by instance, ns)."""
    ops, result = case.ops, late.copy()
    rows = np.flatnonzero((ops.instance >= 0) & ops.among(("recv",)))
    mine = ops.instance[rows]
    held = _held(case, rows, case.waits.transfer[mine].astype(np.float64), late)
    result[mine] = np.where(late[mine] == 0, held, late[mine])
    return result


def _cured(case: Case, model: StepModel, late: F64) -> StepModel:
    """`model` with buffered sends shortened by what a message of their kernel is `late` (by instance, ns)."""
    ops, fixed = case.ops, model.fixed.copy()
    own = fixed[: len(ops.op)]  # operations of ranks without a trace follow
    rows = np.flatnonzero(ops.among(("send",)) & (ops.instance >= 0) & (own >= 0))
    fixed[rows] -= _held(case, rows, fixed[rows], late)
    return model.retimed(fixed=fixed)


def _held(case: Case, rows: I64, spent: F64, late: F64) -> F64:
    """What the operations in `rows`, which last `spent`, are held by a message of their kernel that is `late`; ns.

    Operations keep the usual time of their token in punctual kernels. The result is 0 if there are no such kernels.
    """
    by, found = case.most_in_kernel(late)[rows], np.zeros(len(rows))
    for token in _tokens(case.ops.token[rows[by > 0]]):
        same = case.ops.token[rows] == token
        mine, punctual = same & (by > 0), same & (by == 0)
        if punctual.any():
            beyond = spent[mine] - float(np.median(spent[punctual]))
            found[mine] = np.minimum(by[mine], beyond).clip(0.0)
    return found


def _tokens(found: npt.NDArray[np.object_]) -> list[str]:
    """The different tokens in `found`, sorted."""
    return sorted(set(found.astype(str).tolist()))


def _usual_transfers(case: Case, pace: Mapping[int, float]) -> tuple[F64, F64]:
    """The transfers of instances with any of the ranks in `pace` as long as those without, and as the shortest; ns.

    pace: by which factor the work of a rank is longer; so are its transfers where no others show their length.
    """
    ops, waits = case.ops, case.waits
    channel, transfer = ops.channel[waits.first_row], waits.transfer.astype(np.float64)
    slower = [max((pace.get(m, 0.0) for m in c.members), default=0.0) for c in ops.channels]
    factor = np.array(slower)[channel]
    struck = factor > 0
    words, _ = message_of(case)
    shapes = [case.shape_of(c) for c in ops.channels]
    kinds: dict[object, int] = {}
    named = zip(words, (shapes[c] for c in channel.tolist()), strict=True)
    kind = np.array([kinds.setdefault(name, len(kinds)) for name in named], np.int64)
    likely, least = transfer.copy(), transfer.copy()
    for number in range(len(kinds)):
        same = waits.complete & (kind == number)
        mine, others = same & struck, same & ~struck
        if mine.any():
            shortest = transfer[same].min()
            paced = np.maximum(transfer[mine] / factor[mine], shortest)
            likely[mine] = _no_longer(transfer, mine, others) if others.any() else paced
            least[mine] = likely[mine] if others.any() else shortest
    return likely, least


def _no_longer(spent: F64, mine: Mask, others: Mask) -> F64:
    """`spent` of `mine`, at most the median of `others` where there are any; ns."""
    return np.minimum(spent[mine], np.median(spent[others])) if others.any() else spent[mine]
