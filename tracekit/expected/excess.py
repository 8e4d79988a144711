"""Which ranks work longer than their peers, and whether that is more than chance.

Peers of a rank do the same work: same pipeline stage, any data, context or tensor index.
"""

import sys
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from functools import cache

import numpy as np

from tracekit.causes import BY_SPANS
from tracekit.expected.equal_work import Peers
from tracekit.findings import Cause
from tracekit.step_graph.delays import levels
from tracekit.step_graph.statistics import Excess, chance_of, errors_of_chance, excess, usual_of_others
from tracekit.steps.medians import of_rows, sampled
from tracekit.steps.step_kernels import (
    LongerKernels,
    StepKernels,
    beside_steps,
    longer_kernels,
    whole_columns,
)
from tracekit.thresholds.slowrank import (
    CANDIDATE_SHARE,
    CHANCE,
    LITTLE_SHARE,
    MAJORITY,
    MIN_LOST_SHARE,
    MINOR,
    NEARLY_ALL,
    NO_ACCIDENT,
    NOISE_FLOOR,
    ONE_STEP_P,
    RANKS_SAMPLED,
    STEP_PARTS,
)
from tracekit.timing.measured import Measured, Rows
from tracekit.units import F64, I64, Mask


def typical(own: F64, peers: Peers) -> F64:
    """The own time of each rank and step if the rank works like the median of its peers; its own where it has none.

    `own` and the result are ranks × steps, ns.
    """
    usual = usual_of_others(own, peers.groups, peers.usual)
    return np.where(np.isfinite(usual), usual, own)


def rank_excess(run: Measured, own: F64, peers: Peers) -> Excess:
    """The own-time excess of every rank over its peers; its significance over steps, or over collectives of one step.

    `own` are own times (ranks × steps, ns), less known confounders. An excess that one step alone explains is an
    accident, with a z of 0 unless the device was slow throughout that step. `named_stalls` are excess, and not noise.
    """
    steps = run.steps
    found = per_step(run, over_peers(run, own, peers), peers)
    if len(steps.numbers) > 1:
        if (named := named_stalls(run, own, found.value)) is not None:
            found = per_step(run, over_peers(run, own, peers, named), peers)
        lasting = recurs(found.value / steps.shares, run.step_ns)
        once = throttled(run, found, lasting)
        lasting[list(once)] = True
        return replace(found, z=np.where(lasting, found.z, np.minimum(found.z, 0.0)), throughout=once)
    longest = run.longest_waits
    often = [_z_of_coming_last(run, rank, longest) for rank in steps.ranks]
    z = np.where(found.mean > 0, often, 0.0)
    limit = errors_of_chance(ONE_STEP_P / max(len(steps.ranks), 1))
    once = throttled(run, found, z > limit)
    z[list(once)] = found.z[list(once)]
    return replace(found, z=z, limit=limit, throughout=once)


def over_peers(run: Measured, spent: F64, peers: Peers, named: F64 | float = 0.0) -> Excess:
    """Return the excess of what ranks `spent` (ranks × steps, ns) over their peers; `named` as in `excess`."""
    floor = NOISE_FLOOR * float(np.nanmedian(run.steps.wall))
    return excess(spent, peers.groups, floor, named, usual=peers.usual)


def over_all(run: Measured, spent: F64) -> Excess:
    """Return the excess of each row of `spent` (rows × steps, ns) over all the others, which differ by design."""
    return excess(spent, [np.arange(len(spent))], NOISE_FLOOR * run.step_ns)


def per_step(run: Measured, found: Excess, peers: Peers) -> Excess:
    """Return `found` with the mean excess of a whole step: in a cut one with that behind the cut in whole steps.

    No part of own time exceeds there by more than it does in all of the step, nor than own time does there.
    """
    cut = run.steps.cut
    if cut is None:
        return found
    behind = np.clip(peers.beyond(cut.own), np.minimum(found.value, 0.0), np.maximum(found.value, 0.0))
    return replace(found, mean=of_rows(np.nanmean, run.steps.completed(found.value, behind)))


def recurs(value: F64, step_ns: float) -> Mask:
    """Whether the excess of each row of `value` (rows × steps, ns) persists without its longest step.

    The rest must reach the threshold by itself, or a fair share of the whole: peers differ a little in every step.
    """
    rest = without_longest(value)
    fair = (rest > CANDIDATE_SHARE * step_ns) & (rest > MINOR * of_rows(np.nanmean, value))
    return np.asarray(fair | (rest > MIN_LOST_SHARE * step_ns), bool)


def without_longest(value: F64) -> F64:
    """The mean of each row of `value` without its largest entry, ns; 0 where it has no other entry. NaN is left out."""
    known = np.isfinite(value)
    longest = np.where(known, value, -np.inf).max(axis=1, initial=-np.inf)
    rest = np.where(known, value, 0.0).sum(axis=1) - longest
    count = known.sum(axis=1) - 1
    return np.asarray(np.where(count > 0, rest / np.maximum(count, 1), 0.0), np.float64)


