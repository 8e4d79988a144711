"""Devices that were slow in the recorded parts of steps that were not compared.

A profiler's window seldom begins and ends with a step. An intermittent fault may lie in the part of a step before the
first whole one, or after the last. No step shows its price, but it excludes a healthy answer. Work is compared from the
border that all ranks share, as far as all recorded it; nearly all kernels must be longer.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from tracekit.analysis.slowrank.case import Case
from tracekit.analysis.slowrank.expected.throttled import fills_step
from tracekit.analysis.slowrank.price import Price
from tracekit.analysis.slowrank.suspects import Answer, left_open, suspect_of
from tracekit.intervals import I64
from tracekit.matching.match import Mask
from tracekit.rank_events.operation_names import UNDIRECTED
from tracekit.steps.compute_time import windows_of
from tracekit.steps.longer_kernels import LongerKernels, longer_kernels
from tracekit.steps.step_kernels import StepKernels, kernels_between
from tracekit.thresholds.slowrank import MIN_LOST_SHARE, PEERS_SAMPLED, RANKS_SAMPLED, STAGE_TELLING_PEERS


@dataclass(frozen=True)
class _Part:
    """Operations of a rank before its first compared step (latest first) or after its last; times in ns.

    `own` is the rank's own time from the border to the far side of each operation, `until` wall time of that side.
    """

    kinds: tuple[str, ...]
    own: I64
    until: I64
    border: int


@dataclass(frozen=True)
class SlowOutside:
    """A rank with a slow device outside the compared steps: its row of Steps, the factor, and the side."""

    row: int
    factor: float
    before: bool


def slow_outside_answer(case: Case) -> Answer | None:
    """The open answer that a device was slow in a part of a step that was not compared; None where none was."""
    found = slow_outside(case)
    if found is None:
        return None
    rank, many = case.steps.ranks[found.row], len(case.steps.numbers)
    where = "before the first" if found.before else "after the last"
    longer = (found.factor - 1) * float(np.nanmedian(case.steps.own[found.row]))
    reason = (
        f"nearly all kernels of rank {rank} that were recorded {where} of the {many} compared steps take "
        f"{found.factor:.2f} times as long as its peers', but no longer inside these steps: the fault may come and go"
    )
    candidate = suspect_of(case, found.row, Price.up_to(longer, longer), 0.0, "gpu_compute", ())
    decide = "record more whole steps: a fault that comes and goes recurs in some"
    return left_open(reason, decide, (candidate,))


def slow_outside(case: Case) -> SlowOutside | None:
    """The rank with the slowest device outside the compared steps; None where none could cost the threshold."""
    found: list[SlowOutside] = []
    compared = ~case.ops.among(UNDIRECTED)  # messages on streams of their own keep no common order
    for before in (True, False):
        for stage in case.stages:
            parts = {
                row: part for row in stage.tolist() if (part := _part(case, row, compared, before=before))
            }
            found += _slow(case, parts, before=before)
    return max(found, key=lambda f: f.factor, default=None)


def _slow(case: Case, parts: dict[int, _Part], *, before: bool) -> list[SlowOutside]:
    """The ranks of one stage with kernels that are longer than their peers' kernels in these parts.

    In stages of more than `RANKS_SAMPLED` ranks only the ranks that took longest for the same operations are judged.
    """
    long = list(parts)
    if len(parts) > RANKS_SAMPLED:
        same_parts = _alike(parts)
        slowest = sorted(same_parts, key=lambda row: -int(same_parts[row].own[-1]))
        long = slowest[:RANKS_SAMPLED]
        parts = {row: same_parts[row] for row in (*long, *slowest[len(slowest) // 2 :][:PEERS_SAMPLED])}
    if len(parts) < STAGE_TELLING_PEERS:
        return []
    kernels = {row: _kernels(case, row, part, before=before) for row, part in parts.items()}
    found = []
    for row in long:
        longer = _beside_peers(kernels[row], [k for r, k in kernels.items() if r != row])
        worth = longer.ns * np.nanmedian(case.steps.own[row]) >= MIN_LOST_SHARE * case.step_ns * longer.whole
        if longer.whole > 0 and worth and fills_step(longer, longer.ns):
            found.append(SlowOutside(row, 1 + longer.ns / longer.whole, before))
    return found


def _beside_peers(mine: StepKernels, others: Sequence[StepKernels]) -> LongerKernels:
    """The comparison of kernels with those of the peers that recorded most, over the length that all of them hold."""
    longest = sorted((len(k.name) for k in others), reverse=True)[:PEERS_SAMPLED]
    peers = [
        k for k in others if len(k.name) >= longest[-1]
    ]  # with ties, so that the order of ranks does not matter
    count = min(len(mine.name), longest[-1])
    return longer_kernels(mine.first(count), [k.first(count) for k in peers], 0)


def _alike(parts: dict[int, _Part]) -> dict[int, _Part]:
    """The parts cut to one length and one set of operations, so that ranks × length is largest; others dropped."""
    counts = np.array([len(p.kinds) for p in parts.values()])
    shared = {n: n * int((counts >= n).sum()) for n in sorted(set(counts.tolist()))}
    count = max(shared, key=lambda n: shared[n], default=0)
    long = {row: p for row, p in parts.items() if len(p.kinds) >= count}
    kinds = [_sorted(p, count) for p in long.values()]
    usual = max(sorted(set(kinds)), key=kinds.count, default=())
    return {
        row: replace(p, kinds=usual, own=p.own[:count], until=p.until[:count])
        for row, p in long.items()
        if _sorted(p, count) == usual
    }


def _sorted(part: _Part, count: int) -> tuple[str, ...]:
    """The first `count` kinds of a part, sorted, because the order between streams depends on the rank's speed."""
    return tuple(sorted(part.kinds[:count]))


def _part(case: Case, row: int, compared: Mask, *, before: bool) -> _Part | None:
    """The operations of the rank in `row` on one side of its steps; None without any that are `compared`."""
    ops, rank = case.ops, case.steps.ranks[row]
    columns = np.flatnonzero(np.isfinite(case.steps.own[row])).tolist()
    if not columns or not ops.per_rank[rank].on_gpu:
        return None
    begins, ends = windows_of(ops, case.steps, rank, columns)
    border = int(begins.min()) if before else int(ends.max())
    here = ops.of(rank)
    start, end = ops.start[here], ops.end[here]
    beside = np.asarray(end <= border if before else start >= border)
    rows = np.flatnonzero(beside & compared[here])
    if not len(rows):
        return None
    rows = rows[np.lexsort((rows, -start[rows] if before else start[rows]))]
    far = start[rows] if before else end[rows]
    own = np.abs(ops.progress[rank].at(far) - ops.progress[rank].at(np.array([border], np.int64)))
    return _Part(tuple(ops.op[here][rows].tolist()), own, far, border)


def _kernels(case: Case, row: int, part: _Part, *, before: bool) -> StepKernels:
    """The kernels of a part, beginning at the border."""
    begin, end = sorted((part.border, int(part.until[-1])))
    found = kernels_between(case.run, case.ops, case.steps.ranks[row], begin, end)
    return found.reversed() if before else found
