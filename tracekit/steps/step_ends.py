"""Where steps end: traces without communication, and windows that do not end together.

Elsewhere the last operation of a step ends it. In traces without any communication its last work does; such an
operation takes no time, and has no counterpart and no group.

If few steps are whole, the step that the ends of the windows cut is evidence as well, as far as all ranks recorded it:
a rank that is slow in it is slow, and its recurrence there separates a fault from chance.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from tracekit.arrays import numbered_rows
from tracekit.findings.shared import Quality
from tracekit.matching.match import Operations
from tracekit.rank_events.coded_words import numbered
from tracekit.rank_events.rank_ops import RankOps
from tracekit.rank_events.step_marks import NO_STEP
from tracekit.steps.repetition import inserted
from tracekit.steps.steps import CutStep, Steps, after_a_gap, whole_steps
from tracekit.store import Run
from tracekit.thresholds.slowrank import KIND_RATIO, MAJORITY
from tracekit.thresholds.tables import ENOUGH_STEPS, MOST_RANKS
from tracekit.units import I32, I64

STEP_END: Final = "step_end"
"""Kind of the operation that represents the end of a step."""
_NO_CALLS: Final = "none was recorded: a step lasts until its last kernel, or until its mark ends on the host"
_COLUMNS: Final = ["ts", "dur", "cat", "name", "pid", "tid", "device", "stream", "correlation", "external_id"]


def with_step_ends(run: Run, ranks: Sequence[RankOps]) -> tuple[Run, list[RankOps]]:
    """Return `run` and `ranks` with the ends of their steps as operations; unchanged if any rank communicates.

    A rank without marked steps gets one end, that of its recording; one without events gets none. A quality row reports
    how steps end.
    """
    if not ranks or any(len(rank.start) for rank in ranks):
        return run, list(ranks)
    row = Quality("no_communication", None, 0, _NO_CALLS)
    ended = [_ended(rank, *_ends(rank)) for rank in ranks]
    return replace(run, quality=(*run.quality, row)), ended


def _ends(rank: RankOps) -> tuple[I64, I64]:
    """Return (number of each step, its end in ns); one step without a number where no step is marked."""
    if rank.window == (0, 0):
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    if not rank.steps:
        return np.array([NO_STEP]), np.array([rank.window[1]])
    begins, ends = np.array([rank.worked[n] for n in sorted(rank.worked)], np.int64).T
    if rank.on_gpu and len(rank.computed[1]):
        last = rank.computed[1][np.maximum(np.searchsorted(rank.computed[1], ends, "right") - 1, 0)]
        ends = np.where((last > begins) & (last <= ends), last, ends)
    return np.array(sorted(rank.worked), np.int64), np.maximum.accumulate(ends)


def _ended(rank: RankOps, numbers: I64, ends: I64) -> RankOps:
    """Return `rank` with operations that end its steps."""
    count = len(numbers)
    none64, none32 = np.full(count, -1, np.int64), np.full(count, -1, np.int32)
    issued = np.array(
        [
            rank.steps[n][1] - 1 if n in rank.steps else e
            for n, e in zip(numbers.tolist(), ends.tolist(), strict=True)
        ],
        np.int64,
    )
    return replace(
        rank, start=ends, end=ends, op=(STEP_END,) * count, token=(STEP_END,) * count, group=none32, src=none32,
        dst=none32, seq=none64, nelems=np.zeros(count, np.int64), step=numbers.astype(np.int32),
        kernel=np.arange(count), issued=issued, ready=None, stream=none64, way=np.zeros(count, np.int64), message=None,
        group_size=none32, found=np.zeros(count, bool), taken=none64, place=none64, own=none64, grid=none64,
        waited=None, hint=None, inferred=None, held=None,
        used=None, usable=None,
    )  # fmt: skip


def with_cut_step(ops: Operations, alike: Sequence[Sequence[int]]) -> tuple[Operations, int | None]:
    """Return (`ops` with a truncated step that ends at the same operations on all ranks, the number of that step).

    `alike` are groups of ranks with equal programs, which are cut at the same position. Later operations belong to no
    step. Unchanged, with None, where enough steps are whole, or every truncated one holds too little on some rank.
    """
    if not (ops.step != NO_STEP).any():
        return ops, None
    numbers, whole = whole_steps(ops, ops.step)
    share = whole.mean(axis=0)
    if int((share == 1.0).sum()) >= ENOUGH_STEPS:
        return ops, None
    for column in np.flatnonzero(share < 1.0).tolist():
        if (share[column + 1 :] < MOST_RANKS).all():
            kept = _common_begin(ops, numbers[column], alike)
            found = ops if kept is None else _cut(ops, numbers[column], kept)
            left, enough = whole_steps(found, found.step)
            if numbers[column] in left and enough[:, left.index(numbers[column])].all():
                return found, numbers[column]
    return ops, None


@dataclass
class _Begin:
    """How much of a step each rank keeps: its first `length` operations in order of issue."""

    order: dict[int, I64]  # rank → operations of the step, in order of issue
    length: dict[int, int]


def _common_begin(ops: Operations, number: int, alike: Sequence[Sequence[int]]) -> dict[int, I64] | None:
    """Return rank → the operations of step `number` before the first one that a recorded member lacks.

    Dropping an operation also drops all later ones of its rank, their counterparts on other ranks, and the same
    positions on ranks of the same group in `alike`. None where the ranks of such a group then differ.
    """
    begin, place = _in_order(ops, number)
    mates = {r: [m for m in group if m in begin.order] for group in alike for r in group}
    rows = np.concatenate(list(begin.order.values()))
    rows = rows[ops.instance[rows] >= 0]
    rows = rows[np.argsort(ops.instance[rows], kind="stable")]
    known, first = np.unique(ops.instance[rows], return_index=True)
    members = dict(zip(known.tolist(), np.split(rows, first[1:]), strict=bool(len(rows))))
    waiting = [(int(ops.rank[row]), int(place[row])) for row in _broken(ops, begin, members)]
    while waiting:
        rank, length = waiting.pop()
        if length >= begin.length[rank]:
            continue
        dropped = begin.order[rank][length : begin.length[rank]]
        begin.length[rank] = length
        waiting += [(mate, length) for mate in mates.get(rank, ())]
        for instance in np.unique(ops.instance[dropped]).tolist():
            waiting += [(int(ops.rank[row]), int(place[row])) for row in members.pop(instance, ())]
    for group in alike:
        begun = [r for r in group if r in begin.order]
        if len({tuple(ops.op[begin.order[r][: begin.length[r]]]) for r in begun}) > 1:
            return None
    return {r: rows[: begin.length[r]] for r, rows in begin.order.items()}


def _in_order(ops: Operations, number: int) -> tuple[_Begin, I64]:
    """Return the operations of step `number` in order of issue, and the position of each one's kernel in that order."""
    order: dict[int, I64] = {}
    place = np.zeros(len(ops.start), np.int64)
    for rank in ops.ranks:
        where = ops.of(rank)
        rows = np.flatnonzero(ops.step[where] == number)
        rows = where.start + rows[np.lexsort((rows, ops.per_rank[rank].issued[rows]))]
        begins = np.append(True, np.diff(ops.kernel[rows]) != 0)[: len(rows)]
        place[rows] = np.maximum.accumulate(np.where(begins, np.arange(len(rows)), 0))
        order[rank] = rows
    return _Begin(order, {r: len(rows) for r, rows in order.items()}), place


