"""How fast a host launches work where nothing holds it up."""

import re

import numpy as np

from tracekit.store import Run
from tracekit.tables.event_columns import truth

_LAUNCH = re.compile(r"^(cuda|hip|cu)\w*Launch", re.IGNORECASE)
_FREE = 25
"""Percentile of the intervals: a host that its device holds up launches more slowly, and never faster than it can."""


def launch_pace(run: Run, rank: int) -> float | None:
    """Ns between two launches of `rank` where its device does not hold it up; None where the host was not recorded."""
    events = run.events(rank, ["ts", "name"])
    called = truth(events, "name", _LAUNCH)
    begins = np.sort(np.asarray(events.column("ts").to_numpy(), np.int64)[called])
    return float(np.percentile(np.diff(begins), _FREE)) if len(begins) > 1 else None
