"""Measures how long a host delayed its device while communication was outstanding: that is not a wait for others.

A device that idles in a collective seems to wait for it, although nothing else was launched: the host still loads its
data, or launches too slowly. If the collective had ended at once, the device would have idled all the same. A host
that is in a synchronising call meanwhile waits for the device, and so for the collective.
"""

import re
from collections.abc import Sequence
from typing import Final

import numpy as np
import pyarrow as pa

from tracekit.intervals import Intervals, covered_until, gap_start, union
from tracekit.rank_events.event_columns import Values, ints, truth
from tracekit.rank_events.host_events import Host
from tracekit.rank_events.kernel_order import window_of
from tracekit.rank_events.step_marks import launch_rows
from tracekit.rank_events.stream_waits import HOST_WAIT, resumed_behind
from tracekit.thresholds.tables import POLLS_THAT_WAIT
from tracekit.units import I64, Mask

_BLOCKS: Final = re.compile(rf"{HOST_WAIT.pattern}|Free$")
"""Calls in which the host may wait until its device has done what was launched."""
_POLLS: Final = re.compile(r"(Event|Stream)Query")
_CALLS: Final = ("cuda_runtime", "cuda_driver")
_ON_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset", "gpu_user_annotation", "cuda_sync")


def host_held(
    events: pa.Table, cat: Values, host: Host, comm: Mask, rows: I64, busy: Intervals, begins: Sequence[int]
) -> I64:
    """Return how long the host alone delayed what ran behind each communication kernel of `rows`, ns.

    It counts from when the device idled for that kernel until the compute behind it was launched, without the time
    in which a launching thread was in a call that waits for the device. 0 if no launch is recorded.
    `comm` says which events communicate, `busy` are the intervals of compute, `begins` those of the windows.
    """
    held = np.zeros(len(rows), np.int64)
    compute = np.flatnonzero((cat == "kernel") & ~comm)
    if not len(compute):
        return held
    resumed, known = resumed_behind(compute, host.start, host.end[rows])
    launch = launch_rows(events, cat, resumed, begins)
    since = np.minimum(np.maximum(gap_start(busy, host.end[rows]), host.start[rows]), host.end[rows])
    until = np.minimum(host.start[launch], host.end[rows])
    late = np.flatnonzero(known & (launch >= 0) & (until > since))
    stood, asked = _waits(events, cat, host, launch_rows(events, cat, compute, begins))
    waited = covered_until(stood, until[late]) - covered_until(stood, since[late])
    polled = np.searchsorted(asked, until[late]) - np.searchsorted(asked, since[late])
    held[late] = np.where(polled >= POLLS_THAT_WAIT, 0, until[late] - since[late] - waited)
    return held


def _waits(events: pa.Table, cat: Values, host: Host, launches: I64) -> tuple[Intervals, I64]:
    """Return (when a thread that launches compute was in a call that waits for the device, when it asked for events).

    One thread may wait for work after which another thread launches: forward and backward have threads of their own.
    """
    calls = np.isin(cat, _CALLS)
    threads = np.unique(np.stack([host.pid, host.tid])[:, launches[launches >= 0]], axis=1).T.tolist()
    mine = np.zeros(len(cat), bool)
    for pid, tid in threads:
        mine |= calls & (host.pid == pid) & (host.tid == tid)
    blocks, polls = (np.flatnonzero(mine & truth(events, "name", p)) for p in (_BLOCKS, _POLLS))
    return union(host.start[blocks], host.end[blocks]), np.sort(host.start[polls])


# Finds when the host was free to go on in each recording window.
#
# A profiler that starts while the host is in a call that waits for the device records that wait. It belongs
# to the step before: its device still works off what was launched ahead of the window.
def opens_of(events: pa.Table, cat: Values, begins: Sequence[int]) -> tuple[int, ...]:
    """Return the end of the wait for the device that begins each window on its host, ns; else the window's begin."""
    opens = list(begins)
    start = ints(events, "ts", 0)
    hosts = np.flatnonzero(~np.isin(cat, _ON_DEVICE))
    hosts = hosts[np.argsort(start[hosts], kind="stable")]
    window = window_of(start[hosts], begins)
    waits = np.isin(cat, ["cuda_runtime", "cuda_driver"]) & truth(events, "name", HOST_WAIT)
    for number in np.unique(window).tolist():
        first = hosts[np.searchsorted(window, number)]
        if waits[first]:
            opens[number] = int(start[first] + ints(events, "dur", 0)[first])
    return tuple(opens)
