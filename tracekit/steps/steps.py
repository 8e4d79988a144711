"""The steps that (nearly) every rank recorded whole, and each rank's own and wall time in them."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from tracekit.intervals import Intervals, inside_each, subtract
from tracekit.matching.match import Operations
from tracekit.rank_events.step_marks import NO_STEP
from tracekit.steps.medians import of_rows
from tracekit.thresholds.tables import (
    CUT_STEP_SHARE,
    ENOUGH_STEPS,
    ENOUGH_WHOLE_STEPS,
    MOST_RANKS,
    NEARLY_ALL_RANKS,
    WHOLE_STEP_SHARE,
)
from tracekit.units import F64, I64


@dataclass(frozen=True)
class CutStep:
    """A step that windows cut, beside the whole steps; arrays are ranks × steps as in `Steps`."""

    number: int
    share: float  # the part of a whole step's time that it holds, above 0; 1 where no step is whole
    last: I64  # of each whole step the operation with which the cut one ends, −1 where unknown
    own: F64  # own time of each whole step behind that operation, ns; NaN where unknown
    wall: F64  # the same of the wall time


@dataclass(frozen=True)
class Steps:
    """Analysed steps, and per rank and step (rows as `ranks`, columns as `numbers`) times in ns; NaN is unknown."""

    ranks: tuple[int, ...]
    numbers: tuple[int, ...]
    own: F64  # own time: working, not waiting in exposed communication
    wall: F64  # from the end of the step before to the end of this one
    begin: F64  # own-time reading at the step's begin, the axis that a what-if rescales
    partial: tuple[int, ...]  # steps left out because some ranks recorded them in part
    labelled: bool  # the traces mark steps; else everything is one step, number 0
    tail: F64  # the part of own, wall and begin that was recorded behind the last step (`with_tails`)
    tail_ends: F64  # end of that part, ns; 0 without one
    cut: CutStep | None = None  # a step that windows cut, compared as far as all ranks recorded it
    begun_late: tuple[tuple[int, int], ...] = ()  # (step, rank) with a late begin that counts as own time

    @cached_property
    def shares(self) -> F64:
        """Return the part of a whole step that each column holds: 1, and less of a step that windows cut."""
        cut = self.cut
        return np.array([cut.share if cut and n == cut.number else 1.0 for n in self.numbers])

    @property
    def count(self) -> float:
        """Return how many whole steps the columns make up."""
        return float(self.shares.sum())

    def mean(self, spent: F64) -> float:
        """Return `spent` (steps, or ranks × steps, ns) in a mean whole step, by what each holds; NaN is left out."""
        known = np.isfinite(spent)
        weight = float(np.where(known, self.shares, 0.0).sum())
        return float(np.where(known, spent, 0.0).sum()) / weight if weight > 0 else float("nan")

    def means(self, spent: F64) -> F64:
        """Return `mean` of each row of `spent`, ranks × steps, ns; NaN where nothing in it is known."""
        return np.array([self.mean(row) for row in spent])

    def completed(self, spent: F64, lacking: F64) -> F64:
        """Return `spent` (ranks × steps, ns) with what the cut step lacks: the mean of `lacking` over whole steps.

        So the mean weighs each part of a step by the steps that hold it. A rank without a whole step counts by share.
        """
        if self.cut is None:
            return spent
        column, missing = self.numbers.index(self.cut.number), of_rows(np.nanmean, lacking)
        result, known = spent.copy(), np.isfinite(missing)
        result[:, column] = np.where(known, spent[:, column] + missing, spent[:, column] / self.cut.share)
        return result

    @cached_property
    def whole(self) -> F64:
        """Return the wall time of each step if windows had cut none, ranks × steps, ns: with the work of all ranks."""
        if self.cut is None:
            return self.wall
        result, least = (self.completed(self.wall, lacking) for lacking in (self.cut.wall, self.cut.own))
        column = self.numbers.index(self.cut.number)
        result[:, column] = np.maximum(result[:, column], np.nanmax(least[:, column]))
        return result

    def recorded(self, rank: int) -> list[int]:
        """Return the columns of the steps that a rank recorded with all its own time: those it did not begin late."""
        known = np.isfinite(self.own[self.row(rank)]).tolist()
        return [c for c, n in enumerate(self.numbers) if known[c] and (n, rank) not in self.begun_late]

    def row(self, rank: int) -> int:
        """Return the row of `rank`; ValueError where it is not in `ranks`."""
        if rank not in self._rows:
            raise ValueError(f"rank {rank} has no steps")
        return self._rows[rank]

    @cached_property
    def _rows(self) -> dict[int, int]:
        return {rank: row for row, rank in enumerate(self.ranks)}


def measure(ops: Operations, wanted: Sequence[tuple[int | None, int | None]] | None = None) -> Steps:
    """Return own and wall time of every rank in every step that (nearly) all ranks recorded whole; ranks × steps.

    `wanted` are half-open ranges of step numbers, None for an open end. A step is whole on a rank that has as many
    operations of each of its channels in it as any other member.
    """
    labelled = bool((ops.step != NO_STEP).any())
    step = ops.step if labelled else np.zeros(len(ops.step), np.int32)
    numbers, whole = whole_steps(ops, step, wanted)
    share = whole.mean(axis=0) if len(ops.ranks) else np.zeros(len(numbers))
    keep = [i for i in range(len(numbers)) if share[i] == 1.0]
    # One rank cut short must not cost the others the steps it lacks; what many ranks lack leaves most waits unknown.
    for least, enough in ((NEARLY_ALL_RANKS, ENOUGH_STEPS), (MOST_RANKS, ENOUGH_WHOLE_STEPS)):
        if len(keep) < enough:
            keep = [i for i in range(len(numbers)) if share[i] >= least] or keep
    chosen = [numbers[i] for i in keep]
    own, wall, begin = np.full((3, len(ops.ranks), len(chosen)), np.nan)
    for row, rank in enumerate(ops.ranks):
        for column, number in enumerate(chosen):
            if whole[row, keep[column]]:
                own[row, column], wall[row, column], begin[row, column] = _one(ops, rank, step, number)
    partial = tuple(n for i, n in enumerate(numbers) if i not in keep)
    return Steps(ops.ranks, tuple(chosen), own, wall, begin, partial, labelled, *np.zeros((2, *own.shape)))


def whole_steps(
    ops: Operations,
    step: npt.NDArray[np.int32],
    wanted: Sequence[tuple[int | None, int | None]] | None = None,
) -> tuple[list[int], npt.NDArray[np.bool_]]:
    """Return (the wanted numbers of `step`, whether each rank (row) has each of them (column) whole)."""
    numbers = [int(n) for n in np.unique(step) if n != NO_STEP]
    if wanted:
        numbers = [
            n for n in numbers if any((a is None or n >= a) and (b is None or n < b) for a, b in wanted)
        ]
    return numbers, _whole(ops, step, numbers)


def _whole(ops: Operations, step: npt.NDArray[np.int32], numbers: Sequence[int]) -> npt.NDArray[np.bool_]:
    """Return whether each rank (row) has each step (column) whole.

    Operations without their group may be the ones that it lacks, if it has as many of all as in its other steps. If
    members of a channel disagree about a step, it was cut, and maybe on all of them: then the fullest step gives the
    number of its operations.
    """
    known, lacking = _counted(ops, step, numbers)
    if not len(numbers):
        return np.zeros(lacking.shape, bool)
    every = _operations(ops, step, numbers)
    full = (every >= np.median(every, axis=1, keepdims=True)) & (len(numbers) > 1)
    whole = (lacking == 0) | (full & (lacking <= every - known))
    total = np.where(known.any(axis=1, keepdims=True), known, every)
    return np.asarray(
        whole & (total > 0) & (total >= WHOLE_STEP_SHARE * np.median(total, axis=1)[:, None]), bool
    )


def _counted(
    ops: Operations, step: npt.NDArray[np.int32], numbers: Sequence[int]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return (operations on channels of each rank (row) in each step (column), how many it lacks there)."""
    ranks, known = np.array(ops.ranks), np.zeros((len(ops.ranks), len(numbers)), np.int64)
    lacking = known.copy()
    peerless = ops.among(("send_recv",)) & (ops.channel < 0) & np.isin(step, numbers)
    open_ends = {int(r) for r in np.unique(ops.rank[peerless])}
    # Messages of ranks that have some without a peer may be among those: the two ends may count differently.
    asked = [c for c in ops.channels if not (c.p2p and open_ends.intersection(c.members))]
    pairs = [(c.number, found) for c in asked if len(found := _rows(ranks, c.members))]
    lacking += _messages_cut(ops, step, numbers, open_ends)
    mine = (ops.channel >= 0) & np.isin(step, numbers)
    row, column = np.searchsorted(ranks, ops.rank[mine]), np.searchsorted(numbers, step[mine])
    np.add.at(known, (row, column), 1)
    if not pairs or not len(numbers):
        return known, lacking
    size = [len(rows) for _, rows in pairs]
    number = np.repeat([number for number, _ in pairs], size)
    member = np.concatenate([rows for _, rows in pairs])
    key, own = number * len(ranks) + member, ops.channel[mine] * len(ranks) + row
    place = np.minimum(np.searchsorted(key, own), len(key) - 1)
    have = np.zeros((len(key), len(numbers)), np.int64)
    there = key[place] == own
    np.add.at(have, (place[there], column[there]), 1)
    first = np.cumsum([0, *size[:-1]])
    most = np.maximum.reduceat(have, first)
    cut = np.minimum.reduceat(have, first) < most
    due = np.where(cut, most.max(axis=1, keepdims=True), most)
    np.add.at(lacking, member, np.repeat(due, size, axis=0) - have)
    return known, lacking


