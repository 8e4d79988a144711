"""Explains why a device idled although no communication delayed it: its host was late, or it idled by itself."""

from dataclasses import dataclass

import numpy as np

from tracekit.intervals import I64, Intervals, empty, subtract, union
from tracekit.matching.match import Operations
from tracekit.rank_events.event_columns import Mask, ints, matches
from tracekit.rank_events.operations import RankOps
from tracekit.rank_events.step_marks import issue_times, launch_rows
from tracekit.store import Run
from tracekit.thresholds.breakdown import LAUNCH_NS

_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")


@dataclass(frozen=True)
class Gaps:
    """Time in which a rank neither computed nor waited for communication; each disjoint and sorted, ns."""

    host: (
        Intervals  # the device waited for the launch of what ran next; on a CPU trace, outside every operator
    )
    idle: Intervals  # what ran next was launched before
    unknown: Intervals  # the trace holds no compute, or no launch of what ran next


@dataclass(frozen=True)
class _Started:
    """What a device ran, in order of start; one entry a kernel or copy, times in ns."""

    start: I64
    issued: I64
    told: Mask  # the trace tells when the host issued it


def gaps_of(run: Run, ops: Operations, rank: int) -> Gaps:
    """The gaps of `rank` within its recording; KeyError where the run has no such rank, InputError on a bad file."""
    source = ops.per_rank[rank]
    window = union(*(np.array([moment], np.int64) for moment in source.window))
    still = subtract(subtract(window, ops.progress[rank].exposed), source.computed)
    if not len(source.computed[0]):
        return Gaps(empty(), empty(), still)
    if not source.on_gpu:
        return Gaps(still, empty(), empty())
    return _by_launch(still, _started(run, source))


def _by_launch(still: Intervals, ran: _Started) -> Gaps:
    """The gaps `still` by the launch of what ended each of them."""
    begin, end = still
    following = np.searchsorted(ran.start, end)
    at = np.minimum(following, len(ran.start) - 1)
    told = (following < len(ran.start)) & ran.told[at]
    late = np.where(told, np.clip(ran.issued[at] + LAUNCH_NS, begin, end), begin)
    return Gaps(union(begin, late), union(late[told], end[told]), union(begin[~told], end[~told]))


def _started(run: Run, source: RankOps) -> _Started:
    """Everything that the device of a rank ran."""
    events = run.events(source.rank, ["ts", "cat", "stream", "correlation"])
    cat = matches(events, "cat", lambda c: c)
    start = ints(events, "ts", 0)
    rows = np.flatnonzero(np.isin(cat, _DEVICE))
    rows = rows[np.argsort(start[rows], kind="stable")]
    launch = launch_rows(events, cat, rows, source.begins)
    stream = ints(events, "stream", -1)[rows]
    issued = issue_times(launch, stream, start[rows], start, source.begins)
    order = np.lexsort((issued, start[rows]))
    told = (launch >= 0) | (issued != start[rows])
    return _Started(start[rows][order], issued[order], told[order])
