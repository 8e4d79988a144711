"""The rate at which a host launches work where nothing holds it up."""

import re

import numpy as np

from tracekit.intervals import Intervals
from tracekit.rank_events.event_columns import ints, truth
from tracekit.store import Run

LAUNCH = re.compile(r"^(cuda|hip|cu)\w*Launch", re.IGNORECASE)
"""Calls that launch kernels."""

FREE = 10
"""Percentile of the intervals: a host that is held up launches more slowly, and never faster than it can. One that
waits for a slow rank may be held up at most of its launches."""

MOSTLY = 50
"""Percentile of the usual interval between launches, held up or not."""


def launch_pace(
    run: Run, rank: int, spans: Intervals | None = None, percentile: float = FREE
) -> float | None:
    """Return the ns between two launches of `rank` where its device does not hold it up; None without a recorded host.

    Only launches of one thread are compared, since autograd's thread runs beside the main one. With `spans` (begins and
    ends, ns) only intervals inside one count. A higher `percentile` includes delays.
    """
    events = run.events(rank, ["ts", "name", "pid", "tid"])
    called = np.flatnonzero(truth(events, "name", LAUNCH))
    begins, pid, tid = (ints(events, column, -1)[called] for column in ("ts", "pid", "tid"))
    order = np.lexsort((begins, tid, pid))
    begins, pid, tid = begins[order], pid[order], tid[order]
    consecutive = (np.diff(pid) == 0) & (np.diff(tid) == 0)
    if spans is not None:
        inside = np.searchsorted(spans[0], begins, side="right") - 1
        within = (inside >= 0) & (begins < spans[1][np.maximum(inside, 0)])
        consecutive &= within[1:] & (np.diff(inside) == 0)
    between = np.diff(begins)[consecutive]
    return float(np.percentile(between, percentile)) if len(between) else None
