"""The time from which each communication kernel could have started: launched, with its inputs computed.

A collective that queues behind another one of its group starts when that one ends, so its recorded start says when the
group was free and not when the rank was ready. The host's launches show the latter: a communication kernel waits for
the compute that was launched before it.
"""

import re
from collections.abc import Sequence
from typing import Final

import numpy as np
import pyarrow as pa

from tracekit.rank_events.event_columns import Values, ints, truth
from tracekit.rank_events.step_marks import launch_rows
from tracekit.units import I64, Mask

_CALLS: Final = ("cuda_runtime", "cuda_driver")
_SYNCHRONIZES: Final = re.compile("Synchronize")
"""Calls that return when the device has done what was launched."""
UNKNOWN = -1
"""The trace does not show when the kernel was launched."""


def ready_times(
    events: pa.Table, cat: Values, comm: Mask, rows: I64, launch: I64, start: I64, end: I64,
    begins: Sequence[int] = (), received: Mask | None = None,
) -> tuple[I64, I64]:  # fmt: skip
    """Return (when each communication kernel of `rows` could have started, when compute used what it `received`), ns.

    The first is the later one of its `launch` and of the end of the last kernel on the busiest compute stream that was
    launched before it, and never after its recorded start. The second is the start of the first kernel there that was
    launched after the host had waited for the message. UNKNOWN without a launch. `start` and `end` are per event,
    `launch` per row, `begins` of windows.
    """
    known = launch < start[rows]
    compute = np.flatnonzero((cat == "kernel") & ~comm)
    if not len(compute) or not known.any():
        return np.where(known, launch, UNKNOWN), np.full(len(rows), UNKNOWN)
    stream = ints(events, "stream", -1)
    streams, kernels = np.unique(stream[compute], return_counts=True)
    main = compute[stream[compute] == streams[np.argmax(kernels)]]
    main = main[np.argsort(start[main], kind="stable")]
    launched = _launched(start, launch_rows(events, cat, main, begins), start[main])
    before = np.searchsorted(launched, launch, side="left")
    ended = np.searchsorted(np.maximum.accumulate(end[main]), start[rows], side="right")
    last = np.minimum(before, ended) - 1
    computed = np.where(last >= 0, end[main][np.maximum(last, 0)], launch)
    ready = np.where(known, np.minimum(np.maximum(computed, launch), start[rows]), UNKNOWN)
    waits = np.sort(end[np.isin(cat, _CALLS) & truth(events, "name", _SYNCHRONIZES)])
    used = np.full(len(rows), UNKNOWN)
    mine = np.flatnonzero(known if received is None else received & known)
    used[mine] = _first_uses(waits, launch[mine], end[rows[mine]], start[main], launched)
    return ready, used


def _first_uses(returned: I64, launch: I64, done: I64, begin: I64, launched: I64) -> I64:
    """Return when the first kernel began that was launched after the host had waited for each message, ns.

    The host waits for messages in the order in which it launched them, at `launch`, each in a call of its own that
    returned when the message was `done` or later. `begin` and `launched` are those of the kernels.
    """
    used, call = np.full(len(done), UNKNOWN), 0
    for row in np.argsort(launch, kind="stable").tolist():
        call = max(call, int(np.searchsorted(returned, done[row])))
        if call == len(returned):
            break
        after = np.searchsorted(launched, returned[call])
        used[row] = begin[after] if after < len(begin) else UNKNOWN
        call += 1
    return used


def _launched(start: I64, launch: I64, begin: I64) -> I64:
    """Return the latest possible launch of each kernel of one stream, ns, never earlier than that of the one before.

    `launch` is the event row of its launch, −1 if the trace does not show it, `begin` the start of the kernel. A
    stream runs in order of launch, so a kernel without a launch was launched before the next one that has one: where
    the host runs ahead, long before it began.
    """
    latest = np.where(launch >= 0, start[launch], np.iinfo(np.int64).max)
    following = np.minimum.accumulate(latest[::-1])[::-1]
    return np.maximum.accumulate(np.where(launch >= 0, latest, np.minimum(following, begin)))
