"""How long a host kept its device from going on while communication was outstanding: that is no wait for others.

A device that stands still in a collective seems to wait for it, although nothing else was launched: the host still
loads its data, or launches too slowly. Had the collective ended at once, the device would have stood still all the
same. A host that stands in a synchronising call meanwhile waits for the device, and so for the collective.
"""

import re
from collections.abc import Sequence
from typing import Final

import numpy as np
import pyarrow as pa

from tracekit.tables.event_columns import Mask, Values, truth
from tracekit.tables.host_events import Host
from tracekit.tables.intervals import I64, Intervals, covered_until, gap_start, union
from tracekit.tables.step_marks import launch_rows
from tracekit.thresholds.tables import POLLS_THAT_WAIT

_BLOCKS: Final = re.compile(r"Synchronize|Memcpy|Free$")
"""Calls in which the host may stand until its device has done what was launched."""
_POLLS: Final = re.compile(r"(Event|Stream)Query")
_CALLS: Final = ("cuda_runtime", "cuda_driver")


def host_held(
    events: pa.Table, cat: Values, host: Host, comm: Mask, rows: I64, busy: Intervals, begins: Sequence[int]
) -> I64:
    """For how long the host alone held up what ran behind each communication kernel of `rows`, ns.

    It is counted from when the device stood still for that kernel, until the compute behind it was launched, but for
    the time in which the launching thread stood in a call that waits for the device. 0 where no launch is recorded.
    `comm` says which events communicate, `busy` are the intervals of compute, `begins` those of the windows.
    """
    held = np.zeros(len(rows), np.int64)
    compute = np.flatnonzero((cat == "kernel") & ~comm)
    if not len(compute):
        return held
    compute = compute[np.argsort(host.start[compute], kind="stable")]
    place = np.searchsorted(host.start[compute], host.end[rows])
    resumed = compute[np.minimum(place, len(compute) - 1)]
    launch = launch_rows(events, cat, resumed, begins)
    since = np.minimum(np.maximum(gap_start(busy, host.end[rows]), host.start[rows]), host.end[rows])
    until = np.minimum(host.start[launch], host.end[rows])
    late = np.flatnonzero((place < len(compute)) & (launch >= 0) & (until > since))
    calls = np.isin(cat, _CALLS)
    blocks, polls = (np.flatnonzero(calls & truth(events, "name", p)) for p in (_BLOCKS, _POLLS))
    thread = np.stack([host.pid, host.tid])
    for pid, tid in np.unique(thread[:, launch[late]], axis=1).T.tolist():
        mine = late[(host.pid[launch[late]] == pid) & (host.tid[launch[late]] == tid)]
        here = [r[(host.pid[r] == pid) & (host.tid[r] == tid)] for r in (blocks, polls)]
        stood = union(host.start[here[0]], host.end[here[0]])
        waited = covered_until(stood, until[mine]) - covered_until(stood, since[mine])
        asked = np.sort(host.start[here[1]])
        polled = np.searchsorted(asked, until[mine]) - np.searchsorted(asked, since[mine])
        held[mine] = np.where(polled >= POLLS_THAT_WAIT, 0, until[mine] - since[mine] - waited)
    return held
