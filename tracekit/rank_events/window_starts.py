"""Finds when the host was free to go on in each recording window.

A profiler that starts while the host is in a call that waits for the device records that wait. It belongs to the
step before: its device still works off what was launched ahead of the window.
"""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from tracekit.rank_events.event_columns import Values, ints, truth
from tracekit.rank_events.kernel_order import window_of
from tracekit.rank_events.stream_waits import HOST_WAIT

_ON_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset", "gpu_user_annotation", "cuda_sync")


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
