"""Whether the steps that are compared are the right ones, and what the recording holds beside them.

A step with additional operations, as a checkpoint or an evaluation, is left out: a rank that is late for them need not
be late for the step. Inferred steps must last equally long on ranks that do the same work. A profiler's window seldom
begins and ends with a step: a device that was slow in the part before the first whole step, or after the last, has no
price, but excludes a healthy answer; work is compared from the border that all ranks share, as far as all recorded it,
and nearly all kernels must be longer.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import Final

import numpy as np

from tracekit.analysis.slowrank.evidence import Evidence, Gap
from tracekit.analysis.slowrank.gaps.evidence_gaps import more_steps
from tracekit.analysis.slowrank.suspects import up_to
from tracekit.case.case import Case, without_steps
from tracekit.case.cures import saved_ns
from tracekit.case.wording import fewest_traces, listed, of_step, ranks_in_words
from tracekit.causes import GPU_COMPUTE
from tracekit.expected.excess import fills_step
from tracekit.findings import Quality
from tracekit.steps.step_ends import odd_columns
from tracekit.steps.step_kernels import (
    StepKernels,
    kernels_recorded,
    longer_beside,
    longer_kernels,
    whole_columns,
)
from tracekit.steps.steps import windows_of
from tracekit.thresholds.slowrank import MAJORITY, NO_ACCIDENT, PEERS_SAMPLED, RANKS_SAMPLED
from tracekit.timing.waits import longer_outside
from tracekit.units import F64, ms

_Spent = Callable[[int], tuple[float, float]]  # `_beside` of a row, kept


def slow_at_times(e: Evidence) -> Iterator[Gap]:
    """A device was slow throughout some of the compared steps, or in a part of a step that was not compared."""
    yield from slow_in_some(e, compared=False)


def slow_in_some(e: Evidence, *, compared: bool) -> Iterator[Gap]:
    """Yield the gaps of `slow_at_times`, on the `compared` steps alone or on the parts beside them as well."""
    case, read = e.case, cache(partial(kernels_recorded, e.case.run, e.case.ops, e.case.steps))
    spent = cache(partial(_beside, case))
    for row in _rows_to_ask(e, spent, compared=compared):
        slow, whole = _slow_parts(e, row, read, spent), whole_columns(case.steps, row)
        own = case.steps.own.copy()
        struck = [column for column in slow if column in whole]
        own[row, struck] -= [min(slow[column], own[row, column]) for column in struck]
        beside = {} if compared else {column: slow[column] for column in slow if column not in struck}
        lost = max(saved_ns(case, np.array([row]), own) if struck else 0.0, *beside.values(), 0.0)
        where = [f"in step {listed([case.steps.numbers[c] for c in struck])}"] if struck else []
        where += ["before the first whole step"] if any(c < whole[0] for c in beside) else []
        where += ["after the last whole step"] if any(c > whole[0] for c in beside) else []
        what = (
            f"nearly all kernels of rank {case.steps.ranks[row]} {' and '.join(where)} are longer than the same "
            f"kernels of its peers and its other steps, which costs up to {of_step(case, lost)}: it may come and go"
        )
        if struck or beside:
            yield Gap(what, lost, f"{more_steps(case)}: {_RECURS}", up_to(case, {row: lost}, GPU_COMPUTE))


def _rows_to_ask(e: Evidence, spent: _Spent, *, compared: bool) -> list[int]:
    """The rows of devices that may be slow at times: by their excess, or in a stage by operations beside the steps."""
    case, over = e.case, np.maximum(np.nan_to_num(e.case.found.value), 0.0).sum(axis=1)
    rows = np.argsort(-over)[: min(RANKS_SAMPLED, (over >= e.least * case.steps.count).sum())].tolist()
    for stage in () if compared else case.stages:
        there = [row for row in stage.tolist() if case.on_gpu(row) and whole_columns(case.steps, row)]
        rows += sorted(there, key=lambda row: -spent(row)[1])[:RANKS_SAMPLED]
    return [row for row in dict.fromkeys(rows) if case.on_gpu(row) and case.beside(row, (row,))]


def _slow_parts(e: Evidence, row: int, read: Callable[[int], StepKernels], spent: _Spent) -> dict[int, float]:
    """Return column → the excess of nearly all kernels of the rank in `row` there, ns a step; kernels as `read`."""
    case, whole, slow = e.case, whole_columns(e.case.steps, row), dict[int, float]()
    over, usual = np.nan_to_num(case.found.value[row]), float(np.nanmedian(case.steps.own[row]))
    others = sorted(case.beside(row, (row,)), key=lambda r: -spent(r)[0])[:PEERS_SAMPLED]
    mine, *peers = (read(r) for r in (row, *others))
    for column in np.unique(mine.column).tolist():
        if column in whole and over[column] > e.least:
            longer = longer_kernels(mine.only(whole), peers, column)
            most = longer.ns
        elif column not in whole:
            longer = longer_beside(mine, peers, column, whole)
            most = usual * longer.ns / max(longer.whole, 1.0)
        else:
            continue
        if fills_step(longer, longer.ns) and most >= e.least:
            slow[column] = most
    return slow


_RECURS: Final = "a fault that comes and goes recurs in some"
ALL_RANKS: Final = "start and stop the profiler on all ranks at the same steps"


def unseen_late_outside(e: Evidence) -> Iterator[Gap]:
    """Operations with a rank that left no trace typically last longer outside the compared steps than in them."""
    case, missing, order = e.case, frozenset(e.case.missing), np.argsort(e.case.ops.channel, kind="stable")
    bounds = np.searchsorted(case.ops.channel[order], np.arange(len(case.ops.channels) + 1))
    for channel, mine in zip(case.ops.channels, np.split(order, bounds)[1:], strict=False):
        unseen = sorted(missing.intersection(channel.members))
        longer = longer_outside(case.ops, case.analysed, mine) / case.steps.count if unseen else 0.0
        if longer >= e.least:
            what = (
                f"operations with {ranks_in_words(unseen)}, which left no trace, last {of_step(case, longer)} longer "
                "outside the compared steps: the fault may come and go"
            )
            yield Gap(what, longer, f"{fewest_traces(case, unseen)}; {more_steps(case)}: {_RECURS}")


def _beside(case: Case, row: int) -> tuple[float, float]:
    """The own time of the rank in `row` beside its whole steps, ns, and the longer one of both sides an operation."""
    ops, rank, whole = case.ops, case.steps.ranks[row], whole_columns(case.steps, row)
    if not whole:
        return 0.0, 0.0
    source, (begins, ends) = ops.per_rank[rank], windows_of(ops, case.steps, rank, whole)
    times = np.array([source.window[0], begins[0], ends[-1], source.window[1]], np.int64)
    own = np.diff(ops.progress[rank].at(times))[::2]
    many = (source.end <= begins[0]).sum(), (source.start >= ends[-1]).sum()
    return float(own.sum()), float((own / np.maximum(many, 1)).max())


def without_odd_steps(case: Case) -> Case:
    """`case` without its odd steps; unchanged where there are none, or where too few steps would remain.

    What recurs belongs to the training, as a second loss in each fourth step, and a rank that is late there costs it.
    """
    odd = odd_steps(case)
    many = len(case.steps.numbers)
    if not odd or len(odd) >= NO_ACCIDENT or many - len(odd) < max(2, MAJORITY * many):
        return case
    detail = f"left out because operations that other steps lack made them long, as a checkpoint does: {listed(odd)}"
    return without_steps(case, odd, Quality("odd_steps", None, len(odd), detail))


def odd_steps(case: Case) -> tuple[int, ...]:
    """The numbers of the steps that are long because they hold operations that the usual ones do not."""
    if not (case.steps.labelled and case.steps.cut is None and case.timeline is not None):
        return ()
    rows = range(len(case.steps.ranks))
    votes = Counter(column for row in rows for column in odd_columns(case.ops, case.steps, row))
    most = MAJORITY * len(case.steps.ranks)
    return tuple(case.steps.numbers[c] for c, often in sorted(votes.items()) if often > most)


def steps_are_unequal(e: Evidence) -> Iterator[Gap]:
    """The traces mark no steps, and the repetitions used as steps last longer on one rank than on its peers.

    Such ranks end each step together, so only a wrongly inferred begin makes the steps of one rank shorter. Its own
    time is short by the same amount, which may hide that it is slow. Nothing where the steps are marked or agree, or
    where the longer ones only wait longer: a late profiler start makes a rank join its first operation late.
    """
    case = e.case
    if all(q.kind != "no_step_marks" for q in case.run.quality):
        return
    apart = 0.0
    for rows in case.stages:
        wall, own = case.steps.wall[rows], case.steps.own[rows]
        known = ~np.isnan(wall) & ~np.isnan(own)
        early = [
            _begun_early_ns(w[k], o[k]) for w, o, k in zip(wall.T, own.T, known.T, strict=True) if k.any()
        ]
        apart = max(apart, float(np.mean(early)) if early else 0.0)
    if apart < e.least:
        return
    what = (
        "the traces mark no steps, and the repetitions used as steps last up to "
        f"{ms(apart):.1f} ms of {ms(case.step_ns):.1f} ms longer on one rank than on another, although both ranks end "
        "them together: the own times of these ranks cannot be compared"
    )
    yield Gap(
        what, apart, "record again with the steps marked: call the profiler's step() at the end of each"
    )


def _begun_early_ns(wall: F64, own: F64) -> float:
    """The excess of one step on the ranks that began it early, ns: the lesser of its wall time and its own time."""
    short, long = wall.min(), wall.max()
    early = wall > (short + long) / 2
    if early.all() or not early.any():
        return 0.0
    longer = float(np.median(own[early]) - np.median(own[~early]))
    return min(float(long - short), max(longer, 0.0))
