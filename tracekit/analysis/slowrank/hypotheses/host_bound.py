"""What a cure saves beside the hosts of other ranks, and a cure of the longest gaps of a device.

Where hosts need nearly the whole step, the device of one rank idles behind its host while the devices of the others
spin in collectives for it. That rank alone shows gaps, and without them another host would be the last to launch.

A gap where a rank loads data or pauses, at the begin of a step, delays all that follows. Spread over the step, the same
time would cost less.
"""

from collections.abc import Callable, Iterable, Mapping

import numpy as np

from tracekit.analysis.slowrank.case import Case, Timelines
from tracekit.step_graph.host_timeline import host_timelines
from tracekit.step_graph.rank_timeline import Cuts
from tracekit.step_graph.replay import StepModel
from tracekit.step_graph.statistics import excess, spread
from tracekit.step_graph.table_model import TableModel
from tracekit.steps.medians import median_by_column
from tracekit.steps.steps import idle_within, tails_of
from tracekit.thresholds.slowrank import CANDIDATE_SHARE, Z_LIMIT
from tracekit.timing.device_gaps import gaps_of
from tracekit.units import F64, I64

Model = StepModel | TableModel


def with_hosts(case: Case, model: StepModel, rows: Iterable[int]) -> StepModel:
    """Return `model` in which the hosts of a sample of ranks may delay them, but for those of the cured `rows`.

    Where a cure saves most, no host delays its rank that works only by assumption, as without recorded operators.
    """
    asked = id(model), frozenset(rows)
    if asked not in case.hosted:
        every = with_hosts(case, model, ()) if asked[1] and not model.hosts else model
        known = {row: h for row, h in case.hosts.items() if h.called or model is not case.free_model}
        hosts = every.hosts or host_timelines(case, known, model.runs)
        case.hosted[asked] = model, model.beside(hosts, asked[1])
    return case.hosted[asked][1]


def saved_in(case: Case, model: Model, rows: Iterable[int], cured: Callable[[Model], float]) -> float:
    """Return what a cure of `rows` saves, ns a step: `saved_beside_hosts`, but for operation tables without hosts."""
    if (traced := model.of_traces) is None:
        return model.recorded_ns - cured(model)
    return saved_beside_hosts(case, traced, rows, cured)


def saved_beside_hosts(
    case: Case, model: StepModel, rows: Iterable[int], cured: Callable[[StepModel], float]
) -> float:
    """Return what a cure of `rows` saves where the hosts of other ranks may delay them, ns a step.

    `cured` gives the length of a step with it. Small savings, which decide nothing, are returned without hosts, as are
    those below the error of a replay with hosts.
    """
    saved = model.recorded_ns - cured(model)
    small = saved < case.suspect_ns or not case.hosts
    if small or abs(with_hosts(case, model, ()).recorded_ns - model.recorded_ns) >= saved:
        return saved
    hosted = with_hosts(case, model, rows)
    return min(saved, max(hosted.recorded_ns - cured(hosted), 0.0))


def saved_by(
    case: Case, models: Timelines, rows: Iterable[int], cured: Callable[[StepModel], float]
) -> tuple[float, float, float]:
    """Return (the least, the likely, the largest saving) of a cure of `rows`, ns a step, as `saved_beside_hosts`."""
    low, best, high = (
        saved_beside_hosts(case, m, rows, cured) for m in (models.pinned, models.likely, models.free)
    )
    return low, best, high


def saved_by_gaps(case: Case, models: Timelines, over: Mapping[int, F64]) -> tuple[float, float, float]:
    """Return `saved_by` a cure of the longest gaps, `over` as of `without_gaps`: at most the longest of each step."""
    cuts = without_gaps(case, models.likely, over)
    low, best, high = saved_by(case, models, over, lambda model: model.rescaled_ns(cuts))
    most = case.steps.mean(np.max(list(over.values()), axis=0))
    return low, min(best, most), min(high, most)


def alike(case: Case, row: int, rows: I64) -> bool:
    """Whether the host of `row`, one of `rows`, needs no longer than other hosts beyond chance; True where unknown."""
    needs, number = case.host_needs, next(n for n, stage in enumerate(case.stages) if row in stage)
    known = np.setdiff1d(np.flatnonzero(np.isfinite(needs).any(axis=1)), rows)
    if not np.isfinite(needs[row]).any() or not len(known):
        return True
    others = [np.intersect1d(stage, known) for stage in case.stages]
    if not len(others[number]):
        return False
    found = excess(needs, others, 0.0, case.found.named, usual=case.met.peers.usual)
    chance = max(spread(found.mean), found.sigma / np.sqrt(needs.shape[1]))
    typical = median_by_column(needs[others[number]])
    more = Z_LIMIT * max(chance, CANDIDATE_SHARE * float(np.nanmean(typical)))
    return bool(np.nanmean(needs[row] - typical) <= more)


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
