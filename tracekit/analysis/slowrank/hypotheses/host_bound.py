"""What a cure of a host saves: no more than other hosts need to launch a step, and only the longest gaps of its device.

Where hosts need nearly the whole step, the device of one rank idles behind its host while the devices of the others
spin in collectives for it. That rank alone shows gaps, and without them another host would be the last to launch.

A gap where a rank loads data or pauses, at the begin of a step, delays all that follows. Spread over the step, the same
time would cost less.
"""

from collections.abc import Mapping

import numpy as np

from tracekit.analysis.slowrank.case import Case
from tracekit.step_graph.delays import least_delay, low
from tracekit.step_graph.rank_timeline import Cuts
from tracekit.step_graph.replay import StepModel
from tracekit.step_graph.statistics import excess, spread
from tracekit.steps.medians import median_by_column, of_rows
from tracekit.steps.steps import idle_within, tails_of
from tracekit.thresholds.slowrank import CANDIDATE_SHARE, KIND_RATIO, LITTLE_SHARE, Z_LIMIT
from tracekit.timing.device_gaps import gaps_of
from tracekit.units import F64, I64


def most_saved_ns(case: Case, rows: I64) -> float:
    """The most that a step can save if `rows` work like their peers, ns: usual hosts need the rest of the step.

    Infinite where no host was recorded.
    """
    needs, usual = case.host_needs, _usual(case, rows)
    if not len(usual):
        return np.inf
    left = np.nanmean(case.steps.wall, axis=0) - needs[usual]
    return max(float(np.nanmin(of_rows(np.nanmean, left))), 0.0)


def _usual(case: Case, rows: I64) -> I64:
    """The ranks with hosts that bound the saving of a cure of `rows`.

    A host that needs far longer than others of its stage has a fault of its own and is no bound. One of `rows` is a
    bound unless it needs longer than the others by more than chance: the cure makes it faster.
    """
    needs, stages = case.host_needs, case.stages
    known = np.flatnonzero(np.isfinite(needs).any(axis=1))
    unsuspected = [np.intersect1d(np.setdiff1d(stage, rows), known) for stage in stages]
    found = excess(needs, unsuspected, 0.0, case.found.named, usual=case.met.peers.usual)
    chance = max(spread(found.mean), found.sigma / np.sqrt(needs.shape[1]))
    usual = []
    for stage, others in zip(stages, unsuspected, strict=True):
        if not len(others):
            continue
        typical = median_by_column(needs[others])
        for row in np.intersect1d(stage, known).tolist():
            more = Z_LIMIT * max(chance, CANDIDATE_SHARE * np.nanmean(typical))
            if row not in rows:
                more = (KIND_RATIO - 1) * np.nanmean(typical)
            if np.nanmean(needs[row] - typical) <= more:
                usual.append(row)
    return np.array(usual, np.int64)


def alike(case: Case, row: int, rows: I64) -> bool:
    """Whether the host of `row`, one of `rows`, needs no longer than other hosts beyond chance; True where unknown."""
    needs = case.host_needs
    known = np.isfinite(needs[row]).any() and np.isfinite(np.delete(needs, rows, axis=0)).any()
    return not known or row in _usual(case, rows)


def typical_host_saves_ns(case: Case, stalled: F64 | float = 0.0) -> float:
    """The most that a step can save if all ranks work alike, ns: a typical host in a typical step needs the rest.

    What hosts `stalled` (ranks × steps, ns) is not needed, as far as they need longer than in their other steps.
    Infinite where no host was recorded.
    """
    needs = case.host_needs
    if not np.isfinite(needs).any():
        return np.inf
    least = least_delay(needs, case.stages, LITTLE_SHARE * case.step_ns)
    usual = needs - np.clip(needs - low(needs.T, least)[0][:, None], 0.0, stalled)
    return max(case.step_ns - float(np.nanmedian(usual)), 0.0)


def without_gaps(case: Case, model: StepModel, over: Mapping[int, F64]) -> dict[tuple[int, int], Cuts]:
    """Return the cuts, by run and row, that take `over` from the longest gaps of a rank in each step.

    `over` holds the time to take, ns, one an analysed step, by row of Steps.
    """
    cuts: dict[tuple[int, int], Cuts] = {}
    for row, less in over.items():
        rank = case.steps.ranks[row]
        gaps = gaps_of(case.run, case.ops, rank)
        parts = (gaps.host, gaps.idle, gaps.unknown)
        begin, end = (
            case.ops.progress[rank].at(np.concatenate([part[side] for part in parts])) for side in (0, 1)
        )
        for n, (columns, lines) in enumerate(model.runs):
            line = next((line for line in lines if line.row == row), None)
            if line is None:
                continue
            chosen, factors = [np.zeros((0, 2))], [np.zeros(0)]
            for place, column in enumerate(columns):
                low, high = line.knots[place], line.knots[place + 1]
                tail = low + _idle_in_tail(case, row, column)
                spans = np.append(begin, low), np.append(end, tail)
                mine, left = _longest(*spans, low, high, float(less[column]))
                chosen, factors = [*chosen, mine], [*factors, left]
            taken, left = np.concatenate(chosen), np.concatenate(factors)
            order = np.argsort(taken[:, 0], kind="stable")
            cuts[n, row] = line.scaled(taken[order].ravel(), left[order])
    return cuts


def _idle_in_tail(case: Case, row: int, column: int) -> float:
    """The idle time behind the last communication of a recording, which counts at the begin of its first step, ns."""
    if case.steps.tail[row, column] <= 0:
        return 0.0
    rank = case.steps.ranks[row]
    begin, end = idle_within(case.ops, rank, tails_of(case.steps, rank, [column]))
    return float(np.minimum((end - begin).sum(), case.steps.tail[row, column]))


def _longest(begin: F64, end: F64, low: float, high: float, over: float) -> tuple[F64, F64]:
    """(begin and end of the longest gaps between `low` and `high` that add up to `over`, the share left of each)."""
    first, last = np.clip(begin, low, high).astype(np.float64), np.clip(end, low, high).astype(np.float64)
    width = last - first
    order = np.argsort(-width, kind="stable")
    order = order[width[order] > 0]
    taken = np.clip(over - (np.cumsum(width[order]) - width[order]), 0.0, width[order])
    order, taken = order[taken > 0], taken[taken > 0]
    return np.stack([first[order], last[order]], axis=1), 1.0 - taken / width[order]