def _z_of_coming_last(run: Measured, rank: int, longest: I64) -> float:
    """The standard errors by which the rank came last more often than by chance.

    Each collective is one trial with probability 1/members. Collectives without any wait (`longest` is the longest wait
    of each) are left out, because their order means nothing.
    """
    ops, waits, mine = run.ops, run.waits, run.ops.of(rank)
    inside = ops.instance[mine] >= 0
    if run.steps.labelled:
        inside &= ops.step[mine] == run.steps.numbers[0]
    trials = np.unique(ops.instance[mine][inside])
    trials = trials[~ops.p2p[ops.channel[waits.first_row[trials]]]]
    trials = trials[longest[trials] > 0]
    if not len(trials):
        return 0.0
    last = int((ops.rank[waits.last[trials]] == rank).sum())
    chance = float(np.mean(1.0 / waits.members[trials]))
    odds = chance_of(last, len(trials), chance)
    return max(errors_of_chance(max(odds, sys.float_info.min)), 0.0)


# One slow step of few that is no accident: the rank is as slow in what was recorded beside whole steps, or nearly all
# kernels of the step are longer by a common factor. A profiler that starts, a checkpoint or a pause keeps the device
# waiting, an accident lengthens one kernel, and uneven data lengthens the kernels that follow the data.


def throttled(run: Measured, found: Excess, recurring: Mask) -> frozenset[int]:
    """The rows with devices slow throughout their longest step, and with too few other steps to call it an accident.

    `found` is the excess with the significance of its mean, `recurring` marks rows with an excess in several steps.
    Reads at most RANKS_SAMPLED rows, by the largest excess.
    """
    others = np.isfinite(found.value).sum(axis=1) - 1
    once = found.significant(run.suspect_ns) & ~recurring
    rows = np.flatnonzero(once & (others < NO_ACCIDENT))
    return _throughout(run, found, rows)


def slow_throughout(run: Measured, found: Excess, row: int) -> bool:
    """Whether the device of the rank in `row` was slow throughout its longest step, whatever the other steps show."""
    long = np.flatnonzero(np.nan_to_num(found.mean, nan=0.0) > run.suspect_ns)
    return row in _throughout(run, found, long)


def _throughout(run: Measured, found: Excess, rows: I64) -> frozenset[int]:
    """The rows among `rows` with a longest step that is no accident: slow throughout it, or beside whole steps too."""
    worst = rows[np.argsort(-found.mean[rows], kind="stable")][:RANKS_SAMPLED].tolist()
    columns = {row: int(np.nanargmax(found.value[row])) for row in worst if run.on_gpu(row)}
    kernels = cache(run.kernels)
    return frozenset(
        row
        for row, column in columns.items()
        if not _shared(run, row, {r for r, c in columns.items() if c == column})
        and (slows_all(kernels, run, found, row, columns) or recurs_beside(run, found, row, columns))
    )


def slows_all(
    kernels: Callable[[int], StepKernels], run: Measured, found: Excess, row: int, suspects: Collection[int]
) -> bool:
    """Whether nearly all `kernels` of the rank in `row` are longer in its longest step; `suspects` are no peers."""
    column = int(np.nanargmax(found.value[row]))
    peers = [kernels(peer) for peer in _peers(run, row, column, suspects)]
    return fills_step(longer_kernels(kernels(row), peers, column), float(found.value[row, column]))


def recurs_beside(run: Measured, found: Excess, row: int, suspects: Collection[int]) -> bool:
    """Whether a rank exceeds its peers beside its whole steps as well, as its longest step lets expect of their length.

    `suspects` are no peers.
    """
    longest, column = float(np.nanmax(found.value[row])), int(np.nanargmax(found.value[row]))
    peers = _peers(run, row, column, {row, *suspects})
    return column in whole_columns(run.steps, row) and any(
        over >= max(run.threshold_ns, MAJORITY * min(many, 1.0) * longest)
        for over, many in beside_steps(run.ops, run.steps, row, peers)
    )


def _peers(run: Measured, row: int, column: int, suspects: Collection[int]) -> list[int]:
    """The sample of unsuspected rows with the same work as `row` that have the step in `column` whole."""
    stage = run.stage_of(row)
    pool = [r for r in stage.tolist() if r not in suspects and np.isfinite(run.steps.own[r, column])]
    return sampled(pool)


def fills_step(longer: LongerKernels, excess: float) -> bool:
    """Whether the kernels carry the `excess` (ns) of their step, and nearly all of them are longer."""
    carried = longer.ns >= MAJORITY * excess
    return carried and longer.share >= NEARLY_ALL and longer.count >= STEP_PARTS


