"""Cures of ranks: the work of a step in which some ranks work like their peers, and what such a step saves.

Any ranks can be cured, suspected or named by a user; nothing here judges them. Where hosts need nearly the whole step,
the device of one rank idles behind its host while the devices of the others spin in collectives for it. Without those
gaps another host would be the last to launch, so that replays of a cure keep the hosts of other ranks.
"""

from collections.abc import Callable, Container, Iterable, Mapping

import numpy as np

from tracekit.case.case import Case, Timelines
from tracekit.expected.contention import relieved
from tracekit.expected.equal_work import Peers
from tracekit.expected.excess import typical
from tracekit.intervals import covered_until, inside_each, subtract
from tracekit.step_graph.host_timeline import host_timelines
from tracekit.step_graph.own_parts import Parts, WaitingParts
from tracekit.step_graph.rank_timeline import Cuts, RankTimeline
from tracekit.step_graph.replay import StepModel, Usual
from tracekit.step_graph.statistics import excess, spread
from tracekit.step_graph.table_model import TableModel
from tracekit.steps.medians import median_by_column
from tracekit.steps.steps import idle_within, tails_of
from tracekit.thresholds.slowrank import CANDIDATE_SHARE, Z_LIMIT
from tracekit.timing.device_gaps import gaps_of
from tracekit.units import F64, I64

Model = StepModel | TableModel


def typical_without(case: Case, rows: I64) -> F64:
    """Return own times (ranks × steps, ns) with `rows` no longer than the median of their unsuspected peers.

    Communication that waits for `rows` no longer lengthens the kernels of the other ranks.
    """
    extra = case.met.explained
    own = np.fmin(case.steps.own, _typical_without(case.steps.own - extra, case.met.peers, rows) + extra)
    return not_awaited(case, own, rows)


def not_awaited(case: Case, own: F64, rows: I64) -> F64:
    """Return `own` (ranks × steps, ns) without what waits for `rows` or their pipelines add to others' kernels."""
    return np.maximum(relieved(case.met.spun, own, case.stages, in_line(case, rows)), 0.0)


def in_line(case: Case, rows: I64) -> I64:
    """`rows`, and in stages without any of them the ranks of the same pipelines, which are late with them."""
    mates = {row for r in rows.tolist() for row in case.line_of(r)}
    away = [np.intersect1d(stage, sorted(mates)) for stage in case.stages if not np.isin(rows, stage).any()]
    return np.unique(np.concatenate([rows, *away])).astype(np.int64)


def cured_ns(case: Case, model: StepModel | TableModel, rows: I64) -> float:
    """The length of a step in `model` if `rows` work like their peers, ns; hosts of the others may delay them."""
    own, usual = typical_without(case, rows), usual_of(case, rows)
    return model.recorded_ns - saved_in(case, model, rows, lambda m: m.step_ns(own, usual=usual))


def saved_ns(case: Case, rows: I64, own: F64) -> float:
    """The saving of a step with own times `own` (ranks × steps, ns), those of `rows` cut where peers are faster; ns."""
    usual = usual_of(case, rows)
    return saved_in(case, case.model, rows, lambda m: m.step_ns(own, usual=usual))


def likely_saved_ns(case: Case, rows: I64) -> float:
    """The most likely saving of a step if `rows` work like their peers, ns."""
    return saved_ns(case, rows, typical_without(case, rows))


def beside_waits(case: Case, rows: I64, saved: float) -> tuple[float, float]:
    """Return the least and the likely part of `saved` by a cure of `rows`, ns; all of it where compute was recorded.

    Peers may have worked while communication waited for `rows`, and need that time without them as well.
    """
    if case.concealing is None:
        return saved, saved
    least, likely = (min(k.model.recorded_ns - cured_ns(k, k.model, rows), saved) for k in case.concealing)
    return max(min(least, likely), 0.0), max(likely, 0.0)


def taken_by_hosts(case: Case, rows: I64) -> float:
    """Return what a cure of `rows` saves less because devices then wait for hosts of the others, ns a step."""
    cured = case.model.step_ns(typical_without(case, rows), usual=usual_of(case, rows))
    return case.model.recorded_ns - cured - likely_saved_ns(case, rows)


def _typical_without(own: F64, peers: Peers, rows: I64) -> F64:
    """`typical_without` for any own times."""
    target = own.copy()
    for group in peers.groups:
        mine = np.intersect1d(group, rows)
        others = np.setdiff1d(group, rows)
        if len(mine) and len(others):
            target[mine] = np.fmin(target[mine], median_by_column(own[others])[None, :])
        elif len(mine):
            target[mine] = np.fmin(target[mine], typical(own, peers)[mine])
    return target


