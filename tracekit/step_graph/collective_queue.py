"""When operations could have started: in order on each stream, and some before their recorded start.

While a rank is late, the next collectives of its peers queue, and appear to be posted when the late rank arrives;
messages queue in the same way.
"""

from collections.abc import Callable

import numpy as np

from tracekit.arrays import numbered_rows
from tracekit.matching.match import Operations, members_of_kernel
from tracekit.rank_events.rank_ops import RankOps
from tracekit.step_graph.rank_timeline import CollectiveQueue
from tracekit.thresholds.slowrank import ANSWERED_NS, NO_WORK_NS, QUEUED_NS
from tracekit.timing.measured import Measured
from tracekit.units import F64, I64, Mask


def queue_of(run: Measured, *, free: bool = False, early: bool = False) -> CollectiveQueue:
    """Return the queues of all groups; with `free`, a moment that is only guessed becomes the earliest one possible.

    With `early`, compute uses each message as soon as it can where the recording does not show when it does.

    An operation that starts when the one before it on its channel ends was in the queue. The host's launches show when
    it could start (`ready_times`). If the trace has none, a collective was ready as far into the rank's own work as
    into the work of its last member, which nothing delayed.
    """
    ops, waits = run.ops, run.waits
    this, behind = _pairs(run)
    before, crossed = _behind(run, this, behind, free=free)
    ready = ops.at_start.astype(np.float64)
    queued = (ops.start[this] - ops.end[behind] <= QUEUED_NS) & ~_idle_meanwhile(run, this, behind, free=free)
    launches_known = queued & np.isfinite(ops.at_ready[this])
    ready[this[launches_known]] = np.minimum(ops.at_ready[this[launches_known]], ready[this[launches_known]])
    _in_order(ready, this[launches_known], behind[launches_known])
    wall, launched = ops.start.astype(np.float64), _per_rank(run, lambda r: r.ready)
    wall[this[launches_known]] = np.minimum(launched[this[launches_known]], wall[this[launches_known]])
    _in_order(wall, this[launches_known], behind[launches_known])
    answers, caused = _caused(run, launched, this[queued])
    caused = np.concatenate([caused, crossed], axis=1)
    ready[answers] = np.minimum(ops.at_ready[answers], ready[answers])
    wall[answers] = np.minimum(launched[answers], wall[answers])
    used = uses_of(run, early=early)
    guessed = queued & ~launches_known & ~run.in_message[this]
    this, behind = this[guessed], behind[guessed]
    if free:
        ready[this] = _since_the_first(ops.at_start, this, behind)
        return CollectiveQueue(ready, wall, before, caused, used)
    ready[this] = _evenly(ops.at_start, this, behind)
    late = this[waits.wait[behind] > QUEUED_NS]
    begin, own = _own(run, late)
    moment = begin + own * _share_of_last(run, ready)[ops.instance[late]]
    ready[late] = np.fmin(moment, ops.at_start[late])
    _in_order(ready, this, behind)
    return CollectiveQueue(ready, wall, before, caused, used)


def uses_of(run: Measured, *, early: bool = False) -> I64:
    """Return by operation when compute used what a matched receive brought, ns; −1 unknown. `early` as `queue_of`."""
    ops, used = run.ops, _per_rank(run, lambda r: r.used)
    received = ops.op == "recv"
    if early:
        usable = _per_rank(run, lambda r: r.usable)
        used, received = np.where(usable >= 0, usable, used), ops.among(("recv", "send_recv"))
    return np.where(received & (ops.instance >= 0), used, -1)


