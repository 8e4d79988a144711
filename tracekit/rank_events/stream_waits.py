"""Proof that compute waited for communication, from the device's own record of waits (`cuda_sync` events).

They are written with `enable_cuda_sync_events` only, and name the other stream up to CUDA 12.8 only. A recording with
one wait that names no stream proves nothing. A kernel waits for communication through a wait of its stream, or because
its host was in a synchronising call; it also waits for what is ahead of it on its own stream.
"""

import re
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Final

import numpy as np
import pyarrow as pa

from tracekit.rank_events.coded_words import Column
from tracekit.rank_events.event_columns import DEVICE_CALLS, ints, latest, truth
from tracekit.units import I8, I64, Mask

WAITED: Final = 1
"""The compute that resumed after the operation had a wait for it on its stream."""
UNTOLD: Final = 0
FREE: Final = -1
"""The compute that resumed after the operation had no wait for it."""
_STREAM_WAIT = re.compile(r"^Stream Wait Event$")
HOST_WAIT: Final = re.compile(r"Synchronize|Memcpy")
"""Calls in which the host may wait until its device has done what was launched."""
_GRAPH = re.compile(r"GraphLaunch")


@dataclass(frozen=True)
class _Waits:
    """Waits of streams, in order of issue; times in ns."""

    stream: I64  # the waiting stream
    other: I64  # the stream that it waits for
    issued: I64
    upto: I64  # launches on the other stream until then are waited for


def waited_for(events: pa.Table, cat: Column, comm: Mask, rows: I64, end: I64, launches: I64) -> I8:
    """Return `WAITED`, `FREE` or `UNTOLD` for each communication kernel of `rows`.

    end: per event, ns; comm: whether each event communicates; launches: the row of its launch, by event. The compute
    that resumes is the first compute kernel that starts when the operation has ended.
    """
    found = np.zeros(len(rows), np.int8)
    waits = _waits_of(events, cat)
    compute = np.flatnonzero((cat == "kernel") & ~comm)
    if waits is None or not len(compute):
        return found
    start, stream = ints(events, "ts", 0), ints(events, "stream", -1)
    resumed, known = resumed_behind(compute, start, end[rows])
    graph = truth(events, "name", _GRAPH)
    mine, its = launches[rows], launches[resumed]
    asked = known & (mine >= 0) & (its >= 0) & ~graph[mine] & ~graph[its]
    asked &= (stream[rows] != stream[resumed]) & (stream[rows] >= 0) & (stream[resumed] >= 0)
    direct = _covered(waits, stream[resumed], stream[rows], start[its], start[mine])
    through = _through(waits, stream[resumed], start[its], start[mine])
    found[asked & direct] = WAITED
    found[asked & ~direct & ~through & ~_host_stood(events, cat, end[rows])] = FREE
    return found


def resumed_behind(compute: I64, start: I64, ends: I64) -> tuple[I64, Mask]:
    """Return (the first of the kernels `compute` that starts at or after each of `ends`, whether one does).

    `compute` are event rows, at least one; `start` is per event, `ends` are ns.
    """
    compute = compute[np.argsort(start[compute], kind="stable")]
    place = np.searchsorted(start[compute], ends)
    return compute[np.minimum(place, len(compute) - 1)], np.asarray(place < len(compute), bool)


def _waits_of(events: pa.Table, cat: Column) -> _Waits | None:
    """Return the waits of a recording; None where it has none, or one of them does not name the other stream."""
    rows = np.flatnonzero((cat == "cuda_sync") & truth(events, "name", _STREAM_WAIT))
    stream, other = ints(events, "stream", -1)[rows], ints(events, "wait_stream", -1)[rows]
    if not len(rows) or (stream < 0).any() or (other < 0).any():
        return None
    calls = np.flatnonzero(cat == "cuda_runtime")
    start, correlation = ints(events, "ts", 0), ints(events, "correlation", -1)
    calls = calls[correlation[calls] >= 0]

    def moment(keys: I64) -> I64:
        """Return when the host made the calls with these correlations; the time of the wait where not recorded."""
        found = latest(correlation[calls], start[calls], keys, np.full(len(rows), np.iinfo(np.int64).max))
        return np.where(found >= 0, np.append(start[calls], 0)[found], start[rows])

    issued = moment(correlation[rows])
    upto = np.minimum(moment(ints(events, "wait_record", -1)[rows]), issued)
    order = np.argsort(issued, kind="stable")
    return _Waits(stream[order], other[order], issued[order], upto[order])


