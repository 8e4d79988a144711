"""Finds when messages on Gloo began and ended; their spans show when the host looked for them.

A span begins when the call that posts the message is nearly over, though that call may wait, and ends when the host has
waited for it. The host waits for one message after the other, so a send that was done long before is found done at
once, and its span ends together with the span that the host waited for before.
"""

import re
from typing import Final

import numpy as np
import pyarrow as pa

from tracekit.rank_events.event_columns import truth
from tracekit.rank_events.host_events import Enclosing, Host
from tracekit.rank_events.operation_names import CALL_OPS
from tracekit.thresholds.tables import RESUME_SLACK_NS, RESUME_SLACK_SHARE
from tracekit.units import I64, Mask

_MESSAGE: Final = re.compile(r"^gloo:(send|recv)$")
_SEND: Final = re.compile(r"^gloo:send$")
_CALL: Final = re.compile(rf"^({'|'.join(CALL_OPS)})$")


def message_times(events: pa.Table, host: Host, comm: Mask) -> tuple[I64, I64, Mask]:
    """Return starts and ends of all events, ns, and whether the host found each done when it looked for it.

    A message begins with its call. A send that was found done ends with its call.
    """
    start, end, found = host.start.copy(), host.end.copy(), np.zeros(len(host.start), bool)
    if not comm.any():
        return start, end, found
    calls = Enclosing(host, np.flatnonzero(truth(events, "name", _CALL)))
    sends = truth(events, "name", _SEND)
    before = _done_before(host)
    for row in np.flatnonzero(comm & truth(events, "name", _MESSAGE)).tolist():
        call = calls.around(row)
        if call < 0:
            continue
        start[row] = host.start[call]
        lasted = int(host.end[row] - host.start[row])
        waited = int(host.end[row] - before[row])
        found[row] = waited <= max(RESUME_SLACK_NS, RESUME_SLACK_SHARE * lasted)
        if found[row] and sends[row]:
            end[row] = min(int(host.end[call]), int(host.end[row]))
    return start, end, found


def _done_before(host: Host) -> I64:
    """Return for each event when its thread had last ended anything before it ended itself, ns; else its start."""
    found = host.start.copy()
    for pid, tid in sorted(set(zip(host.pid.tolist(), host.tid.tolist(), strict=True))):
        rows = np.flatnonzero((host.pid == pid) & (host.tid == tid))
        ends = np.unique(host.end[rows])
        place = np.searchsorted(ends, host.end[rows]) - 1
        found[rows] = np.where(
            place >= 0, np.maximum(ends[np.maximum(place, 0)], host.start[rows]), host.start[rows]
        )
    return found
