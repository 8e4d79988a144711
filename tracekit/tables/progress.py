"""A rank's own time: what it spent working, as against waiting in communication that compute stood still for.

Own time is the clock of every comparison between ranks. It needs no common clock, and a rank that is late only
because it waited elsewhere has lost none of it, so nobody is blamed for a delay that he passed on.
"""

from dataclasses import dataclass

import numpy as np

from tracekit.tables.intervals import I64, covered_until, gap_start, union
from tracekit.tables.operations import RankOps

_SLACK_NS = 50_000
_SLACK_SHARE = 0.02


@dataclass(frozen=True)
class Progress:
    """Per operation, ns: own time elapsed at its post and at its completion, and its exposed time."""

    rank: int
    at_start: I64
    at_end: I64
    exposed_ns: I64  # for how long compute stood still for this operation
    origin: int  # wall time at which own time is zero
    exposed: tuple[I64, I64]  # disjoint intervals of exposed communication

    def at(self, times: I64) -> I64:
        """Own time elapsed at wall `times`."""
        return np.asarray(times - self.origin - covered_until(self.exposed, times), np.int64)


def own_progress(ops: RankOps) -> Progress:
    """Splits a rank's wall time into exposed communication and its own time.

    Communication is exposed from the begin of the compute gap in which it ends (or from its own begin, if later):
    compute resumed after it. Communication that ends under compute, or outlasts a gap, held nobody up. Where no
    compute is recorded, an operation that begins during another shows that the rank went on until then.
    """
    ends = _resumed(ops)
    since = np.minimum(np.maximum(gap_start(ops.busy, ends), ops.start), ends)
    if not len(ops.busy[0]):
        since = np.maximum(since, _went_on(ops.start, ops.end))
    exposed = union(since, ends)
    origin = ops.window[0]

    def at(times: I64) -> I64:
        return np.asarray(times - origin - covered_until(exposed, times), np.int64)

    return Progress(ops.rank, at(ops.start), at(ops.end), ends - since, origin, exposed)


def _went_on(start: I64, end: I64) -> I64:
    """Start of the last operation that begins during each (its own where there is none); sorted by start."""
    last = np.maximum(np.searchsorted(start, end, side="left") - 1, np.arange(len(start)))
    return np.asarray(np.minimum(start[last], end), np.int64)


def _resumed(ops: RankOps) -> I64:
    """When compute could go on after each operation: its end, or the begin of compute that covers just its end.

    Recorders that take both times on the host let compute begin a little before the wait for it is seen to end;
    a device's times need hardly any leniency, and would be misread by it where a receive is posted long ahead.
    """
    starts, ends = ops.busy
    if not len(starts):
        return ops.end
    index = np.searchsorted(starts, ops.end, side="left") - 1
    begin = starts[np.maximum(index, 0)]
    covering = (index >= 0) & (ends[np.maximum(index, 0)] > ops.end) & (begin > ops.start)
    share = 0.0 if ops.on_gpu else _SLACK_SHARE
    slack = np.maximum(_SLACK_NS, (share * (ops.end - ops.start)).astype(np.int64))
    return np.where(covering & (ops.end - begin <= slack), begin, ops.end)
