"""The time from which each communication kernel could have started: launched, with its inputs computed.

A collective that queues behind another one of its group starts when that one ends, so its recorded start says when the
group was free and not when the rank was ready. The host's launches show the latter: a communication kernel waits for
the compute that was launched before it.
"""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from tracekit.rank_events.event_columns import Values, ints
from tracekit.rank_events.step_marks import launch_rows
from tracekit.units import I64, Mask

UNKNOWN = -1
"""The trace does not show when the kernel was launched."""


def ready_times(
    events: pa.Table, cat: Values, comm: Mask, rows: I64, launch: I64, start: I64, end: I64,
    begins: Sequence[int] = (),
) -> I64:  # fmt: skip
    """Return the wall time from which each communication kernel of `rows` could have started, ns; else UNKNOWN.

    It is the later one of its `launch` and of the end of the last kernel on the busiest compute stream that was
    launched before it, and never after its recorded start; UNKNOWN without a launch. `start` and `end` are per event,
    `launch` per row, `begins` of windows.
    """
    known = launch < start[rows]
    compute = np.flatnonzero((cat == "kernel") & ~comm)
    if not len(compute) or not known.any():
        return np.where(known, launch, UNKNOWN)
    stream = ints(events, "stream", -1)
    streams, kernels = np.unique(stream[compute], return_counts=True)
    main = compute[stream[compute] == streams[np.argmax(kernels)]]
    main = main[np.argsort(start[main], kind="stable")]
    launched = _launched(start, launch_rows(events, cat, main, begins), start[main])
    before = np.searchsorted(launched, launch, side="left")
    ended = np.searchsorted(np.maximum.accumulate(end[main]), start[rows], side="right")
    last = np.minimum(before, ended) - 1
    computed = np.where(last >= 0, end[main][np.maximum(last, 0)], launch)
    return np.where(known, np.minimum(np.maximum(computed, launch), start[rows]), UNKNOWN)


def _launched(start: I64, launch: I64, begin: I64) -> I64:
    """Return the latest possible launch of each kernel of one stream, ns, never earlier than that of the one before.

    `launch` is the event row of its launch, −1 if the trace does not show it, `begin` the start of the kernel. A
    stream runs in order of launch, so a kernel without a launch was launched before the next one that has one: where
    the host runs ahead, long before it began.
    """
    latest = np.where(launch >= 0, start[launch], np.iinfo(np.int64).max)
    following = np.minimum.accumulate(latest[::-1])[::-1]
    return np.maximum.accumulate(np.where(launch >= 0, latest, np.minimum(following, begin)))
