"""The nesting of events on each thread."""

from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pyarrow as pa

from tracekit.rank_events.event_columns import ints
from tracekit.thresholds.tables import MAX_NESTED_RECORDS
from tracekit.units import I64

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
