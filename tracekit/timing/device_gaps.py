"""Explains why a device idled although no communication delayed it: its host was late, or it idled by itself."""

from dataclasses import dataclass

import numpy as np

from tracekit.intervals import Intervals, empty, subtract, union
from tracekit.matching.match import Operations
from tracekit.rank_events.event_columns import categories, ints
from tracekit.rank_events.rank_ops import RankOps
from tracekit.rank_events.step_marks import issue_times, launch_rows
from tracekit.store import Run
from tracekit.thresholds.tables import LAUNCH_NS
from tracekit.units import I64, Mask

_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")


@dataclass(frozen=True)
class Gaps:
    """Time in which a rank neither computed nor waited for communication; each disjoint and sorted, ns."""

    host: Intervals  # the device waited for the launch of its next kernel; on a CPU trace, outside every operator
    idle: Intervals  # the next kernel had been launched
    unknown: Intervals  # the trace holds no compute, or no launch of the next kernel


@dataclass(frozen=True)
class _Started:
    """Kernels and copies of a device in order of start; one entry each, times in ns."""

    start: I64
    issued: I64
    issue_known: Mask  # the time of issue is recorded


def gaps_of(run: Run, ops: Operations, rank: int) -> Gaps:
    """Return the gaps of `rank` within its recording; KeyError for an unknown rank, InputError on a bad file."""
    source = ops.per_rank[rank]
    window = union(*(np.array([moment], np.int64) for moment in source.window))
    still = subtract(subtract(window, ops.progress[rank].exposed), source.computed)
    if not len(source.computed[0]):
        return Gaps(empty(), empty(), still)
    if not source.on_gpu:
        return Gaps(still, empty(), empty())
    return _by_launch(still, _started(run, source))


def _by_launch(still: Intervals, ran: _Started) -> Gaps:
    """Return the gaps `still`, split by the launch of the kernel that ended each."""
    begin, end = still
    following = np.searchsorted(ran.start, end)
    at = np.minimum(following, len(ran.start) - 1)
    known = (following < len(ran.start)) & ran.issue_known[at]
    late = np.where(known, np.clip(ran.issued[at] + LAUNCH_NS, begin, end), begin)
    return Gaps(union(begin, late), union(late[known], end[known]), union(begin[~known], end[~known]))


def _started(run: Run, source: RankOps) -> _Started:
    """Return all kernels and copies of a rank's device."""
    events = run.events(source.rank, ["ts", "cat", "stream", "correlation"])
    cat = categories(events)
    start = ints(events, "ts", 0)
    rows = np.flatnonzero(cat.among(_DEVICE))
    rows = rows[np.argsort(start[rows], kind="stable")]
    launch = launch_rows(events, cat, rows, source.begins)
    stream = ints(events, "stream", -1)[rows]
    issued = issue_times(launch, stream, start[rows], start, source.begins)
    order = np.lexsort((issued, start[rows]))
    known = (launch >= 0) | (issued != start[rows])
    return _Started(start[rows][order], issued[order], known[order])