def _broken(ops: Operations, begin: _Begin, members: dict[int, I64]) -> list[int]:
    """Return the operations of the step that some recorded member lacks; unknown groups do not count."""
    recorded = set(ops.ranks)
    expected = [len(recorded.intersection(c.members)) for c in ops.channels]
    return [
        row
        for rows in begin.order.values()
        for row in rows.tolist()
        if ops.channel[row] >= 0
        and expected[ops.channel[row]] > len(members.get(int(ops.instance[row]), (row,)))
    ]


def _cut(ops: Operations, number: int, kept: dict[int, I64]) -> Operations:
    """Return `ops` with only the operations `kept` in step `number`, and later ones outside steps."""
    step: I32 = np.where(ops.step >= number, NO_STEP, ops.step).astype(np.int32)
    for rows in kept.values():
        step[rows] = number
    mine = {r: replace(o, step=step[ops.of(r)], worked={}) for r, o in ops.per_rank.items()}
    return replace(ops, step=step, per_rank=mine)


def with_cut(ops: Operations, steps: Steps, number: int | None) -> Steps:
    """Return `steps` with the part of whole steps that step `number` holds, as windows cut it; unchanged without it.

    In order of issue it ends with the same operation as a whole step with as many operations of the rank before.
    """
    if number not in steps.numbers:
        return steps
    uncut = np.array([c for c, n in enumerate(steps.numbers) if n != number], np.int64)
    last, own, wall = np.full(steps.own.shape, -1), *np.full((2, *steps.own.shape), np.nan)
    for row, rank in enumerate(steps.ranks):
        where, issued = ops.of(rank), ops.per_rank[rank].issued
        held = int((ops.step[where] == number).sum())
        for column in uncut[np.isfinite(steps.own[row, uncut])].tolist() if held else ():
            rows = np.flatnonzero(ops.step[where] == steps.numbers[column])
            rows = where.start + rows[np.lexsort((rows, issued[rows]))]
            of_part, of_step = (int(part[np.argmax(ops.end[part])]) for part in (rows[:held], rows))
            last[row, column], wall[row, column] = of_part, ops.end[of_step] - ops.end[of_part]
            own[row, column] = ops.at_end[of_step] - ops.at_end[of_part]
    known = np.isfinite(wall)
    share = 1.0 - float(wall[known].sum() / steps.wall[known].sum()) if known.any() else 1.0
    return replace(steps, cut=CutStep(number, share, last, own, wall))


