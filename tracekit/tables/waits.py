"""In every matched operation: who came last, how long the others waited, and what the transfer itself took.

Members of a collective leave together, so durations alone tell the order of arrival and no common clock is needed.
A receive waits for its sender and a rendezvous send for its receiver; their begins are compared on aligned clocks.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tracekit.tables.clock import Clocks
from tracekit.tables.intervals import I64
from tracekit.tables.match import Operations
from tracekit.tables.operations import ROOTED


@dataclass(frozen=True)
class Waits:
    """Per operation (as in Operations) and per instance; ns."""

    wait: I64  # time the operation waited for the last member to arrive; 0 for the last one and for unmatched
    exposed_wait: I64  # the part of it that compute stood still for
    transfer: I64  # per instance: from the last arrival to the end
    delivery: (
        I64  # per instance: the same, but from the sending where a message travels before it is asked for
    )
    members: I64  # per instance: how many members were seen
    complete: npt.NDArray[np.bool_]  # per instance: all members were seen
    timed: npt.NDArray[np.bool_]  # per instance: `delivery` is measured, not bounded
    last: I64  # per instance: index of the operation that came last
    first_row: I64  # per instance: index of its first operation


_COPY_FACTOR = 3
"""A receive of less than this many times the quickest one only copied what had arrived before."""


_LONG_SEND = 5
"""A send of more than this many times the usual one was held up."""


def eager_sends(ops: Operations, clocks: Clocks) -> bool:
    """Whether sends return without waiting for their receiver.

    Sends that hardly ever last longer than their usual self, while receives vary, went to a buffer; unless those few
    that did last longer ended together with a receive that was posted late: they waited for it.
    """
    duration = ops.end - ops.start
    p2p = ops.instance >= 0
    sends, receives = duration[p2p & (ops.op == "send")], duration[p2p & (ops.op == "recv")]
    if not len(sends) or not len(receives):
        return False
    longest, usual = np.percentile(sends, 90), np.median(sends)
    seldom = bool(longest <= 3 * usual and longest <= 0.5 * np.percentile(receives, 90))
    return seldom and not _held_until_received(ops, clocks, _LONG_SEND * float(usual))


def _held_until_received(ops: Operations, clocks: Clocks, usual: float) -> bool:
    """Whether most sends that last longer than `usual` (ns) end with a receive posted in their second half."""
    rows = np.flatnonzero((ops.instance >= 0) & np.isin(ops.op.astype(str), ["send", "recv"]))
    rows = rows[np.lexsort((ops.op[rows].astype(str), ops.instance[rows]))]  # recv before send
    together = np.flatnonzero(ops.instance[rows[:-1]] == ops.instance[rows[1:]])
    long, held = 0, 0
    for receive, send in zip(rows[together].tolist(), rows[together + 1].tolist(), strict=True):
        a, b = int(ops.rank[send]), int(ops.rank[receive])
        lasted = int(ops.end[send] - ops.start[send])
        if lasted <= usual or clocks.island[a] != clocks.island[b]:
            continue
        ends = clocks.align(a, ops.end[send : send + 1]) - clocks.align(b, ops.end[receive : receive + 1])
        long += 1
        held += int(ops.end[receive] - ops.start[receive] <= lasted / 2 and abs(int(ends[0])) <= lasted / 4)
    return held >= max(2, long / 2)


def measure_waits(ops: Operations, clocks: Clocks, *, eager: bool) -> Waits:
    """Measure waits and transfers of all instances; `eager` as from `eager_sends`."""
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
    timed, delivery = np.ones(count, bool), transfer.copy()
    _measure_p2p(ops, clocks, rows, begin, wait, transfer, delivery, last, timed, eager=eager)
    rooted = np.isin(ops.op.astype(str), ROOTED) if len(ops.op) else np.zeros(0, bool)
    wait[rooted] = 0  # a root need not wait: durations of rooted operations tell no order
    first = rows[begin] if count else np.zeros(0, np.int64)
    size = np.array([len(ops.channels[int(c)].members) for c in ops.channel[first]], np.int64)
    exposed = np.minimum(wait, ops.exposed)
    return Waits(wait, exposed, transfer, delivery, members, members == size, timed, last, first)


def _measure_p2p(
    ops: Operations, clocks: Clocks, rows: I64, begin: I64, wait: I64, transfer: I64, delivery: I64, last: I64,
    timed: npt.NDArray[np.bool_], *, eager: bool,
) -> None:  # fmt: skip
    """Overwrites what durations alone cannot tell of sends and receives."""
    pairs = (
        begin[
            (np.diff(np.append(begin, len(rows))) == 2)
            & np.isin(ops.op[rows[begin]].astype(str), ["send", "recv"])
        ]
        if len(begin)
        else begin
    )
    received = ops.op == "recv"
    quickest = int(np.min((ops.end - ops.start)[received])) if received.any() else 0
    aligned = np.zeros(len(ops.start), np.int64)
    for rank in ops.ranks:
        where = ops.of(rank)
        aligned[where] = clocks.align(rank, ops.start[where])
    for first in pairs.tolist():
        one, two = int(rows[first]), int(rows[first + 1])
        send, receive = (one, two) if ops.op[one] == "send" else (two, one)
        instance = int(ops.instance[one])
        taken = int(ops.end[receive] - ops.start[receive])
        if clocks.island[int(ops.rank[send])] != clocks.island[int(ops.rank[receive])]:
            timed[instance] = False
            if eager:
                wait[send], last[instance] = 0, send
            continue
        lead = int(aligned[send] - aligned[receive])  # how much earlier the receive was posted
        wait[receive] = min(max(lead, 0), taken)
        transfer[instance] = taken - wait[receive]
        if (
            eager and lead <= 0
        ):  # sent before it was asked for: only a receive that still had to wait tells how long
            timed[instance] = taken > _COPY_FACTOR * quickest
            delivery[instance] = taken - lead
        else:
            delivery[instance] = transfer[instance]
        wait[send] = 0 if eager else min(max(-lead, 0), int(ops.end[send] - ops.start[send]))
        last[instance] = send if lead > 0 or eager else receive
