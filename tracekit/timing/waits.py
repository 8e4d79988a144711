"""Measures for every matched operation which rank came last, how long the others waited, and the transfer.

Members of a collective leave together, so durations alone show the order of arrival and no common clock is needed.
A receive waits for its sender and a rendezvous send for its receiver; their begins are compared on aligned clocks.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from tracekit.matching.clock import Clocks, aligned, linked
from tracekit.matching.match import Operations, found_done, members_of_kernel, message_ends
from tracekit.rank_events.operation_names import ROOTED
from tracekit.thresholds.slowrank import CLOCK_DOUBTS
from tracekit.thresholds.tables import BUFFERED_RECEIVE, COMMON_END_NS, MAX_CLOCK_RATE
from tracekit.units import F64, I64, Mask


@dataclass(frozen=True)
class Waits:
    """Waits by operation (as in Operations), transfers by instance; ns.

    Rooted operations have no wait here unless their members leave together: a root may leave early, so that durations
    alone do not show the order of arrival.
    """

    wait: I64  # per operation: until the last member arrived; 0 for the last one and where unmatched
    held: I64  # per operation: the wait of its kernel; messages of one batch share it
    exposed_wait: I64  # per operation: the part of it that compute waited for
    transfer: I64  # per instance: from the last arrival to the end
    delivery: (
        I64  # per instance: the same, but from the send where a message travels before its receive is posted
    )
    members: I64  # per instance: how many members were recorded
    complete: Mask  # per instance: all members were recorded
    timed: Mask  # per instance: `delivery` is measured, not bounded
    last: I64  # per instance: index of the operation that came last
    first_row: I64  # per instance: index of its first operation


def measure_waits(ops: Operations, clocks: Clocks, *, eager: Mask) -> Waits:
    """Return waits and transfers of all instances; `eager` by operation, as from `buffered_sends`."""
    rows = np.flatnonzero(ops.instance >= 0)
    rows = rows[np.argsort(ops.instance[rows], kind="stable")]
    number = ops.instance[rows]
    count = int(number.max()) + 1 if len(number) else 0
    begin = np.searchsorted(number, np.arange(count))
    duration = (ops.end - ops.start)[rows]
    transfer = np.minimum.reduceat(duration, begin) if count else np.zeros(0, np.int64)
    members = np.diff(np.append(begin, len(rows))) if count else np.zeros(0, np.int64)
    last = np.zeros(count, np.int64)
    shortest = duration == transfer[number] if count else np.zeros(0, bool)
    for position in np.flatnonzero(shortest)[::-1]:
        last[number[position]] = rows[position]
    wait = np.zeros(len(ops.start), np.int64)
    wait[rows] = duration - transfer[number]
    first = rows[begin] if count else np.zeros(0, np.int64)
    size = np.array([len(ops.channels[int(c)].members) for c in ops.channel[first]], np.int64)
    timed, delivery, exposed = np.ones(count, bool), transfer.copy(), np.zeros(len(ops.start), np.int64)
    held = wait.copy()
    waits = Waits(wait, held, exposed, transfer, delivery, members, members == size, timed, last, first)
    _measure_messages(ops, clocks, waits, eager=eager)
    apart = rows[ops.among(ROOTED)[rows] & (wait[rows] <= _left_apart(ops, clocks, rows, begin)[number])]
    wait[apart] = held[apart] = 0
    exposed[:] = np.minimum(wait, ops.exposed)
    return replace(waits, held=wait) if np.array_equal(wait, held) else waits


def _left_apart(ops: Operations, clocks: Clocks, rows: I64, begin: I64) -> F64:
    """Return how far apart the members of each instance may have left, ns: the clocks' error if their ends agree.

    0 on exact clocks; infinite where ends are apart, or clocks not joined. `rows` are by instance, from `begin` on.
    """
    if not len(begin):
        return np.zeros(0)
    ends = aligned(ops, clocks, ops.end)[rows]
    of_rank = [(clocks.island[r], clocks.exact.get(r, r), clocks.doubt.get(r, 0.0)) for r in ops.ranks]
    island, exact, doubt = (ops.by_rank(np.array(of))[rows] for of in zip(*of_rank, strict=True))
    away, islands, other = (
        np.maximum.reduceat(v, begin) - np.minimum.reduceat(v, begin) for v in (ends, island, exact)
    )
    drift = MAX_CLOCK_RATE * float(np.ptp(ends))
    error = np.where(other > 0, 2 * np.maximum.reduceat(doubt, begin) + drift, 0.0)
    together = (islands == 0) & (away <= COMMON_END_NS + CLOCK_DOUBTS * clocks.residual_ns + error)
    return np.asarray(np.where(together, error, np.inf), np.float64)


def left_before(ops: Operations, clocks: Clocks, channels: Sequence[int]) -> float:
    """Return the share of messages with a sender that waits, and leaves before the receive begins: as no peer does."""
    send, receive = (rows[np.isin(ops.channel[rows], channels)] for rows in message_ends(ops))
    begin, end = (aligned(ops, clocks, times) for times in (ops.start, ops.end))
    lasted, doubt = (end - begin)[send], COMMON_END_NS + CLOCK_DOUBTS * clocks.residual_ns
    waited = lasted > min(lasted.tolist(), default=0) + doubt
    return float((waited & (end[send] < begin[receive] - doubt)).sum()) / max(len(send), 1)


def _measure_messages(ops: Operations, clocks: Clocks, waits: Waits, *, eager: Mask) -> None:
    """Overwrite in `waits` what durations alone do not show for sends and receives."""
    send, receive = message_ends(ops)
    if not len(send):
        return
    duration = ops.end - ops.start
    quickest = _quickest(ops, duration)
    known = linked(ops, clocks, send, receive)
    apart = send[~known]
    waits.timed[ops.instance[apart]] = False
    apart = apart[eager[apart]]
    waits.wait[apart] = waits.held[apart] = 0
    waits.last[ops.instance[apart]] = apart
    send, receive = send[known], receive[known]
    instance, taken = ops.instance[send], duration[receive]
    begin = aligned(ops, clocks, ops.start)
    lead = begin[send] - begin[receive]  # how much earlier the receive was posted
    waits.wait[receive] = np.minimum(np.maximum(lead, 0), taken)
    free = eager[send]
    waits.wait[send] = np.where(free, 0, np.minimum(np.maximum(-lead, 0), duration[send]))
    _share_in_batches(ops, waits, np.concatenate([receive, send]))
    lasted = _transfers(ops, receive, taken - waits.held[receive])
    waits.transfer[instance] = waits.delivery[instance] = lasted
    # sent before the receive was posted: only a receive that still had to wait shows how long the message took
    early = free & (lead <= 0)
    asked = taken > BUFFERED_RECEIVE * quickest[receive]
    waits.timed[instance[early]] = (asked & ~_batched(ops)[receive])[
        early
    ]  # else another message may hold it up
    waits.delivery[instance[early]] = (taken - lead)[early]
    finish = aligned(ops, clocks, ops.end)
    together = np.abs(finish[send] - finish[receive]) <= COMMON_END_NS + CLOCK_DOUBTS * clocks.residual_ns
    last = together & (waits.held[receive] == np.maximum(lead, 0))  # else another message ended the kernel
    waits.timed[instance] &= last | ~_batched(ops)[receive]
    waits.last[instance] = np.where(free | (lead > 0), send, receive)


def _quickest(ops: Operations, duration: I64) -> I64:
    """Return by operation the shortest `duration` of a receive of its message, ns, which is the time without a wait."""
    _, message = ops.messages
    shortest = np.full(int(message.max(initial=-1)) + 1, np.iinfo(np.int64).max)
    received = ops.among(("recv",))
    np.minimum.at(shortest, message[received], duration[received])
    return np.asarray(shortest[message], np.int64)


def _transfers(ops: Operations, receive: I64, lasted: I64) -> I64:
    """Return `lasted` (by receive, ns), at most the usual time where the host looked for the message late."""
    found = found_done(ops)[receive]
    if not found.any():
        return lasted
    usual = int(np.median(lasted[~found])) if (~found).any() else 0
    return np.where(found, np.minimum(lasted, usual), lasted)


def _batched(ops: Operations) -> Mask:
    """Whether each operation shares its kernel with others."""
    return np.asarray(members_of_kernel(ops) > 1, bool)


def _share_in_batches(ops: Operations, waits: Waits, messages: I64) -> None:
    """Set in `waits` how long the kernels of `messages` were delayed: until the last peer of any member had come.

    In a batch the member with the last peer carries the wait, so that sums count it once.
    """
    longest = np.zeros(int(ops.kernel.max(initial=-1)) + 1, np.int64)
    np.maximum.at(longest, ops.kernel[messages], waits.wait[messages])
    within = np.isin(ops.kernel, ops.kernel[messages])
    waits.held[within] = longest[ops.kernel[within]]
    batched = np.flatnonzero(within & _batched(ops))
    order = batched[np.lexsort((-waits.wait[batched], ops.kernel[batched]))]
    first = np.concatenate([[True], np.diff(ops.kernel[order]) > 0]) if len(order) else np.zeros(0, bool)
    waits.wait[order[~first]] = 0


def longer_outside(ops: Operations, inside: Mask, mine: I64) -> float:
    """Return how much longer the operations `mine` of a channel last not `inside` the analysed steps, over these, ns.

    Of the member that waits least, and by the median over operations, so that one long operation counts for nothing.
    Messages are compared with messages of the same kind; 0 where there are none on either side.
    """
    kind, lasted, found = ops.messages[1][mine], (ops.end[mine] - ops.start[mine]).astype(np.float64), []
    for rank in np.unique(ops.rank[mine]).tolist():
        here, away = (
            np.flatnonzero((ops.rank[mine] == rank) & (inside[mine] == side)) for side in (True, False)
        )
        usual = {k: float(np.median(lasted[here[kind[here] == k]])) for k in np.unique(kind[here]).tolist()}
        longer = [lasted[row] - usual[kind[row]] for row in away.tolist() if kind[row] in usual]
        found += [float(np.median(longer)) * len(here)] if longer else []
    return min(found, default=0.0)