def _messages_cut(
    ops: Operations, step: npt.NDArray[np.int32], numbers: Sequence[int], open_ends: set[int]
) -> npt.NDArray[np.int64]:
    """Return how many operations each rank (row) lacks in each step (column), if some of its messages name no peer.

    No channel shows whether both ends of such messages were recorded. But a step in which all these ranks have clearly
    fewer operations than in their fullest one was cut.
    """
    lacking = np.zeros((len(ops.ranks), len(numbers)), np.int64)
    rows = [i for i, rank in enumerate(ops.ranks) if rank in open_ends]
    if not rows or not len(numbers):
        return lacking
    have = _operations(ops, step, numbers)[rows]
    most = have.max(axis=1, keepdims=True)
    lacking[rows] = np.where((have < CUT_STEP_SHARE * most).all(axis=0), most - have, 0)
    return lacking


def _rows(ranks: npt.NDArray[np.int64], members: Sequence[int]) -> npt.NDArray[np.int64]:
    """Return the sorted indices into `ranks` (sorted) of the `members` among them."""
    place = np.minimum(np.searchsorted(ranks, members), len(ranks) - 1)
    return np.sort(place[ranks[place] == members])


def _operations(
    ops: Operations, step: npt.NDArray[np.int32], numbers: Sequence[int]
) -> npt.NDArray[np.int64]:
    """Return the number of operations of each rank (row) in each step (column), for any matches."""
    steps = [step[ops.of(rank)] for rank in ops.ranks]
    return np.array([[int((s == n).sum()) for n in numbers] for s in steps], np.int64).reshape(len(steps), -1)