def usual_of(case: Case, rows: I64) -> Usual:
    """Return the work of each of `rows` in each part of the steps if it works like its unsuspected peers; ns.

    The case keeps it, since a cure is priced several times.
    """
    asked = tuple(rows.tolist())
    if asked not in case.usual_work:
        case.usual_work[asked] = _usual_of(case, rows)
    return case.usual_work[asked]


def _usual_of(case: Case, rows: I64) -> Usual:
    """`usual_of`, found.

    Where one part of own time alone, compute or the rest, shows that a rank is slow, only that part becomes shorter. A
    rank with gaps by its role is compared with others of that role, if its stage has any. The parts of other ranks that
    communication lengthens while it waits are returned as well.
    """
    peers = _peers(case, rows)
    found = case.model.usual(peers)
    spared = spared_parts(case, peers)
    if case.timeline is not None:
        runs = case.timeline.runs
        for (n, row), (which, _) in found.items():
            if row in case.met.by_compute or row in case.met.by_idle:
                lines = {line.row: line for line in runs[n][1]}
                mates = [lines[o] for o in peers[row].tolist() if o in lines]
                spent = _compute if row in case.met.by_compute else _idle
                found[n, row] = which, _quick(case, lines[row], lines[row].parts[which], mates, spent)
    return {**spared, **found}


def spared_parts(case: Case, rows: Container[int]) -> dict[tuple[int, int], WaitingParts]:
    """Return the parts of work that communication lengthens while it waits for `rows`, by run of steps and row."""
    runs = range(len(case.timeline.runs)) if case.timeline is not None else ()
    return {(n, row): parts for n in runs for row, parts in case.waiting_parts.items() if row not in rows}


def _peers(case: Case, rows: I64) -> dict[int, I64]:
    """The unsuspected ranks of the same work for each of `rows`; all others of the stage where all are suspected."""
    peers = {}
    for group in case.met.peers.groups:
        others = np.setdiff1d(group, rows)
        for row in np.intersect1d(group, rows):
            mine = others if len(others) else np.setdiff1d(group, row)
            same = np.intersect1d(mine, case.met.of_role) if row in case.met.of_role else mine
            peers[int(row)] = same if len(same) else mine
    return peers


Spent = Callable[[Case, RankTimeline, Parts], F64]
"""Returns what a rank spends in each of its parts on one kind of own time, ns."""


def _quick(case: Case, line: RankTimeline, parts: Parts, mates: list[RankTimeline], spent: Spent) -> F64:
    """The own time of a rank in each of its `parts` if what it `spent` is the median of its `mates` there, ns."""
    width = np.diff(parts.cuts)
    theirs = [spent(case, mate, found) for mate in mates if (found := mate.alike(parts)) is not None]
    if not theirs:
        return width
    beyond = spent(case, line, parts) - np.median(theirs, axis=0)
    return np.asarray(width - np.clip(beyond, 0.0, width), np.float64)


def _idle(case: Case, line: RankTimeline, parts: Parts) -> F64:
    """The own time of a rank without compute in each of its `parts`, ns."""
    return np.maximum(np.diff(parts.cuts) - _compute(case, line, parts), 0.0)


def _compute(case: Case, line: RankTimeline, parts: Parts) -> F64:
    """The compute of a rank in each of its `parts`, ns."""
    rank = case.steps.ranks[line.row]
    progress = case.ops.progress[rank]
    computing = subtract(case.ops.per_rank[rank].computed, progress.exposed)
    on_own_time = progress.at(computing[0]), progress.at(computing[1])
    inside = np.diff(covered_until(on_own_time, np.asarray(parts.cuts, np.int64))).astype(np.float64)
    first = np.flatnonzero(case.steps.begin[line.row] == line.knots[0]).tolist()
    inside[0] += sum(inside_each(computing, tails_of(case.steps, rank, first)))
    return inside


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
    each = models.pinned, models.likely, models.free, case.early_model.of_traces or models.likely
    pinned, best, high, early = (saved_beside_hosts(case, model, rows, cured) for model in each)
    return pinned if case.slowest else case.least_saved(pinned, best, early), best, high


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

    A gap at the begin of a step delays all that follows. Spread over the step, the same time would cost less.
    `over` holds the time to take, ns, one an analysed step, by row of Steps.
    """
    cuts: dict[tuple[int, int], Cuts] = {}
    for row, less in over.items():
        rank = case.steps.ranks[row]
        gaps = gaps_of(case.run, case.ops, rank)
        parts = (gaps.host, gaps.idle, gaps.unknown)
        on_own_time = case.ops.progress[rank].at
        begin, end = (on_own_time(np.concatenate([part[side] for part in parts])) for side in (0, 1))
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
