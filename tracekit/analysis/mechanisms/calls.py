"""The calls of one thread of a host, nested in each other, and which of them run no Python."""

import re
from collections import Counter
from dataclasses import dataclass
from typing import Final

import numpy as np

from tracekit.intervals import Intervals, union
from tracekit.rank_events.event_columns import Values
from tracekit.thresholds.slowrank import GAP_NS, MINOR
from tracekit.units import I64, Mask

WAITS: Final = re.compile(
    r"^(cuda|hip)(Stream|Device|Event)Synchronize|^(cuda|hip)Memcpy$|::item\b|_local_scalar_dense|::nonzero\b"
)
"""Calls of a host that return when its device has finished."""

_NATIVE: Final = re.compile(r"^aten::|^(cuda|hip)[A-Z]\w*$")
"""Operators of PyTorch's library and calls of the runtime: compiled code."""


@dataclass(frozen=True)
class Calls:
    """Calls of one thread by their begin, ns; `native` ones run no Python."""

    thread: int
    start: I64
    end: I64
    name: Values
    parent: I64  # the row of the call around each, -1 without one
    own: I64  # time outside inner calls
    native: Mask

    def around(self, begin: int, end: int) -> int:
        """Return the row of the innermost call that holds the time from `begin` to `end`, -1 without one."""
        row = int(np.searchsorted(self.start, begin, "right")) - 1
        while row >= 0 and self.end[row] < end:
            row = int(self.parent[row])
        return row

    def places(self, moments: I64, steps: int) -> I64:
        """Return the place of each moment in the program: how many native calls since the last one of the rarest name.

        Of names that are called once in each of so many `steps` or more often: no boundary of a step is needed.
        """
        begins, names = self.start[self.native], self.name[self.native]
        often = Counter(names.tolist())
        rarest = min(
            (name for name in often if often[name] >= steps), key=lambda n: (often[n], n), default=""
        )
        at = np.searchsorted(begins, moments)
        anchors = np.concatenate([[0], np.flatnonzero(names == rarest)])
        return np.asarray(at - anchors[np.searchsorted(anchors, at, "right") - 1], np.int64)

    def stalled(self, each: Intervals) -> Intervals:
        """Return the time by which calls take longer than the call at the same place of other steps, ns.

        Of calls that are native or hold no other: within the others, a pause lies between the calls that they hold.
        The median of the steps `each` is usual. Calls are compared by their number among those of their name in a step.
        """
        step = np.searchsorted(each[0], self.start, "right") - 1
        holds = np.isin(np.arange(len(self.start)), self.parent)
        rows = np.flatnonzero((self.native | ~holds) & (step >= 0))
        rows = rows[self.start[rows] < each[1][step[rows]]]
        _, name = np.unique(self.name[rows].astype(str), return_inverse=True)
        rows = rows[order := np.lexsort((rows, name, step[rows]))]
        name = name[order]
        first = np.flatnonzero((np.diff(name, prepend=-1) != 0) | (np.diff(step[rows], prepend=-1) != 0))
        within = np.arange(len(rows)) - np.repeat(first, np.diff(first, append=len(rows)))
        place = name * (len(rows) + 1) + within
        order = np.lexsort((self.own[rows], place))
        begins = np.flatnonzero(np.diff(place[order], prepend=-1))
        count = np.diff(begins, append=len(order))
        usual = np.repeat(self.own[rows][order][begins + (count - 1) // 2], count)
        longer = self.own[rows][order] - usual
        late = longer >= GAP_NS
        return union(self.end[rows][order][late] - longer[late], self.end[rows][order][late])


def launching_threads(start: I64, end: I64, name: Values, thread: I64, host: Mask) -> list[Calls]:
    """Return the calls of the threads that run operators: that which runs most, then others with a quarter as many.

    host: which of the events, given by begin, end, name and thread, are of the host.
    """
    rows = np.flatnonzero(host & (end > start))
    start, end, name, thread = start[rows], end[rows], name[rows], thread[rows]
    each = ((one, thread == one) for one in np.unique(thread).tolist())
    found = sorted((_nested(one, start[at], end[at], name[at]) for one, at in each), key=_native_calls)[::-1]
    return [calls for calls in found if _native_calls(calls) >= max(MINOR * _native_calls(found[0]), 1)]


def _native_calls(calls: Calls) -> int:
    return int(calls.native.sum())


def _nested(thread: int, start: I64, end: I64, name: Values) -> Calls:
    """The calls of one thread. One that holds a call of its own name hands over to Python, as tensor subclasses do."""
    order = np.lexsort((-end, start))
    start, end, name = start[order], end[order], name[order]
    depth = np.arange(len(start)) - np.searchsorted(np.sort(end), start, "right")
    parent = np.full(len(start), -1)
    for level in range(1, int(depth.max(initial=0)) + 1):
        mine, outer = np.flatnonzero(depth == level), np.flatnonzero(depth == level - 1)
        at = np.searchsorted(outer, mine) - 1
        parent[mine] = np.where(at >= 0, outer[at], -1)
    inner = parent >= 0
    within = np.bincount(parent[inner], (end - start)[inner], len(start)).astype(np.int64)
    codes: dict[str, bool] = {}
    native = np.array(
        [codes.setdefault(n, bool(_NATIVE.search(n)) and not WAITS.search(n)) for n in name], bool
    )
    native[parent[inner][name[parent[inner]] == name[inner]]] = False
    return Calls(thread, start, end, name, parent, np.maximum(end - start - within, 0), native)