def _caused(run: Measured, launched: I64, stood: I64) -> tuple[I64, I64]:
    """Return (operations that start when one of another group ends, the resulting pairs of instances).

    In HSDP the all-reduce of replicas follows the reduce-scatter of shards, by an event between two streams or as the
    next operation of one stream, and the next reduce-scatter follows it. Such an operation was `launched` long before
    (by operation, ns; −1 unknown), did not queue in its own group, and begins when the other one has ended.
    Each member waits for the instance of its own shard, and the all-reduce for all of these.
    """
    ops, stream = run.ops, _per_rank(run, lambda r: r.stream)
    mine = (ops.instance >= 0) & ~run.in_message & (members_of_kernel(ops) == 1)
    free = mine & np.isfinite(ops.at_ready) & (launched >= 0)
    free[stood] = False
    found = [np.zeros((2, 0), np.int64)]
    for rank in ops.ranks:
        where = ops.of(rank)
        rows, asks = (np.flatnonzero(mask[where]) + where.start for mask in (mine, free))
        rows = rows[np.argsort(ops.end[rows], kind="stable")]
        found.append(_ended_before(ops, rows, asks, ANSWERED_NS))
        found += [
            _ended_before(ops, rows[stream[rows] == one], asks[stream[asks] == one], QUEUED_NS)
            for one in np.unique(stream[asks[stream[asks] >= 0]]).tolist()
        ]
    late, asked = np.concatenate(found, axis=1)
    waited = (launched[late] < ops.end[asked] - QUEUED_NS) & (ops.channel[late] != ops.channel[asked])
    late, asked = late[waited], asked[waited]
    pairs = np.concatenate([ops.instance[np.stack([late, asked])], _of_members(ops, late, asked)], axis=1)
    return np.unique(late), pairs[:, numbered_rows(*pairs)[0]]


def _of_members(ops: Operations, late: I64, asked: I64) -> tuple[I64, I64]:
    """Return pairs of instances (two rows) that members of `late` give which wait for another one of `asked`.

    A member that queued behind another rank does not show what else it waits for: it issued a like operation as many
    places before, and that had ended when it began.
    """
    place, row = np.zeros((2, len(ops.start)), np.int64)  # in order of issue on each rank, and back
    for rank in ops.ranks:
        where = ops.of(rank)
        row[where] = where.start + np.argsort(ops.per_rank[rank].issued, kind="stable")
        place[row[where]] = np.arange(where.start, where.stop)
    members = np.argsort(ops.instance, kind="stable")
    first, end = (
        np.searchsorted(ops.instance[members], ops.instance[late], side) for side in ("left", "right")
    )
    pair = np.repeat(np.arange(len(late)), end - first)
    mate = members[np.arange(len(pair)) - (np.cumsum(end - first) - end)[pair]]
    like = row[np.clip(place[mate] + (place[asked] - place[late])[pair], 0, len(row) - 1)]
    same = (ops.rank[like] == ops.rank[mate]) & (ops.instance[like] >= 0)
    same &= (ops.op[like] == ops.op[asked[pair]]) & (ops.token[like] == ops.token[asked[pair]])
    same &= ops.end[like] <= ops.start[mate] + ANSWERED_NS
    return ops.instance[mate[same]], ops.instance[like[same]]


def _ended_before(ops: Operations, rows: I64, asks: I64, within: int) -> I64:
    """Return pairs (two rows) of an operation in `asks` and the last of `rows` (by end) that ended just before it.

    The end lies up to `within` ns before the begin, or up to ANSWERED_NS after it.
    """
    if not len(rows) or not len(asks):
        return np.zeros((2, 0), np.int64)
    place = np.searchsorted(ops.end[rows], ops.start[asks] + ANSWERED_NS, side="right") - 1
    asked = rows[np.maximum(place, 0)]
    near = (place >= 0) & (ops.start[asks] - ops.end[asked] <= within) & (asked != asks)
    return np.stack([asks, asked])[:, near]


def _evenly(at_start: I64, this: I64, behind: I64) -> F64:
    """Return the own time at which each queued operation `this` was ready if its queue grew evenly, ns.

    It is no later than it began. A queue begins with an operation that did not queue. If transfers last longer than the
    work between them, all members queue, and no member shows when; but the last one was ready when its work was done.
    """
    head = np.flatnonzero(np.append(True, behind[1:] != this[:-1]))[: len(this)]
    size = np.diff(np.append(head, len(this)))
    place = np.arange(len(this)) - np.repeat(head, size) + 1
    first = at_start[behind[head]].astype(np.float64)
    last = at_start[this[head + size - 1]].astype(np.float64)
    grown = np.repeat(first, size) + np.repeat((last - first) / size, size) * place
    return np.asarray(np.minimum(grown, at_start[this]), np.float64)