def _covered(waits: _Waits, stream: I64, other: I64, before: I64, since: I64) -> Mask:
    """Whether `stream` issued a wait for `other` until `before` that covers what was launched there at `since`; ns."""
    _, number = np.unique(
        np.stack([np.append(waits.stream, stream), np.append(waits.other, other)]),
        axis=1,
        return_inverse=True,
    )
    number, count = number.ravel(), len(waits.stream)
    return _latest_reaches(number[:count], waits.issued, waits.upto, number[count:], before, since)


def _through(waits: _Waits, stream: I64, before: I64, since: I64) -> Mask:
    """Whether `stream` waited in that time for a stream that itself waits for a third one; for what is unknown."""
    known = np.unique(np.concatenate([waits.stream, waits.other]))
    mine, other = np.searchsorted(known, waits.stream), np.searchsorted(known, waits.other)
    pairs = np.unique(mine * len(known) + other)
    asks = np.bincount(pairs // len(known), minlength=len(known))  # by stream: for how many others it waits
    chained = asks[other] > np.isin(other * len(known) + mine, pairs)
    _, number = np.unique(np.append(waits.stream, stream), return_inverse=True)
    key, issued = number[: len(waits.stream)][chained], waits.issued[chained]
    return _latest_reaches(key, issued, issued, number[len(waits.stream) :], before, since)


def _latest_reaches(key: I64, issued: I64, upto: I64, asked: I64, before: I64, since: I64) -> Mask:
    """Whether a wait with the key `asked` that was issued until `before` reaches `since`.

    key, issued, upto: per wait, in order of issue; asked, before, since: per question.
    """
    if not len(key):
        return np.zeros(len(asked), bool)
    times = np.unique(np.concatenate([issued, upto, before, since]))
    width = len(times)
    order = np.argsort(key, kind="stable")
    at = key[order] * width + np.searchsorted(times, issued[order])
    reach = np.maximum.accumulate(key[order] * width + np.searchsorted(times, upto[order]))
    last = np.searchsorted(at, asked * width + np.searchsorted(times, before), side="right") - 1
    return np.asarray(
        (last >= 0)
        & (at[np.maximum(last, 0)] >= asked * width)
        & (reach[np.maximum(last, 0)] >= asked * width + np.searchsorted(times, since)),
        bool,
    )


def _host_stood(events: pa.Table, cat: Column, moments: I64) -> Mask:
    """Return whether the host was in a call that waits for the device at each of `moments`, ns."""
    rows = np.flatnonzero(cat.among(DEVICE_CALLS) & truth(events, "name", HOST_WAIT))
    if not len(rows):
        return np.zeros(len(moments), bool)
    begin = ints(events, "ts", 0)[rows]
    order = np.argsort(begin, kind="stable")
    until = np.maximum.accumulate((begin + ints(events, "dur", 0)[rows])[order])
    before = np.searchsorted(begin[order], moments, side="right") - 1
    return np.asarray((before >= 0) & (until[np.maximum(before, 0)] >= moments), bool)


# The time from which each communication kernel could have started: launched, with its inputs computed.
#
# A collective that queues behind another one of its group starts when that one ends, so its recorded start
# says when the group was free and not when the rank was ready. The host's launches show the latter: a
# communication kernel waits for the compute that was launched before it.

_SYNCHRONIZES: Final = re.compile("Synchronize")
"""Calls that return when the device has done what was launched."""
UNKNOWN = -1
"""The trace does not show when the kernel was launched."""


def ready_times(
    events: pa.Table, cat: Column, comm: Mask, rows: I64, launch: I64, start: I64, end: I64,
    launches: I64, received: Mask | None = None, begins: Sequence[int] = (),
) -> tuple[I64, I64, I64]:  # fmt: skip
    """Return when each communication kernel of `rows` could have started, and when compute used what it `received`; ns.

    The first is the later one of its `launch` and of the end of the last kernel on the busiest compute stream that was
    launched before it, and never after its recorded start. The second is the start of the first kernel there that was
    launched after the host had waited for the message. The third is when compute may have used it at the earliest,
    where the host has fewer waits than messages: a stream that waits for a message leaves no record. UNKNOWN without a
    launch, and in a later window than that of the message: the uses behind a window are lost. The launch of a graph,
    which compute shares, does not show when its communication could have started. `start`, `end` and
    `launches` (rows) are per event, `launch` per row, `begins` of windows.
    """
    known = launch < start[rows]
    compute = np.flatnonzero((cat == "kernel") & ~comm)
    if not len(compute) or not known.any():
        unused = np.full(len(rows), UNKNOWN)
        return np.where(known, launch, UNKNOWN), unused, unused
    stream = ints(events, "stream", -1)
    streams, kernels = np.unique(stream[compute], return_counts=True)
    main = compute[stream[compute] == streams[np.argmax(kernels)]]
    main = main[np.argsort(start[main], kind="stable")]
    launched = _launched(start, launches[main], start[main])
    before = np.searchsorted(launched, launch, side="left")
    ended = np.searchsorted(np.maximum.accumulate(end[main]), start[rows], side="right")
    last = np.minimum(before, ended) - 1
    computed = np.where(last >= 0, end[main][np.maximum(last, 0)], launch)
    alone = known & (np.searchsorted(launched, launch, side="right") == before)
    ready = np.where(alone, np.minimum(np.maximum(computed, launch), start[rows]), UNKNOWN)
    waits = np.flatnonzero(cat.among(DEVICE_CALLS) & truth(events, "name", _SYNCHRONIZES))
    waits = waits[np.argsort(end[waits], kind="stable")]
    used = np.full(len(rows), UNKNOWN)
    mine = np.flatnonzero(known if received is None else received & known)
    used[mine] = _first_uses((start[waits], end[waits]), launch[mine], end[rows[mine]], start[main], launched)
    usable = np.full(len(rows), UNKNOWN)
    if not 0 < len(mine) <= len(waits):
        usable = _earliest_uses(launch, end[rows], start[main], launched)
    used, usable = (_in_window(use, start[rows], begins) for use in (used, np.where(known, usable, UNKNOWN)))
    return ready, used, usable


def _in_window(used: I64, begin: I64, windows: Sequence[int]) -> I64:
    """Return when each message that begins at `begin` was `used`; UNKNOWN in a window that begins after it; ns."""
    same = np.searchsorted(windows, used, "right") == np.searchsorted(windows, begin, "right")
    return np.where(same, used, UNKNOWN)


def _first_uses(calls: tuple[I64, I64], launch: I64, done: I64, begin: I64, launched: I64) -> I64:
    """Return when the first kernel began that was launched after the host had waited for each message, ns.

    `calls` are begins and ends of the host's waits, each for one message. One that lasted until a message was `done`
    waited for that one, any other for the message that was launched first of those done. `begin` and `launched` are
    those of the kernels.
    """
    used = np.full(len(done), UNKNOWN)
    arrivals = deque(sorted(zip(done.tolist(), range(len(done)), strict=True)))
    waiting: list[tuple[int, int]] = []  # (launch, message) of those done, and not yet waited for
    taken: set[int] = set()
    for asked, returned in zip(*(moments.tolist() for moments in calls), strict=True):
        row = -1
        while arrivals and arrivals[0][0] <= returned:
            moment, message = arrivals.popleft()
            heappush(waiting, (int(launch[message]), message))
            row = message if moment > asked else row
        while row < 0 and waiting:
            _, message = heappop(waiting)
            row = -1 if message in taken else message
        if row >= 0:
            taken.add(row)
            after = np.searchsorted(launched, returned)
            used[row] = begin[after] if after < len(begin) else UNKNOWN
    return used


def _earliest_uses(launch: I64, done: I64, begin: I64, launched: I64) -> I64:
    """Return the begin of the first kernel that was `launched` after each message and began after it was `done`, ns."""
    first = np.maximum(np.searchsorted(launched, launch, side="right"), np.searchsorted(begin, done))
    return np.asarray(np.append(begin, UNKNOWN)[first], np.int64)


def _launched(start: I64, launch: I64, begin: I64) -> I64:
    """Return the latest possible launch of each kernel of one stream, ns, never earlier than that of the one before.

    `launch` is the event row of its launch, −1 if the trace does not show it, `begin` the start of the kernel. A
    stream runs in order of launch, so a kernel without a launch was launched before the next one that has one: where
    the host runs ahead, long before it began.
    """
    latest = np.where(launch >= 0, start[launch], np.iinfo(np.int64).max)
    following = np.minimum.accumulate(latest[::-1])[::-1]
    return np.maximum.accumulate(np.where(launch >= 0, latest, np.minimum(following, begin)))
