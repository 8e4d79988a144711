"""The compute kernels of one rank in its steps, in order, for comparing ranks and steps with the same work."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product, starmap
from operator import itemgetter
from typing import Final

import numpy as np
import numpy.typing as npt

from tracekit.intervals import covered_until, union
from tracekit.matching.match import Operations
from tracekit.rank_events.compute import communicates
from tracekit.rank_events.event_columns import categories, ints, matches
from tracekit.rank_events.operation_names import MESSAGES
from tracekit.steps.medians import median_by_column
from tracekit.steps.steps import Steps, windows_of
from tracekit.store import Run
from tracekit.thresholds.slowrank import MAJORITY
from tracekit.thresholds.tables import DEVICE_ROUNDING_NS, HOST_GAP_NS, LIKE_SHARE
from tracekit.units import F64, I32, I64

_MESSAGES: Final = (*MESSAGES, "send_recv")  # a recording may show the direction of some alone
_COLUMNS = ["ts", "dur", "cat", "name", "stream", "external_id", "collective"]


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
        return self.taken(slice(None, None, -1))

    def only(self, columns: Sequence[int]) -> "StepKernels":
        """Return the kernels in `columns`."""
        return self.taken(np.isin(self.column, columns))

    def taken(self, part: slice | npt.NDArray[np.bool_]) -> "StepKernels":
        """Return the kernels at the positions `part`."""
        return StepKernels(
            self.column[part], self.name[part], self.lasted[part], self.shared[part], self.counts[part],
            self.start[part],
        )  # fmt: skip


def kernels_in_steps(run: Run, ops: Operations, steps: Steps, row: int, of: str = "kernel") -> StepKernels:
    """Return the kernels of the rank in `row`, or the copies of memory by its device: `of` "gpu_memcpy"."""
    rank, columns = steps.ranks[row], np.flatnonzero(np.isfinite(steps.own[row])).tolist()
    return _within(run, ops, rank, columns, *windows_of(ops, steps, rank, columns), of=of)


def kernels_recorded(run: Run, ops: Operations, steps: Steps, row: int) -> StepKernels:
    """Return the kernels of the rank in `row`, also of the parts of steps beside its whole steps.

    From the first and the last whole step on, each has as many kernels as that one; columns continue those of Steps.
    """
    rank, window = steps.ranks[row], ops.per_rank[steps.ranks[row]].window
    read = _within(run, ops, rank, [0], np.array(window[:1], np.int64), np.array(window[1:], np.int64))
    whole = whole_columns(steps, row)
    if not len(whole):
        return read.only(())
    begins, ends = windows_of(ops, steps, rank, whole)
    at = np.searchsorted(begins - DEVICE_ROUNDING_NS, read.start, side="right") - 1
    first, last = (max(int((at == n).sum()), 1) for n in (0, len(whole) - 1))
    column = np.array(whole, np.int64)[np.maximum(at, 0)]
    before, after = at < 0, read.start >= ends[-1]
    column[before] -= 1 + np.arange(before.sum())[::-1] // first
    column[after] += 1 + np.arange(after.sum()) // last
    inside = before | after | (read.start < ends[np.maximum(at, 0)])
    return replace(read, column=column).taken(inside)


def whole_columns(steps: Steps, row: int) -> list[int]:
    """Return the columns of Steps that the rank in `row` recorded whole."""
    cut = None if steps.cut is None else steps.cut.number
    known = np.flatnonzero(np.isfinite(steps.own[row])).tolist()
    return [column for column in known if steps.numbers[column] != cut]


def beside_steps(ops: Operations, steps: Steps, row: int, peers: Sequence[int]) -> list[tuple[float, float]]:
    """Return (excess of the rank in `row` over `peers`, ns; the steps that it lasts) before and after its whole steps.

    What is longer on a typical peer as well is no excess, as where a program warms up.
    """
    theirs = [_beside(ops, steps, peer, [p for p in peers if p != peer]) for peer in peers]
    usual = [np.median([sides[side][0] for sides in theirs] or [0.0]) for side in (0, 1)]
    mine = zip(_beside(ops, steps, row, peers), usual, strict=True)
    return [(over - max(float(less), 0.0), many) for (over, many), less in mine]


def _beside(ops: Operations, steps: Steps, row: int, peers: Sequence[int]) -> list[tuple[float, float]]:
    """Return `beside_steps` over whole steps of `peers`.

    The operations from the border on are compared with the same ones of such steps, as far as they agree: all, or the
    collectives alone, because hosts issue messages among them in changing order.
    """
    found, whole = [(0.0, 0.0), (0.0, 0.0)], whole_columns(steps, row) if steps.labelled else []
    there = [(peer, column) for peer in peers for column in whole_columns(steps, peer)]
    step = max(float(np.median([steps.own[place] for place in there] or [0.0])), 1.0)
    for (side, back), talks in product(enumerate((True, False)), (True, False)) if whole else ():
        course, border = partial(_course, ops, steps, back=back, messages=talks), whole[0 if back else -1]
        kinds, (made, took) = course(row, border)[0], course(row, border, beside=True)
        usual = [
            spent for named, spent in starmap(course, there) if len(kinds) and np.array_equal(named, kinds)
        ]
        same = int(np.argmin(np.append(made == np.resize(kinds, len(made)), False))) if usual else 0
        if same:
            steps_before, last = divmod(same - 1, len(kinds))
            due = steps_before * step + float(np.median([spent[last] for spent in usual]))
            found[side] = max(found[side], (float(took[same - 1]) - due, due / step), key=itemgetter(1))
    return found


def _course(
    ops: Operations, steps: Steps, row: int, column: int, *, back: bool, messages: bool, beside: bool = False
) -> tuple[I32, I64]:
    """Return the kinds of the operations of a step, or `beside` it, in order of issue, and the own time until each, ns.

    `back`: in reverse order, from the end of the step or before its begin. Without `messages`, only collectives. One
    that runs out of order, as on a stream of its own, has the time of the earliest behind it.
    """
    rank = steps.ranks[row]
    where, issued = ops.of(rank), ops.per_rank[rank].issued
    inside = ops.step[where] == steps.numbers[column]
    if beside:
        capture = np.searchsorted(ops.per_rank[rank].begins, ops.start[where], side="right")
        here = issued < issued[inside].min() if back else issued > issued[inside].max()
        inside = here & ~inside & (capture == capture[inside][0])
    kinds = ops.kinds[1][where]
    talks = np.isin(kinds, [n for n, name in enumerate(ops.kinds[0]) if name in _MESSAGES])
    rows = np.flatnonzero(inside & (messages | ~talks))
    rows = rows[np.lexsort((rows, issued[rows]))]
    begins, ends = windows_of(ops, steps, rank, [column])
    border = int(ops.progress[rank].at(begins if back == beside else ends)[0])
    kinds = np.where(talks, -1, kinds)[rows]
    took = border - ops.at_start[where][rows][::-1] if back else ops.at_end[where][rows] - border
    return kinds[::-1] if back else kinds, np.minimum.accumulate(took[::-1])[::-1]


def _within(
    run: Run, ops: Operations, rank: int, columns: list[int], begins: I64, ends: I64, of: str = "kernel"
) -> StepKernels:
    """Return the work in the category `of` of a rank that begins in windows, one column each; begins are rounded."""
    events = run.events(rank, _COLUMNS)
    start = ints(events, "ts", 0)
    end = start + ints(events, "dur", 0)
    kernel = categories(events) == "kernel"
    comm = communicates(events, kernel, on_gpu=True)
    talking = union(start[comm], end[comm])
    mine = np.flatnonzero(kernel & ~comm)
    if of == "kernel":
        streams, counts = np.unique(ints(events, "stream", -1)[mine], return_counts=True)
        mine = mine[ints(events, "stream", -1)[mine] == streams[np.argmax(counts)]] if len(mine) else mine
    else:
        mine = np.flatnonzero(categories(events) == of)
    mine = mine[np.argsort(start[mine], kind="stable")]
    at = np.searchsorted(begins - DEVICE_ROUNDING_NS, start[mine], side="right") - 1
    inside = (at >= 0) & (start[mine] < ends[np.maximum(at, 0)]) if columns else np.zeros(len(mine), bool)
    mine, at = mine[inside], at[inside]
    shared = covered_until(talking, end[mine]) - covered_until(talking, start[mine])
    names = matches(events, "name", lambda name: name or "")[mine]
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


# How the excess of compute in one step is spread over the kernels of a rank: over most of them, or few.
#
# A slower device takes longer for every kernel. An event in one operation lengthens one kernel, and uneven
# data lengthens the kernels that depend on the data.


@dataclass(frozen=True)
class LongerKernels:
    """Kernels of one rank in one step that are longer than the same kernels of its peers and of its other steps."""

    ns: float  # excess of all kernels of the step together
    share: float  # part of the usual time in kernels that are longer by a fair part of the common factor
    count: int  # number of such kernels
    whole: float = 0.0  # the usual time of all kernels, ns


def longer_kernels(mine: StepKernels, peers: Sequence[StepKernels], column: int) -> LongerKernels:
    """Return how the kernels of `mine` in the step in `column` (of Steps) exceed their usual length.

    Usual is the longer of two medians of the kernel at the same position (the k-th one of its name): that of `peers`,
    which do the same work, in the same step, and that of the rank's own other steps. Only names that run equally often
    in all these are compared, because else it is unknown which kernels do the same; of a step that all have cut short,
    the kernels that all recorded. A kernel that shares the device with communication for more of its time than usual
    may be longer for that reason, and does not count as longer.
    """
    took, usual = [np.zeros((0, 2))], [np.zeros((0, 2))]
    for name in np.unique(mine.name.astype(str)).tolist():
        own = by_step(mine, name)
        beside = [found[column] for found in (by_step(k, name) for k in peers) if column in found]
        elsewhen = [kernels for c, kernels in own.items() if c != column]
        here = [len(v) for v in (*beside, own.get(column, ()))]
        every = max(len(v) for v in (*own.values(), *beside))
        cut = max(here) < every  # by the ends of windows
        often = {len(v) for v in elsewhen}
        if (
            not beside
            or min(here) < (1 if cut else every)
            or len(often) > 1
            or min(often, default=every) < min(here)
        ):
            continue
        took.append(own[column][: min(here)])
        median = np.median([v[: min(here)] for v in beside], axis=0)
        others = [v[: min(here)] for v in elsewhen]
        usual.append(np.maximum(median, np.median(others, axis=0)) if others else median)
    return _compared(np.concatenate(took), np.concatenate(usual))


def longest_beyond(kernels: StepKernels, column: int) -> float:
    """Return the excess of one kernel of the step in `column` over any of its name in the rank's other steps, ns.

    0 where no kernel is longer. One that other steps do not run, or run less often, counts with its whole length.
    """
    most = 0.0
    for name in set(kernels.name[kernels.column == column].tolist()):
        steps = {c: found[:, 0] for c, found in by_step(kernels, name).items()}
        mine = steps.pop(column)
        more = len(mine) > max(map(len, steps.values()), default=0)
        usual = 0.0 if more else max(float(found.max(initial=0.0)) for found in steps.values())
        most = max(most, float(mine.max()) - usual)
    return most


def by_step(kernels: StepKernels, name: str) -> dict[int, F64]:
    """Return column of Steps → (length in ns, share beside communication) of the kernels of that name in order."""
    where = kernels.name == name
    part = kernels.shared / np.maximum(kernels.lasted, 1.0)
    both = np.stack([kernels.lasted, part], axis=1)
    return {c: both[where & (kernels.column == c)] for c in np.unique(kernels.column).tolist()}


def _compared(took: F64, usual: F64) -> LongerKernels:
    """Return how kernels `took` spread their excess over `usual`, both as from `by_step`."""
    whole, longer = float(usual[:, 0].sum()), float((took - usual)[:, 0].sum())
    if longer <= 0 or whole <= 0:
        return LongerKernels(0.0, 0.0, 0)
    over, beside = (took - usual).T
    fair = (over >= MAJORITY * usual[:, 0] * (longer / whole)) & (beside <= LIKE_SHARE)
    return LongerKernels(longer, float(usual[fair, 0].sum()) / whole, int(fair.sum()), whole)


def longer_beside(
    mine: StepKernels, peers: Sequence[StepKernels], column: int, whole: list[int]
) -> LongerKernels:
    """Return how the kernels of `mine` in a part of a step exceed their usual length; all as of `kernels_recorded`.

    As `longer_kernels`, but each rank recorded the part in `column` only as far as its window goes, from the border of
    its steps in the columns `whole` on. A kernel that no peer recorded is compared with the rank's own steps alone.
    """
    way = -1 if column < whole[0] else 1
    own_steps = mine.only((*whole, column))
    took, usual = [np.zeros((0, 2))], [np.zeros((0, 2))]
    for name in np.unique(mine.name[mine.column == column].astype(str)).tolist():
        own = by_step(own_steps, name)
        here, elsewhen = own.pop(column)[::way], [found[::way] for found in own.values()]
        if len({len(found) for found in elsewhen}) != 1:
            continue
        here = here[: len(elsewhen[0])]
        beside = np.full((len(peers), *here.shape), np.nan)
        for known, peer in zip(beside, peers, strict=True):
            part = by_step(peer, name).get(column, here[:0])[::way][: len(here)]
            known[: len(part)] = part
        median = median_by_column(beside.reshape(len(peers), -1)).reshape(here.shape)
        took.append(here)
        usual.append(np.fmax(np.median(elsewhen, axis=0)[: len(here)], median))
    return _compared(np.concatenate(took), np.concatenate(usual))
