"""The compute kernels of one rank in its steps, in order, for comparing ranks and steps with the same work."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tracekit.intervals import covered_until, union
from tracekit.matching.match import Operations
from tracekit.rank_events.compute import communicates
from tracekit.rank_events.event_columns import ints, matches, strings
from tracekit.steps.steps import Steps, windows_of
from tracekit.store import Run
from tracekit.thresholds.tables import DEVICE_ROUNDING_NS, HOST_GAP_NS
from tracekit.units import F64, I64

_COLUMNS = ["ts", "dur", "cat", "name", "stream", "collective"]


@dataclass(frozen=True)
class StepKernels:
    """Kernels of the busiest compute stream of one rank in its steps, in order; times in ns."""

    column: I64  # of Steps
    name: npt.NDArray[np.object_]
    lasted: F64
    shared: F64  # for how long communication ran at the same time
    counts: npt.NDArray[np.bool_]  # whether the next operation begins earlier if it is shorter
    start: I64  # wall time of the rank

    def reversed(self) -> "StepKernels":
        """Return the same kernels, the last one first."""
        return self._taken(slice(None, None, -1))

    def first(self, count: int) -> "StepKernels":
        """Return the first `count` kernels."""
        return self._taken(slice(count))

    def _taken(self, part: slice) -> "StepKernels":
        return StepKernels(
            self.column[part], self.name[part], self.lasted[part], self.shared[part], self.counts[part],
            self.start[part],
        )  # fmt: skip


def kernels_in_steps(run: Run, ops: Operations, steps: Steps, row: int) -> StepKernels:
    """Return the kernels of the rank in `row`."""
    rank = steps.ranks[row]
    columns = [c for c in range(len(steps.numbers)) if np.isfinite(steps.own[row, c])]
    return _within(run, ops, rank, columns, *windows_of(ops, steps, rank, columns))


def kernels_between(run: Run, ops: Operations, rank: int, begin: int, end: int) -> StepKernels:
    """Return the kernels of a rank that begin between two times, ns, as column 0."""
    return _within(run, ops, rank, [0], np.array([begin], np.int64), np.array([end], np.int64))


def _within(run: Run, ops: Operations, rank: int, columns: list[int], begins: I64, ends: I64) -> StepKernels:
    """Return the kernels of a rank that begin in windows, one column a window; begins of windows are rounded."""
    events = run.events(rank, _COLUMNS)
    start = ints(events, "ts", 0)
    end = start + ints(events, "dur", 0)
    kernel = matches(events, "cat", lambda text: text == "kernel").astype(bool)
    comm = communicates(events, kernel, on_gpu=True)
    talking = union(start[comm], end[comm])
    mine = np.flatnonzero(kernel & ~comm)
    streams, counts = np.unique(ints(events, "stream", -1)[mine], return_counts=True)
    mine = mine[ints(events, "stream", -1)[mine] == streams[np.argmax(counts)]] if len(mine) else mine
    mine = mine[np.argsort(start[mine], kind="stable")]
    at = np.searchsorted(begins - DEVICE_ROUNDING_NS, start[mine], side="right") - 1
    inside = (at >= 0) & (start[mine] < ends[np.maximum(at, 0)]) if columns else np.zeros(len(mine), bool)
    mine, at = mine[inside], at[inside]
    shared = covered_until(talking, end[mine]) - covered_until(talking, start[mine])
    names = np.array([name or "" for name in strings(events.column("name").take(mine))], object)
    return StepKernels(
        np.array(columns, np.int64)[at], names, (end - start)[mine].astype(np.float64), shared.astype(np.float64),
        _counts(start[mine], end[mine], ops.progress[rank].exposed), start[mine],
    )  # fmt: skip


def _counts(start: I64, end: I64, exposed: tuple[I64, I64]) -> npt.NDArray[np.bool_]:
    """Whether the rank continues earlier if a kernel is shorter, which is false where the next one waited for its host.

    A kernel that ends before the device is idle for its host, and all before it back to the last gap, cost nothing.
    `exposed` is when the device was idle for communication.
    """
    if not len(start):
        return np.zeros(0, bool)
    gap = np.append(start[1:] - end[:-1], 0)
    waited = np.append(covered_until(exposed, start[1:]) - covered_until(exposed, end[:-1]), 0)
    on_host, on_others = gap - waited > HOST_GAP_NS, waited > 0
    closes = on_host | on_others
    closes[-1] = True
    last = np.searchsorted(np.flatnonzero(closes), np.arange(len(start)), side="left")
    return np.asarray(~(on_host & ~on_others)[np.flatnonzero(closes)[last]], bool)