def after_a_gap(steps: dict[int, tuple[int, int]], number: int) -> bool:
    """Return whether marked steps (number → span) come before the step `number`, but not the one just before it."""
    return number in steps and number - 1 not in steps and min(steps) < number


def _one(ops: Operations, rank: int, step: npt.NDArray[np.int32], number: int) -> tuple[float, float, float]:
    """Return (own time, wall time, own-time reading at the begin) of one rank's step, ns.

    A step lasts from the last end of the step before it to its own last end; the first one of a second capture, from
    its begin on the host.
    """
    where = ops.of(rank)
    labels = step[where]
    rows = np.flatnonzero(labels == number)
    progress, source = ops.progress[rank], ops.per_rank[rank]
    last = int(ops.end[where][rows].max())
    issued = source.issued
    before = np.flatnonzero((issued < issued[rows].min()) & (labels != number))
    if len(before):
        first = min(int(ops.end[where][before].max()), last)
    elif number in source.steps:
        first = max(source.steps[number][0], source.window[0])
    else:
        first = int(ops.start[where][rows[0]])
    if after_a_gap(source.steps, number):
        first = max(first, source.steps[number][0])
    first = min(first, int(ops.start[where][rows].min()) if not len(before) else first)
    reading = progress.at(np.array([first, last], np.int64))
    return float(reading[1] - reading[0]), float(last - first), float(reading[0])


# The compute part of each rank's own time in each step; the rest are gaps, which depend on its host.


def compute_in_steps(ops: Operations, steps: Steps) -> F64:
    """Return the own time in which each rank computes, ranks × steps as in `steps`, ns; NaN where unknown."""
    result = np.full(steps.own.shape, np.nan)
    for row, rank in enumerate(steps.ranks):
        columns = [c for c in range(len(steps.numbers)) if np.isfinite(steps.own[row, c])]
        if columns:
            computing = subtract(ops.per_rank[rank].computed, ops.progress[rank].exposed)
            inside = inside_each(computing, windows_of(ops, steps, rank, columns))
            result[row, columns] = np.add(inside, inside_each(computing, tails_of(steps, rank, columns)))
    return result


def tails_of(steps: Steps, rank: int, columns: list[int]) -> tuple[I64, I64]:
    """Return the wall time (begins, ends) of what `with_tails` counts at the steps in `columns` of the rank, ns."""
    row = steps.row(rank)
    ends = steps.tail_ends[row, columns].astype(np.int64)
    return ends - steps.tail[row, columns].astype(np.int64), ends


def windows_of(ops: Operations, steps: Steps, rank: int, columns: list[int]) -> tuple[I64, I64]:
    """Return the wall time (begins, ends) of the steps in `columns` on the rank, ns."""
    where = ops.of(rank)
    labels = ops.step[where] if steps.labelled else np.zeros(where.stop - where.start, np.int32)
    ends = np.array([int(ops.end[where][labels == steps.numbers[c]].max()) for c in columns], np.int64)
    begins = ends - (steps.wall - steps.tail)[steps.row(rank), columns].astype(np.int64)
    return np.maximum(begins, ops.per_rank[rank].window[0]), ends  # nothing was recorded before the window


def idle_within(ops: Operations, rank: int, windows: Intervals) -> Intervals:
    """Return when a rank neither computes nor waits in exposed communication within disjoint `windows`, ns."""
    return subtract(subtract(windows, ops.progress[rank].exposed), ops.per_rank[rank].computed)
