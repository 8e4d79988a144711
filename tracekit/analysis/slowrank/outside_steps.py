"""Devices that were slow in what the windows hold of other steps than those that were compared.

A profiler's window seldom begins and ends with a step. A fault that comes and goes may lie in the part of a step before
the first whole one, or behind the last: no step tells what that cost, but nobody may call the job healthy then. Work is
compared from the border that all ranks have, as far as all recorded it; nearly all kernels must be longer.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from tracekit.analysis.slowrank.case import Case
from tracekit.analysis.slowrank.suspects import Answer, suspect_of
from tracekit.analysis.slowrank.throttled import fills_step
from tracekit.tables.compute_time import windows_of
from tracekit.tables.intervals import I64
from tracekit.tables.longer_kernels import longer_kernels
from tracekit.tables.operation_names import UNDIRECTED
from tracekit.tables.step_kernels import StepKernels, kernels_between
from tracekit.thresholds.slowrank import MIN_LOST_SHARE, PEERS_SAMPLED, RANKS_SAMPLED, STAGE_TELLING_PEERS
from tracekit.units import ms


@dataclass(frozen=True)
class _Part:
    """Operations of a rank before its first compared step (latest first) or behind its last; times in ns.

    `own` is the rank's own time from the border to the far side of each operation, `until` wall time of that side.
    """

    kinds: tuple[str, ...]
    own: I64
    until: I64
    border: int


@dataclass(frozen=True)
class SlowOutside:
    """A rank whose device was slow beside the compared steps: its row of Steps, by which factor, and where."""

    row: int
    factor: float
    before: bool


def slow_outside_answer(case: Case) -> Answer | None:
    """The answer that a device was slow in a part of a step that was not compared; None where none was."""
    found = slow_outside(case)
    if found is None:
        return None
    rank, many = case.steps.ranks[found.row], len(case.steps.numbers)
    where = "before the first" if found.before else "behind the last"
    longer = (found.factor - 1) * float(np.nanmedian(case.steps.own[found.row]))
    reason = (
        f"nearly all kernels of rank {rank} take {found.factor:.2f} times as long as its peers' in what was recorded "
        f"{where} of the {many} steps that were compared, and no longer in these: the fault may come and go"
    )
    candidate = replace(
        suspect_of(case, found.row, longer, 0.0, "gpu_compute", ()), lost_ms_low=0.0, lost_ms_high=ms(longer)
    )
    decide = "record more whole steps: a fault that comes and goes recurs in some"
    return Answer("inconclusive", "unknown", reason, candidates=(candidate,), to_decide=decide)


def slow_outside(case: Case) -> SlowOutside | None:
    """The rank whose device was slowest beside the compared steps; None where none could cost enough."""
    found: list[SlowOutside] = []
    for before in (True, False):
        for stage in case.stages:
            parts = {row: part for row in stage.tolist() if (part := _part(case, row, before=before))}
            found += _slow(case, parts, before=before)
    return max(found, key=lambda f: f.factor, default=None)


def _slow(case: Case, parts: dict[int, _Part], *, before: bool) -> list[SlowOutside]:
    """The ranks among those of one stage whose kernels are longer than their peers' in these parts."""
    parts = _alike(parts)
    if len(parts) < STAGE_TELLING_PEERS:
        return []
    rows, own = list(parts), np.array([p.own[-1] for p in parts.values()], np.float64)
    usual = float(np.median(own))
    step = np.array([np.nanmedian(case.steps.own[row]) for row in rows])
    over = own / usual - 1 if usual > 0 else np.zeros(len(own))
    worst = np.argsort(-over, kind="stable")[:RANKS_SAMPLED]
    long = [rows[i] for i in worst.tolist() if over[i] * step[i] >= MIN_LOST_SHARE * case.step_ns]
    peers = [row for row in rows if row not in long]
    if not long or not peers:
        return []
    beside = [_kernels(case, row, parts[row], before=before) for row in _some(peers)]
    found = []
    for row in long:
        longer = longer_kernels(_kernels(case, row, parts[row], before=before), beside, 0)
        if fills_step(longer, float(parts[row].own[-1] - usual)):
            found.append(SlowOutside(row, float(parts[row].own[-1] / usual), before))
    return found


def _some(peers: Sequence[int]) -> Sequence[int]:
    return peers[:: max(1, len(peers) // PEERS_SAMPLED)][:PEERS_SAMPLED]


def _alike(parts: dict[int, _Part]) -> dict[int, _Part]:
    """The parts cut to what the same ranks recorded, of as many ranks as hold most together, without the others."""
    counts = np.array([len(p.kinds) for p in parts.values()])
    shared = {n: n * int((counts >= n).sum()) for n in sorted(set(counts.tolist()))}
    count = max(shared, key=lambda n: shared[n], default=0)
    long = {row: p for row, p in parts.items() if len(p.kinds) >= count}
    kinds = [p.kinds[:count] for p in long.values()]
    usual = max(sorted(set(kinds)), key=kinds.count, default=())
    return {
        row: replace(p, kinds=usual, own=p.own[:count], until=p.until[:count])
        for row, p in long.items()
        if p.kinds[:count] == usual
    }


def _part(case: Case, row: int, *, before: bool) -> _Part | None:
    """What the rank in `row` recorded on one side of its compared steps; None without operations there."""
    ops, rank = case.ops, case.steps.ranks[row]
    columns = np.flatnonzero(np.isfinite(case.steps.own[row])).tolist()
    if not columns or not ops.per_rank[rank].on_gpu:
        return None
    begins, ends = windows_of(ops, case.steps, rank, columns)
    border = int(begins.min()) if before else int(ends.max())
    here = ops.of(rank)
    start, end = ops.start[here], ops.end[here]
    beside = np.asarray(end <= border if before else start >= border)
    message = np.isin(
        ops.op[here].astype(str), UNDIRECTED
    )  # on streams of their own, they keep no common order
    rows = np.flatnonzero(beside & ~message)
    if not len(rows):
        return None
    rows = rows[np.lexsort((rows, -start[rows] if before else start[rows]))]
    far = start[rows] if before else end[rows]
    own = np.abs(ops.progress[rank].at(far) - ops.progress[rank].at(np.array([border], np.int64)))
    return _Part(tuple(ops.op[here][rows].tolist()), own, far, border)


def _kernels(case: Case, row: int, part: _Part, *, before: bool) -> StepKernels:
    """The kernels of a part, the one at the border first."""
    begin, end = sorted((part.border, int(part.until[-1])))
    found = kernels_between(case.run, case.ops, case.steps.ranks[row], begin, end)
    return found.reversed() if before else found