def with_tails(ops: Operations, steps: Steps) -> Steps:
    """Return `steps` with the work behind the last communication of each run of them counted at its first step.

    A step ends with its last communication, so that what comes behind it delays the next step. A run that begins with
    its recording lacks that in its first step, and has recorded it behind its last one.
    """
    if not steps.labelled:
        return steps
    tail, ends = np.zeros(steps.own.shape), np.zeros(steps.own.shape)
    for row, rank in enumerate(steps.ranks):
        known = np.flatnonzero(np.isfinite(steps.own[row]))
        numbers = np.array(steps.numbers, np.int64)[known]
        for run in np.split(known, np.flatnonzero(np.diff(numbers) != 1) + 1):
            if len(run) and _opens(ops, rank, steps.numbers[run[0]]):
                place = row, run[0]
                tail[place], ends[place] = _tail(ops, rank, steps.numbers[run[0]], steps.numbers[run[-1]])
    own, wall, begin = steps.own + tail, steps.wall + tail, steps.begin - tail
    return replace(steps, own=own, wall=wall, begin=begin, tail=tail, tail_ends=ends)


def _opens(ops: Operations, rank: int, number: int) -> bool:
    """Return whether a marked step begins with its mark: no operation of its capture was issued before it."""
    source, mine = ops.per_rank[rank], ops.step[ops.of(rank)] == number
    ahead = (source.issued < source.issued[mine].min()) & ~mine
    return number in source.worked and (after_a_gap(source.steps, number) or not ahead.any())


def _tail(ops: Operations, rank: int, first: int, last: int) -> tuple[float, float]:
    """Return (own time of a rank behind the last operation of the step `last`, its end), ns; a later operation ends it.

    What the device had left to do when the step `first` began is counted there already.
    """
    where, source = ops.of(rank), ops.per_rank[rank]
    mine = ops.step[where] == last
    begin = int(ops.end[where][mine].max())
    later = ops.start[where][~mine & (source.issued > source.issued[mine].max())]
    end = max(begin, min(source.worked[last][1], int(later.min(initial=np.iinfo(np.int64).max))))
    left = source.worked[first][0] - source.steps[first][0]
    reading = ops.progress[rank].at(np.array([begin, end], np.int64))
    return max(float(reading[1] - reading[0]) - left, 0.0), float(end)


def common_part(ops: Operations) -> Operations:
    """Return `ops` with the operations that all recorded members have as step 0, and the others outside steps."""
    sizes = np.array([len(set(c.members).intersection(ops.ranks)) for c in ops.channels] or [0], np.int64)
    known = ops.instance >= 0
    counts = np.bincount(ops.instance[known], minlength=1)
    whole = known & (counts[np.maximum(ops.instance, 0)] == sizes[np.maximum(ops.channel, 0)])
    step: I32 = np.where(whole, 0, NO_STEP).astype(np.int32)
    mine = {r: replace(o, step=step[ops.of(r)], steps={}) for r, o in ops.per_rank.items()}
    return replace(ops, step=step, per_rank=mine)


def odd_columns(ops: Operations, steps: Steps, row: int) -> list[int]:
    """Return the columns of the rank's steps that additional operations made long."""
    rank = steps.ranks[row]
    source, labels = ops.per_rank[rank], ops.step[ops.of(rank)]
    kind = numbered_rows(numbered(source.op)[1], source.group)[1]
    kinds, ends = {}, {}
    for column in np.flatnonzero(np.isfinite(steps.wall[row])).tolist():
        rows = np.flatnonzero(labels == steps.numbers[column])
        rows = rows[np.lexsort((rows, source.issued[rows]))]
        kinds[column] = tuple(kind[rows].tolist())
        ends[column] = source.end[rows]
    usual, often = Counter(kinds.values()).most_common(1)[0] if kinds else ((), 0)
    if often < 2:
        return []
    wall = steps.wall[row]
    typical = float(np.median([wall[c] for c, k in kinds.items() if k == usual]))
    found = []
    for column, mine in kinds.items():
        more = inserted(mine, usual)
        if more is None or wall[column] < KIND_RATIO * typical:
            continue
        end, (first, behind) = ends[column], more
        before = float(end[:first].max()) if first else float(end.max()) - float(wall[column])
        if float(end[first:behind].max()) - before >= MAJORITY * (float(wall[column]) - typical):
            found.append(column)
    return found
