"""The nesting of a host's events on each thread, and how long a host delayed its device in communication.

A device that idles in a collective seems to wait for it, although nothing else was launched: the host still loads its
data, or launches too slowly. If the collective had ended at once, the device would have idled all the same. A host
waits for the device, and so for the collective, in a synchronising call, and in an operator that launches the
collective and returns when it has ended: DeepEP's dispatch reads there how many tokens it got.
"""

import re
from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np
import pyarrow as pa

from tracekit.arrays import numbered_rows
from tracekit.intervals import Intervals, covered_until, gap_start, union
from tracekit.rank_events.coded_words import Column
from tracekit.rank_events.event_columns import DEVICE_CALLS, ints, truth
from tracekit.rank_events.stream_waits import HOST_WAIT, resumed_behind
from tracekit.thresholds.tables import MAX_NESTED_RECORDS, POLLS_THAT_WAIT
from tracekit.units import I64, Mask

Thread = tuple[int, int]
"""(pid, tid) of an event; -1 where the file holds no integer."""


@dataclass(frozen=True)
class Host:
    """Thread, start and end of events; one entry an event, times in ns."""

    pid: I64
    tid: I64
    start: I64
    end: I64

    def thread(self, row: int) -> Thread:
        """Return the thread of an event."""
        return int(self.pid[row]), int(self.tid[row])

    def encloses(self, outer: int, inner: int) -> bool:
        """Whether one event begins inside another one, on the same thread."""
        inside = self.start[outer] <= self.start[inner] <= self.end[outer]
        return bool(inside) and self.thread(outer) == self.thread(inner)


def host_of(events: pa.Table) -> Host:
    """Return thread, start and end of the events of a table (schema.EVENTS)."""
    start = ints(events, "ts", 0)
    return Host(ints(events, "pid", -1), ints(events, "tid", -1), start, start + ints(events, "dur", 0))


class Enclosing:
    """Some events by thread, in order of start, for finding the one that encloses another event."""

    def __init__(self, host: Host, rows: I64) -> None:
        self.host = host
        rows = rows[np.lexsort((host.start[rows], host.tid[rows], host.pid[rows]))]
        pid, tid, start = host.pid[rows], host.tid[rows], host.start[rows]
        cuts = np.flatnonzero((pid[1:] != pid[:-1]) | (tid[1:] != tid[:-1])) + 1
        edges = [0, *cuts.tolist(), len(rows)] if len(rows) else []
        self._rows: dict[Thread, list[int]] = {}
        self._starts: dict[Thread, list[int]] = {}
        for first, end in pairwise(edges):
            thread = int(pid[first]), int(tid[first])
            self._rows[thread] = rows[first:end].tolist()
            self._starts[thread] = start[first:end].tolist()

    def around(self, row: int) -> int:
        """Return the innermost one that encloses the begin of event `row`, on its thread; -1 if none does."""
        thread, moment = self.host.thread(row), int(self.host.start[row])
        found = self._rows.get(thread, [])
        place = bisect_right(self._starts.get(thread, []), moment)
        for outer in reversed(found[max(place - MAX_NESTED_RECORDS, 0) : place]):
            if self.host.end[outer] >= moment:
                return outer
        return -1

    def within(self, row: int) -> int:
        """Return the first one that begins inside event `row`, on its thread; -1 if none does."""
        thread = self.host.thread(row)
        place = bisect_left(self._starts.get(thread, []), int(self.host.start[row]))
        found = self._rows.get(thread, [])[place : place + 1]
        return found[0] if found and self.host.start[found[0]] <= self.host.end[row] else -1


_BLOCKS: Final = re.compile(rf"{HOST_WAIT.pattern}|Free$")
"""Calls in which the host may wait until its device has done what was launched."""
_POLLS: Final = re.compile(r"(Event|Stream)Query")


def host_held(
    events: pa.Table, cat: Column, host: Host, comm: Mask, rows: I64, busy: Intervals, launches: I64
) -> I64:
    """Return how long the host alone delayed what ran behind each communication kernel of `rows`, ns.

    It counts from when the device idled for that kernel until the compute behind it was launched, without the time
    in which a launching thread waited for the device. 0 if no launch is recorded.
    `comm` says which events communicate, `busy` are the intervals of compute, `launches` the rows of all events'
    launches.
    """
    held = np.zeros(len(rows), np.int64)
    compute = np.flatnonzero((cat == "kernel") & ~comm)
    if not len(compute):
        return held
    resumed, known = resumed_behind(compute, host.start, host.end[rows])
    launch = launches[resumed]
    since = np.minimum(np.maximum(gap_start(busy, host.end[rows]), host.start[rows]), host.end[rows])
    until = np.minimum(host.start[launch], host.end[rows])
    late = np.flatnonzero(known & (launch >= 0) & (until > since))
    stood, asked = _waits(events, cat, host, launches[compute])
    waited = covered_until(stood, until[late]) - covered_until(stood, since[late])
    polled = np.searchsorted(asked, until[late]) - np.searchsorted(asked, since[late])
    held[late] = np.where(polled >= POLLS_THAT_WAIT, 0, until[late] - since[late] - waited)
    held[late[_returned_behind(cat, host, rows[late], launches, held[late])]] = 0
    return held


def _returned_behind(cat: Column, host: Host, rows: I64, launches: I64, held: I64) -> Mask:
    """Whether the operator that launched each communication kernel of `rows` returned only when that had ended.

    held: how long the host seems to have delayed the device meanwhile, ns; only operators that last as long count.
    """
    found = np.zeros(len(rows), bool)
    operators = np.flatnonzero(cat == "cpu_op")
    lasted = host.end[operators] - host.start[operators]
    asked = np.flatnonzero((launches[rows] >= 0) & (held > 0) & (held <= lasted.max(initial=0)))
    if not len(asked):
        return found
    enclosing = Enclosing(host, operators)
    around = np.array([enclosing.around(int(row)) for row in launches[rows[asked]]], np.int64)
    found[asked] = (around >= 0) & (host.end[around] >= host.end[rows[asked]])
    return found


def _waits(events: pa.Table, cat: Column, host: Host, launches: I64) -> tuple[Intervals, I64]:
    """Return (when a thread that launches compute was in a call that waits for the device, when it asked for events).

    One thread may wait for work after which another thread launches: forward and backward have threads of their own.
    """
    calls = cat.among(DEVICE_CALLS)
    launching = np.stack([host.pid, host.tid])[:, launches[launches >= 0]]
    mine = np.zeros(len(cat), bool)
    for pid, tid in launching[:, numbered_rows(*launching)[0]].T.tolist():
        mine |= calls & (host.pid == pid) & (host.tid == tid)
    blocks, polls = (np.flatnonzero(mine & truth(events, "name", p)) for p in (_BLOCKS, _POLLS))
    return union(host.start[blocks], host.end[blocks]), np.sort(host.start[polls])