def _pairs(run: Measured) -> tuple[I64, I64]:
    """Return matched operations, and for each the previous one in its queue, which had ended when it began.

    The messages of one stream are one queue, whatever their direction and peer. A group runs its collectives in order,
    whatever their streams: from torch 2.8 on a collective with async_op=False runs on its caller's stream. But two
    groups may have the same members: where operations of one channel overlap on two streams, neither queues behind the
    other.
    """
    ops = run.ops
    rows = np.flatnonzero((ops.instance >= 0) & (members_of_kernel(ops) == 1))
    queue = _queues(run, rows)
    order = np.lexsort((ops.start[rows], queue))
    rows, queue = rows[order], queue[order]
    this, behind = rows[1:], rows[:-1]
    same = (queue[1:] == queue[:-1]) & (ops.start[this] + QUEUED_NS >= ops.end[behind])
    return this[same], behind[same]


def _queues(run: Measured, rows: I64) -> I64:
    """Return a number for each of the operations `rows`: equal if they are in one queue of their rank."""
    ops, stream = run.ops, _per_rank(run, lambda r: r.stream)[rows]
    on_stream = run.in_message[rows] & (_per_rank(run, lambda r: r.stream if r.on_gpu else None)[rows] >= 0)
    where = np.where(on_stream, stream, ops.channel[rows])
    lane = numbered_rows(ops.rank[rows], on_stream, where)[1]
    queue = numbered_rows(lane, stream)[1]
    order = np.lexsort((ops.start[rows], lane))
    one, other = order[:-1], order[1:]
    crossing = (lane[one] == lane[other]) & (stream[one] != stream[other])
    beside = crossing & (ops.start[rows[other]] + QUEUED_NS < ops.end[rows[one]])
    apart = np.isin(lane, lane[one[beside]])
    return np.asarray(np.where(apart, queue, -1 - lane), np.int64)


def _behind(run: Measured, this: I64, behind: I64, *, free: bool) -> tuple[I64, I64]:
    """Return (per instance the one that it queues behind, −1 for none; more pairs of instances that wait).

    The former are of one channel, or messages that both their ranks run in this order. The first of a pair (two rows)
    starts when the second ends, on one stream of one rank. A buffered send leaves its stream before its receiver comes,
    so that only its own channel follows it; with `free`, so does one that may be buffered. `this` and `behind` are
    those of `_pairs`.
    """
    ops = run.ops
    along = ops.channel[this] == ops.channel[behind]
    kept = along | ~_leaves_alone(run, free=free)[behind]
    pairs = ops.instance[np.stack([this, behind])[:, kept]]
    first, number = numbered_rows(*pairs)
    queued = along[kept][first] | (np.bincount(number, minlength=len(first)) > 1)
    pairs = pairs[:, first]
    before = np.full(len(run.waits.first_row), -1, np.int64)
    np.maximum.at(before, *pairs[:, queued])
    return before, pairs[:, ~queued]


def _idle_meanwhile(run: Measured, this: I64, behind: I64, *, free: bool) -> Mask:
    """Return whether each of `this` or the one before it is a buffered send, and their rank was idle meanwhile.

    A buffered send ends by itself in the replay, whatever its stream does. The rank waits for a receive before it, and
    then sends; a receive behind it begins when it ends. A rank that works, or has another stream that goes on, posts
    the later one when it is launched. `this` and `behind` are those of `_pairs`.
    """
    ops, alone = run.ops, _leaves_alone(run, free=free)
    worked = ops.at_start[this] - ops.at_ready[this] > QUEUED_NS
    apart = ops.channel[this] != ops.channel[behind]
    found = np.flatnonzero((alone[this] | alone[behind]) & apart & ~worked)
    rest = this[found]
    idle = np.zeros(len(this), bool)
    idle[found] = _ended(run, rest) == _ended(run, rest, _per_rank(run, lambda r: r.stream))
    return idle


