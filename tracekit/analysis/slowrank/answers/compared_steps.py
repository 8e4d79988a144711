"""Whether the steps that are compared are the right ones, and what the recording holds beside them.

A step with additional operations, as a checkpoint or an evaluation, is left out: a rank that is late for them need not
be late for the step. Inferred steps must last equally long on ranks that do the same work. A profiler's window seldom
begins and ends with a step: a device that was slow in the part before the first whole step, or after the last, has no
price, but excludes a healthy answer; work is compared from the border that all ranks share, as far as all recorded it,
and nearly all kernels must be longer.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from tracekit.analysis.slowrank.evidence import Evidence, Gap
from tracekit.analysis.slowrank.price import Price
from tracekit.analysis.slowrank.suspects import suspect_of
from tracekit.case.case import Case, without_steps
from tracekit.case.wording import fewest_traces, listed, of_step, ranks_in_words
from tracekit.causes import GPU_COMPUTE
from tracekit.expected.excess import fills_step
from tracekit.findings import Quality
from tracekit.steps.step_ends import odd_columns
from tracekit.steps.step_kernels import kernels_between, longer_than_inside, longer_than_peers
from tracekit.steps.steps import windows_of
from tracekit.thresholds.slowrank import (
    MAJORITY,
    NO_ACCIDENT,
    PEERS_SAMPLED,
    RANKS_SAMPLED,
    STAGE_TELLING_PEERS,
)
from tracekit.timing.waits import longer_outside
from tracekit.units import F64, ms


@dataclass(frozen=True)
class _Part:
    """What a rank recorded before its first compared step or after its last, ns of its clock; own time an operation."""

    begin: int
    end: int
    pace: float


@dataclass(frozen=True)
class SlowOutside:
    """A rank with a slow device outside the compared steps: its row of Steps, the factor, and the side."""

    row: int
    factor: float
    before: bool
    beside_peers: bool  # else beside itself: no peer recorded these kernels


def slow_outside_steps(e: Evidence) -> Iterator[Gap]:
    """A device was slow in a part of a step that was not compared."""
    case, found = e.case, slow_outside(e.case)
    if found is None:
        return
    rank, many = case.steps.ranks[found.row], len(case.steps.numbers)
    where = "before the first" if found.before else "after the last"
    longer = (found.factor - 1) * float(np.nanmedian(case.steps.own[found.row]))
    than, decide = "as inside these steps, and no peer recorded these kernels", f"{ALL_RANKS}; {_RECURS}"
    if found.beside_peers:
        than, decide = "as its peers', but no longer inside these steps", _RECURS
    what = (
        f"nearly all kernels of rank {rank} that were recorded {where} of the {many} compared steps take "
        f"{found.factor:.2f} times as long {than}: the fault may come and go"
    )
    candidate = suspect_of(case, found.row, Price.up_to(longer, longer), 0.0, GPU_COMPUTE, ())
    yield Gap(what, longer, decide, (candidate,))


_RECURS: Final = "record more whole steps: a fault that comes and goes recurs in some"
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
            yield Gap(what, longer, f"{fewest_traces(case, unseen)}; {_RECURS}")


def slow_outside(case: Case) -> SlowOutside | None:
    """The rank with the slowest device outside the compared steps; None where none could cost the threshold."""
    found: list[SlowOutside] = []
    for before in (True, False):
        for stage in case.stages:
            parts = {row: part for row in stage.tolist() if (part := _part(case, row, before=before))}
            found += _slow(case, parts, before=before)
    return max(found, key=lambda f: f.factor, default=None)


def _slow(case: Case, parts: dict[int, _Part], *, before: bool) -> list[SlowOutside]:
    """The ranks of one stage with kernels that are longer than their peers' kernels in these parts.

    In stages of more than `RANKS_SAMPLED` ranks only the ranks with the longest operations are judged.
    """
    long = list(parts)
    if len(parts) > RANKS_SAMPLED:
        slowest = sorted(parts, key=lambda row: -parts[row].pace)
        long = slowest[:RANKS_SAMPLED]
        parts = {row: parts[row] for row in (*long, *slowest[len(slowest) // 2 :][:PEERS_SAMPLED])}
    if len(parts) < STAGE_TELLING_PEERS:
        return []
    kernels = {}
    for row, part in parts.items():
        read = kernels_between(case.run, case.ops, case.steps.ranks[row], part.begin, part.end)
        kernels[row] = read.reversed() if before else read  # from the border of the steps on
    found = []
    for row in long:
        others = [k for r, k in kernels.items() if r != row]
        compared = longer_than_peers(kernels[row], others)
        alone = longer_than_inside(kernels[row], case.kernels(row), others, before=before)
        for longer in (compared, alone):
            own = longer.ns * np.nanmedian(case.steps.own[row])
            worth = own >= case.threshold_ns * longer.whole > 0
            if worth and fills_step(longer, longer.ns):
                found.append(SlowOutside(row, 1 + longer.ns / longer.whole, before, longer is compared))
    return found


def _part(case: Case, row: int, *, before: bool) -> _Part | None:
    """What the rank in `row` recorded on one side of its steps; None without a device, or without a whole step."""
    ops, rank = case.ops, case.steps.ranks[row]
    columns = np.flatnonzero(np.isfinite(case.steps.own[row])).tolist()
    source = ops.per_rank[rank]
    if not columns or not source.on_gpu:
        return None
    begins, ends = windows_of(ops, case.steps, rank, columns)
    border = int(begins.min()) if before else int(ends.max())
    edge = source.window[0 if before else 1]
    outside = source.end <= border if before else source.start >= border
    begin, end = sorted((border, edge))
    own = np.diff(ops.progress[rank].at(np.array([begin, end])))[0]
    return _Part(begin, end, float(own) / max(int(outside.sum()), 1))


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
