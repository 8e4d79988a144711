"""Measures a rank's own time: its wall time minus the communication that its compute waited for.

Every comparison between ranks uses own time. It needs no common clock. A rank that is late only because it waited
for another one has spent no own time on that, so it is not blamed for a delay that it passed on.
"""

from dataclasses import dataclass

import numpy as np

from tracekit.intervals import covered_until, gap_start, union
from tracekit.rank_events.rank_ops import RankOps
from tracekit.rank_events.stream_waits import FREE, UNKNOWN
from tracekit.thresholds.tables import (
    DEVICE_DRIFT_SHARE,
    DEVICE_ROUNDING_NS,
    RESUME_SLACK_NS,
    RESUME_SLACK_SHARE,
)
from tracekit.units import F64, I64


@dataclass(frozen=True)
class Progress:
    """Per operation, ns: own time elapsed at its post and at its completion, and its exposed time."""

    rank: int
    at_start: I64
    at_end: I64
    exposed_ns: I64  # for how long compute waited for this operation
    origin: int  # wall time at which own time is zero
    exposed: tuple[I64, I64]  # disjoint intervals of exposed communication
    at_ready: F64  # own time from which the operation could start; NaN where unknown
    resumed: I64  # wall time at which compute resumed after the operation

    def at(self, times: I64) -> I64:
        """Return the own time elapsed at the wall `times`, ns; same shape."""
        return np.asarray(times - self.origin - covered_until(self.exposed, times), np.int64)


def own_progress(ops: RankOps, concealed: I64 | None = None) -> Progress:
    """Return the split of a rank's wall time into exposed communication and own time.

    Communication is exposed from the begin of the compute gap in which it ends (or from its own begin, if later),
    because compute resumed after it; but a delay by the host alone is own time (`host_held`). Communication that
    ends under compute delayed no one, nor did what its stream did not wait for. If no compute is recorded, an
    operation that begins during another one shows that the rank went on until then. `concealed` is how long the rank
    works beside each operation, unrecorded, from its begin; ns.
    """
    ends = _resumed(ops)
    since = np.minimum(np.maximum(gap_start(ops.busy, ends), ops.start), ends)
    if ops.held is not None:
        since = np.minimum(since + ops.held, ends)
    if ops.found is not None:  # the host had waited for an earlier message
        since = np.where(ops.found, ends, since)
    if ops.waited is not None:
        since = np.where(ops.waited == FREE, ends, since)
    if not len(ops.busy[0]):
        since = np.maximum(since, _went_on(ops.start, ops.end))
    if concealed is not None:
        since = np.minimum(np.maximum(since, ops.start + concealed), ends)
    exposed = union(since, ends)
    origin = ops.window[0]

    def at(times: I64) -> I64:
        return np.asarray(times - origin - covered_until(exposed, times), np.int64)

    recorded = np.full(len(ops.start), UNKNOWN) if ops.ready is None else ops.ready
    ready = np.where(recorded == UNKNOWN, np.nan, at(np.where(recorded == UNKNOWN, ops.start, recorded)))
    return Progress(ops.rank, at(ops.start), at(ops.end), ends - since, origin, exposed, ready, ends)


def _went_on(start: I64, end: I64) -> I64:
    """Return for each operation the start of the last one that begins during it, its own start if none does; ns.

    `start` is sorted.
    """
    last = np.maximum(np.searchsorted(start, end, side="left") - 1, np.arange(len(start)))
    return np.asarray(np.minimum(start[last], end), np.int64)


def _resumed(ops: RankOps) -> I64:
    """Return when compute resumed after each operation, ns: at its end, or at the begin of compute just before that.

    A recorder that takes both times on the host shows compute that begins a little before the wait ends, and covers
    its end. Device times get only the tolerance of their rounding and drift: with more, any message that ends just
    after another wait would pass for the cause of that wait.
    """
    starts, ends = ops.busy
    if not len(starts):
        return ops.end
    index = np.searchsorted(starts, ops.end, side="left") - 1
    begin = starts[np.maximum(index, 0)]
    covering = (ends[np.maximum(index, 0)] > ops.end) | ops.on_gpu
    least, share = RESUME_SLACK_NS, RESUME_SLACK_SHARE
    if ops.on_gpu:
        least, share = DEVICE_ROUNDING_NS, DEVICE_DRIFT_SHARE
    slack = np.maximum(least, (share * (ops.end - ops.start)).astype(np.int64))
    moved = (index >= 0) & covering & (begin > ops.start) & (ops.end - begin <= slack)
    return np.where(moved, begin, ops.end) if moved.any() else ops.end
