"""How fast a host launches work where nothing holds it up."""

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
"""Percentile of what launches mostly take, held up or not."""


def launch_pace(
    run: Run, rank: int, spans: Intervals | None = None, percentile: float = FREE
) -> float | None:
    """Ns between two launches of `rank` where its device does not hold it up; None where the host was not recorded.

    Launches of one thread are compared: autograd's runs beside the main one. With `spans` (begins and ends, ns) only
    those inside one count. Another `percentile` counts what holds it up.
    """
    events = run.events(rank, ["ts", "name", "pid", "tid"])
    called = np.flatnonzero(truth(events, "name", LAUNCH))
    begins, pid, tid = (ints(events, column, -1)[called] for column in ("ts", "pid", "tid"))
    order = np.lexsort((begins, tid, pid))
    begins, pid, tid = begins[order], pid[order], tid[order]
    alike = (np.diff(pid) == 0) & (np.diff(tid) == 0)
    if spans is not None:
        inside = np.searchsorted(spans[0], begins, side="right") - 1
        within = (inside >= 0) & (begins < spans[1][np.maximum(inside, 0)])
        alike &= within[1:] & (np.diff(inside) == 0)
    between = np.diff(begins)[alike]
    return float(np.percentile(between, percentile)) if len(between) else None
