"""The time that a host needs to launch a step, and the compute of ranks on CPUs as if nothing interrupted them.

What a host needs, whatever its device does, is a lower bound of the step of its rank.

Processes that share cores interrupt each other: some operators take time slices longer, in whichever rank and step, and
the rest are as short as ever. So a sum over a step varies by more than a slow rank adds to it, but not the pace of the
operators that are short for their place in the step.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np
import pyarrow as pa

from tracekit.intervals import Intervals, inside_each
from tracekit.matching.match import Operations
from tracekit.rank_events.compute import NOT_COMPUTE, OPERATOR
from tracekit.rank_events.event_columns import Values, categories, ints, matches, truth
from tracekit.steps.host_work import LAUNCH
from tracekit.steps.medians import weighted_quantile
from tracekit.steps.steps import Steps, windows_of
from tracekit.store import Run
from tracekit.thresholds.slowrank import (
    MINOR,
    NEARLY_ALL,
    STEP_PARTS,
)
from tracekit.units import F64, I64


def host_need(ops: Operations, steps: Steps, rank: int, working: Intervals, launched: I64) -> F64:
    """Return how long the host of `rank` works in each of `steps`, ns; NaN if its launches were not recorded.

    `working` and `launched` come from `host_work`. It may need more than that, and hardly less.
    """
    need = np.full(len(steps.numbers), np.nan)
    begins, ends = on_host(ops, steps, rank)
    known = np.flatnonzero(ends > begins)
    if not len(known):
        return need
    inside = begins[known], ends[known]
    recorded = np.searchsorted(launched, inside[1]) > np.searchsorted(launched, inside[0])
    need[known] = np.where(recorded, inside_each(working, inside), np.nan)
    return need


def on_host(ops: Operations, steps: Steps, rank: int) -> tuple[I64, I64]:
    """Return (begin, end) of each of `steps` on the host of `rank`, ns; by marks, else by launches; (0, 0) if unknown.

    A step ends where the next one begins; if that was not recorded, with the mark or with its own last launch. Unknown
    of a step that windows cut: devices of ranks end it at the same operation, but their hosts are ahead by different
    times.
    """
    source, where = ops.per_rank[rank], ops.of(rank)
    labels = ops.step[where] if steps.labelled else np.zeros(where.stop - where.start, np.int32)
    begins, ends = np.zeros((2, len(steps.numbers)), np.int64)
    known = np.isfinite(steps.own[steps.row(rank)]) & (steps.shares == 1.0)
    for column, number in [(c, steps.numbers[c]) for c in np.flatnonzero(known).tolist()]:
        spans = [source.steps.get(n) for n in (number, number + 1)]
        if spans[0] is None:
            spans = [_launched(source.issued[labels == n]) for n in (number, number + 1)]
        mine, after = spans
        if mine is not None:
            begins[column], ends[column] = mine[0], mine[1] if after is None else after[0]
    return begins, ends


def products_in_steps(run: Run, ops: Operations, steps: Steps, rank: int) -> float | None:
    """Return the FLOPs a step of the matrix products and attention that the host of `rank` calls; None where unknown.

    Shapes of operators are recorded with `record_shapes=True`. Raises InputError where its events cannot be read.
    """
    begins, ends = on_host(ops, steps, rank)
    known = ends > begins
    events = run.events(rank, ["ts", "flops"])
    flops, start = ints(events, "flops", -1), ints(events, "ts", 0)
    rows = np.flatnonzero(flops >= 0)
    if not len(rows) or not known.any():
        return None
    begins, ends = begins[known], ends[known]
    at = np.searchsorted(begins, start[rows], "right") - 1
    inside = (at >= 0) & (start[rows] < ends[np.maximum(at, 0)])
    return float(flops[rows[inside]].sum()) / len(begins)


def _launched(issued: I64) -> tuple[int, int] | None:
    """Return the first and the last of some launches, ns; None without any."""
    return (int(issued.min()), int(issued.max())) if len(issued) else None


# The rate at which a host launches work where nothing holds it up.

FREE = 10
"""Percentile of the intervals: a host that is held up launches more slowly, and never faster than it can. One that
waits for a slow rank may be held up at most of its launches."""

MOSTLY = 50
"""Percentile of the usual interval between launches, held up or not."""


def launch_pace(run: Run, rank: int, percentile: float = FREE) -> float | None:
    """Return the ns between two launches of `rank` where its device does not hold it up; None without a recorded host.

    Only launches of one thread are compared, since autograd's thread runs beside the main one. A higher `percentile`
    includes delays.
    """
    events = run.events(rank, ["ts", "name", "pid", "tid"])
    called = np.flatnonzero(truth(events, "name", LAUNCH))
    begins, pid, tid = (ints(events, column, -1)[called] for column in ("ts", "pid", "tid"))
    order = np.lexsort((begins, tid, pid))
    begins, pid, tid = begins[order], pid[order], tid[order]
    consecutive = (np.diff(pid) == 0) & (np.diff(tid) == 0)
    between = np.diff(begins)[consecutive]
    return float(np.percentile(between, percentile)) if len(between) else None


_Times = dict[tuple[int, str], F64]
"""Column of Steps and name → how long its operators take, shortest first, ns."""
_NONE: Final = np.zeros(0)


def paced_compute(run: Run, ops: Operations, steps: Steps, rows: Sequence[int]) -> F64:
    """Return the compute of ranks on CPUs without interruptions, ranks × steps as in `steps`, ns; NaN where unknown.

    rows: of `steps`, ranks of the same work; the others stay NaN. It holds the operators that all of them run about
    equally often in every step, at the pace that the quickest quarter of them by time keeps, and what a rank runs more
    often than the others at its shortest. Raises InputError where events cannot be read.
    """
    result = np.full(steps.own.shape, np.nan)
    read = [_operators(run, ops, steps, row) for row in rows]
    whole = [c for c in range(len(steps.numbers)) if np.isfinite(steps.own[list(rows), c]).all()]
    names = sorted({name for _, name in read[0]}) if read else []
    alike = [found for name in names if (found := _same(read, whole, name)) is not None]
    if sum(found.shape[2] for found in alike) < STEP_PARTS:
        return result
    lasted = np.concatenate(alike, axis=2)
    usual = np.maximum(lasted.min(axis=(0, 1)), 1.0)
    for row, mine in zip(rows, lasted, strict=True):
        for column, times in zip(whole, mine, strict=True):
            pace = weighted_quantile(times / usual, usual, 1.0, MINOR)
            result[row, column] = pace * float(usual.sum())
    result[np.ix_(list(rows), whole)] += sum(
        (_additional(read, whole, name) for name in sorted({name for rank in read for _, name in rank})),
        np.zeros((len(rows), len(whole))),
    )
    return result


def _additional(read: Sequence[_Times], columns: Sequence[int], name: str) -> F64:
    """The least time of the operators of a name that a rank runs more often than most, ranks × columns, ns."""
    found = [[rank.get((column, name), _NONE) for column in columns] for rank in read]
    usual = np.median([[len(times) for times in rank] for rank in found], axis=0).astype(int).tolist()
    return np.array(
        [
            [times[: max(len(times) - n, 0)].sum() for times, n in zip(rank, usual, strict=True)]
            for rank in found
        ]
    )


def _same(read: Sequence[_Times], columns: Sequence[int], name: str) -> F64 | None:
    """The shortest operators of a name, ranks × steps × operators, ns; None where their numbers differ by much.

    Windows may cut a step, and operators within communication are left out: what is missing counts as the longest.
    """
    found = [[rank.get((column, name), _NONE) for column in columns] for rank in read]
    counts = [len(times) for rank in found for times in rank]
    few = min(counts, default=0)
    if not few or few < NEARLY_ALL * max(counts):
        return None
    return np.array([[times[:few] for times in rank] for rank in found], np.float64)


def _operators(run: Run, ops: Operations, steps: Steps, row: int) -> _Times:
    """The outermost operators of the rank in `row`."""
    rank = steps.ranks[row]
    columns = [c for c in range(len(steps.numbers)) if np.isfinite(steps.own[row, c])]
    begins, ends = windows_of(ops, steps, rank, columns)
    (start, end), names = _outermost(run.events(rank, ["ts", "dur", "cat", "name", "tid"]))
    at = np.searchsorted(begins, start, "right") - 1
    inside = (at >= 0) & (start < ends[np.maximum(at, 0)]) if columns else np.zeros(len(start), bool)
    inside &= np.array(inside_each(ops.progress[rank].exposed, (start, end))) == 0
    lasted, names, at = (end - start)[inside].astype(np.float64), names[inside], at[inside]
    found: _Times = {}
    for name in np.unique(names).tolist():
        mine = names == name
        for place, column in enumerate(columns):
            found[column, name] = np.sort(lasted[mine & (at == place)])
    return found


def _outermost(events: pa.Table) -> tuple[Intervals, Values]:
    """(begins and ends, names) of the operators that are inside no other one of their thread, in order of time."""
    operator = truth(events, "name", OPERATOR) & ~truth(events, "name", NOT_COMPUTE)
    rows = np.flatnonzero(operator & (categories(events) == "cpu_op"))
    start, tid = ints(events, "ts", 0)[rows], ints(events, "tid", -1)[rows]
    end = start + ints(events, "dur", 0)[rows]
    outer = np.zeros(len(rows), bool)
    for thread in np.unique(tid).tolist():
        mine = np.flatnonzero(tid == thread)
        before = np.concatenate([[np.iinfo(np.int64).min], np.maximum.accumulate(end[mine])[:-1]])
        outer[mine] = start[mine] >= before
    names = matches(events, "name", lambda n: n or "")[rows[outer]]
    return (start[outer], end[outer]), names