def _ended(run: Measured, rows: I64, stream: I64 | None = None) -> I64:
    """Return how many operations of its rank ended while each of `rows` was launched and had not begun.

    Given the `stream` by operation, only those of its own stream count.
    """
    ops, launched = run.ops, _per_rank(run, lambda r: r.ready)
    lane = ops.rank.astype(np.int64) if stream is None else numbered_rows(ops.rank, stream)[1]
    begin = np.array([ops.start[ops.of(rank)].min(initial=1 << 62) for rank in ops.ranks])
    first = begin[np.searchsorted(ops.ranks, ops.rank)]  # clocks of hosts may be far apart
    span = int((ops.end - first).max(initial=0)) + 1
    ends = np.sort(lane * span + ops.end - first)
    upto, since = (
        np.searchsorted(ends, lane[rows] * span + np.maximum((at - first)[rows], 0), side="right")
        for at in (ops.start, launched)
    )
    return np.asarray(upto - since, np.int64)


def _leaves_alone(run: Measured, *, free: bool) -> Mask:
    """Return by operation whether it is a send that leaves its stream before its receiver comes; `free` as above."""
    return run.ops.among(("send",)) & (run.buffered.eager | (run.buffered.unsure & free))


def _in_order(ready: F64, this: I64, behind: I64) -> None:
    """Raise `ready` of each `this` to that of the operation `behind` it on its stream; pairs in order of start."""
    ready[this] = _running(np.maximum, ready, this, behind)


def _per_rank(run: Measured, of: Callable[[RankOps], I64 | None]) -> I64:
    """Return the value of `of` for each operation, over all ranks; −1 if the trace does not hold it."""
    each = ((run.ops.per_rank[r], of(run.ops.per_rank[r])) for r in run.ops.ranks)
    parts = [np.full(len(r.start), -1, np.int64) if values is None else values for r, values in each]
    return np.concatenate([np.zeros(0, np.int64), *parts])


def _since_the_first(at_start: I64, this: I64, behind: I64) -> F64:
    """Return for each queued operation `this` the own time at which the first of its queue began, ns."""
    return _running(np.minimum, at_start.astype(np.float64), this, behind)


def _running(of: np.ufunc, values: F64, this: I64, behind: I64) -> F64:
    """Return `of` all `values` of its queue up to each of `this`; pairs in order of start, as those of `_pairs`."""
    found = np.asarray(of(values[this], values[behind]), np.float64)
    ahead = np.arange(len(this)) - _heads(this, behind)  # pairs of its queue before this one
    step = 1
    while step <= ahead.max(initial=0):
        found[step:] = np.where(ahead[step:] >= step, of(found[step:], found[:-step]), found[step:])
        step *= 2
    return found


def _heads(this: I64, behind: I64) -> I64:
    """Return the place of the first pair of its queue for each pair."""
    first = np.append(True, behind[1:] != this[:-1])[: len(this)]
    return np.maximum.accumulate(np.where(first, np.arange(len(this)), 0))


def _own(run: Measured, rows: I64) -> tuple[F64, F64]:
    """Return (own-time reading at the begin of each operation's step, own time of the step), ns; NaN outside."""
    known, (begin, own) = run.analysed[rows], np.full((2, len(rows)), np.nan)
    row, column = (place[rows[known]] for place in run.place)
    begin[known], own[known] = run.steps.begin[row, column], run.steps.own[row, column]
    return begin, own


def _share_of_last(run: Measured, ready: F64) -> F64:
    """Return per instance the share (0 to 1) of its step's own work that the last member had done on arrival.

    If several arrived together the least share counts, since a member that queued too gives only a later moment.
    """
    ops, waits = run.ops, run.waits
    rows = np.flatnonzero((ops.instance >= 0) & (waits.wait <= NO_WORK_NS))
    begin, own = _own(run, rows)
    share = (ready[rows] - begin) / np.where(own > 0, own, np.nan)
    least = np.full(len(waits.first_row), np.inf)
    known = np.isfinite(share)
    np.minimum.at(least, ops.instance[rows][known], share[known])
    return np.asarray(np.where(np.isfinite(least), least, np.nan), np.float64)