def _shared(run: Measured, row: int, suspects: set[int]) -> bool:
    """Whether all recorded ranks on the same data in the stage of `row`, two or more, are among `suspects`.

    A longer batch in one step lengthens the kernels of all ranks that work on it.
    """
    here = run.mesh.replica(run.steps.ranks[row])
    same = {r for r in run.stage_of(row).tolist() if run.mesh.replica(run.steps.ranks[r]) == here}
    return len(same) > 1 and same <= suspects


# Stalls that spans name are neither noise nor uneven data. Ranks without them are the usual ones, however few they are.


def named_stalls(run: Measured, own: F64, value: F64) -> F64 | None:
    """Return the stalls of the same ranks in several steps that spans of the host fill (ranks × steps, ns); else None.

    `value` is the excess of `own` times over peers. Peers that have such spans as well name nothing. None for ranks on
    CPUs, and where stalls hit every step, because what lasts is tested against what varies.
    """
    over = outliers(own, run.stages, run.step_ns) if run.on_gpus else np.zeros(own.shape)
    often = (over > 0).sum(axis=1) >= NO_ACCIDENT
    if not often.any() or (over > 0).any(axis=0).all() or scattered(over):
        return None
    for row in np.flatnonzero(often).tolist():
        calm = [r for r in run.stage_of(row).tolist() if not over[r].any() and np.isfinite(value[r]).any()]
        often[row] = len(calm) and filled_by_spans(run, [row], over[[row]], NEARLY_ALL, calm) is not None
    return np.where(often[:, None], over, 0.0) if often.any() else None


def filled_by_spans(
    run: Measured, rows: Sequence[int], stalled: F64, share: float, calm: Sequence[int] = ()
) -> Cause | None:
    """Return the cause with spans of the host that fill a `share` of stalls (rows × steps, ns) or more; else None.

    Only what exceeds the spans of the `calm` rows counts.
    """
    mine, others = ([run.features(row) for row in asked] for asked in (rows, sampled(list(calm))))
    for cause, part in BY_SPANS:
        usual = float(np.median([getattr(f, part) for f in others if f is not None] or [0.0]))
        spent = [0.0 if f is None else (getattr(f, part) - usual) * f.steps for f in mine]
        if np.minimum(spent, stalled.sum(axis=1)).sum() >= share * stalled.sum():
            return cause
    return None


def outliers(own: F64, groups: Rows, step_ns: float) -> F64:
    """The delays in `own` times (ranks × steps, ns), 0 elsewhere: beyond the usual `levels` of each rank and each step.

    A delay exceeds LITTLE_SHARE of the step. `groups` hold ranks of the same work. Where most of a group take as long
    as in a usual step, none of these is late: the others have less to do, as a rank without a batch.
    """
    usual = levels(own, groups, LITTLE_SHARE * step_ns)
    as_ever = np.abs(own - usual.row - of_rows(np.nanmedian, usual.column)[:, None]) <= usual.least
    for rows in filter(len, groups):  # no rank of an unrecorded stage
        as_ever[rows] &= as_ever[rows].mean(axis=0) > MAJORITY
    late = (own - usual.row > usual.edge) & ~as_ever
    return np.asarray(np.where(late, own - usual.row - usual.column, 0.0), np.float64)


def scattered(over: F64) -> bool:
    """Whether stalls are distributed over the ranks as if by chance.

    Where stalls of a step hit a share p of the ranks at random, they hit each at most once, so that counts by rank have
    the variance of a sum of p (1 − p) over steps (chi-square, R − 1 degrees): ranks that stall together in every step
    are no turn. Of n stalls, one rank has k or more with a probability of at most R times the binomial tail of n, 1/R
    from k on. The same bound is tested for the longest stall of each step, which the others wait for, because on a busy
    machine every rank stalls a little. Ranks that load data for others, or are slow, stall in every step, and their
    peers in none. The same ranks in each step that has stalls are no turn either, however few steps these are.
    """
    hit = over[:, (over > 0).any(axis=0)] > 0
    if not hit.size or (hit == hit[:, :1]).all():
        return False
    from scipy.special import chdtrc  # only jobs with stalls pay a third of a second for the import

    struck, ranks = over > 0, len(over)
    by_rank, count = struck.sum(axis=1), int(struck.sum())
    longest = np.bincount(over.argmax(axis=0)[struck.any(axis=0)], minlength=ranks)
    most = min(ranks * chance_of(int(n.max()), int(n.sum()), 1.0 / ranks) for n in (by_rank, longest))
    share = struck.mean(axis=0)
    chance = float((share * (1.0 - share)).sum()) * ranks / (ranks - 1)
    squares = float(np.square(by_rank - count / ranks).sum())
    dispersion = float(chdtrc(ranks - 1, squares / chance)) if chance > 0 else 0.0
    return min(most, dispersion) >= CHANCE
