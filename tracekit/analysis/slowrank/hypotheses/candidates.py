"""Slow ranks as explanations of a slow step, each priced by the time that a step saves without it.

Only ranks with a significant excess are considered. The step model then prices them, so that ranks with slack cost
nothing and are not named.
"""

from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass

import numpy as np

from tracekit.analysis.slowrank.case import Case
from tracekit.analysis.slowrank.expected.contention import relieved
from tracekit.analysis.slowrank.expected.equal_work import Peers
from tracekit.analysis.slowrank.expected.excess import typical
from tracekit.analysis.slowrank.expected.nodes import nodes_of
from tracekit.analysis.slowrank.hypotheses.host_bound import saved_in
from tracekit.intervals import covered_until, inside_each, subtract
from tracekit.step_graph.own_parts import Parts, WaitingParts
from tracekit.step_graph.rank_timeline import RankTimeline
from tracekit.step_graph.replay import StepModel, Usual
from tracekit.step_graph.table_model import TableModel
from tracekit.steps.medians import median_by_column
from tracekit.steps.steps import tails_of
from tracekit.thresholds.slowrank import CLEAR_SHARE, CLEARLY_MORE, MAJORITY, MINOR, USUAL_VARIATION
from tracekit.units import F64, I64


@dataclass(frozen=True)
class Hypothesis:
    """Suspects (rows of Steps, worst first), the price of each, and the price of all together; ns a step."""

    rows: tuple[int, ...]
    lost: tuple[float, ...]
    gain: float
    z: tuple[float, ...]


def price(case: Case, found: Hypothesis) -> float:
    """The price that must reach the threshold, ns a step: of the worst rank alone, or of all if they are slow alike.

    Ranks that each cost little are not reported unless all exceed their peers by a similar amount, as on a slow node:
    curing one of them alone saves almost nothing, because the others are as late.
    """
    return found.gain if _as_one(case, np.array(found.rows)) else found.lost[0]


def _as_one(case: Case, rows: I64) -> bool:
    """Whether all of `rows` exceed their peers by a similar amount, and every other rank of their stages by far."""
    excess = np.nan_to_num(case.found.mean)
    least = float(excess[rows].min())
    if len(rows) < 2 or least < MAJORITY * float(excess[rows].max()):
        return False
    others = [np.setdiff1d(stage, rows) for stage in case.stages if np.isin(stage, rows).any()]
    return all(len(rest) and least > CLEARLY_MORE * float(np.abs(excess[rest]).max()) for rest in others)


def slow_ranks(case: Case) -> Hypothesis | None:
    """Return the ranks that work significantly longer than their peers at a price; None where there are none."""
    rows = case.significant(case.suspect_ns)
    found = those_that_cost(case, rows) if len(rows) else None
    return found and _with_host(case, found, rows)


def _with_host(case: Case, found: Hypothesis, slow: I64) -> Hypothesis:
    """`found`, with the other ranks of its host where all are among the `slow` ones and cost more together.

    What slows a host slows all its ranks, also those of stages with slack.
    """
    nodes = nodes_of(case)
    hosts = {nodes.get(case.steps.ranks[row]) for row in found.rows}
    mates = np.array([row for row, rank in enumerate(case.steps.ranks) if nodes.get(rank) in hosts], np.int64)
    if len(hosts) > 1 or None in hosts or not set(found.rows) < set(mates.tolist()) <= set(slow.tolist()):
        return found
    cure = typical_without(case, slow), usual_of(case, slow)
    host = _hypothesis(case, mates, *_together_and_each(case, mates, *cure, case.model), case.model)
    return host if host.gain > (1.0 + USUAL_VARIATION) * found.gain else found


def typical_without(case: Case, rows: I64) -> F64:
    """Return own times (ranks × steps, ns) with `rows` no longer than the median of their unsuspected peers.

    Communication that waits for `rows` no longer lengthens the kernels of the other ranks.
    """
    extra = case.met.explained
    own = np.fmin(case.steps.own, _typical_without(case.steps.own - extra, case.met.peers, rows) + extra)
    return not_awaited(case, own, rows)


def not_awaited(case: Case, own: F64, rows: I64) -> F64:
    """Return `own` (ranks × steps, ns) without what waits for `rows` or their pipelines add to others' kernels."""
    return np.maximum(relieved(case.met.spun, own, case.stages, _in_line(case, rows)), 0.0)


def _in_line(case: Case, rows: I64) -> I64:
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


def those_that_cost(case: Case, rows: I64, model: StepModel | TableModel | None = None) -> Hypothesis | None:
    """The ranks among `rows` that still cost something if all others are cured; None where curing all saves nothing.

    `model` is that of the step after another cure; the case's own if not given.

    Each round cures all remaining ranks and takes back one cure after the other. Ranks that save little compared with
    the most expensive one are dropped, until every remaining rank is needed.
    """
    model, target = model or case.model, typical_without(case, rows)
    kept = rows[np.argsort(-case.found.mean[rows], kind="stable")]
    while True:
        gain, lost = _together_and_each(case, kept, target, usual_of(case, rows), model)
        if gain <= 0:
            return None
        least = min(MINOR * max(lost), CLEAR_SHARE * case.step_ns)
        needed = np.array([v >= least and v > 0 for v in lost])
        if needed.all() or not needed.any():
            return _hypothesis(case, kept, gain, lost, model)
        kept = kept[needed]


def _together_and_each(
    case: Case, kept: I64, target: F64, usual: Usual, model: StepModel | TableModel
) -> tuple[float, list[float]]:
    """(the saving of a step with all of `kept` cured, what of it is lost without the cure of each), ns.

    `target` are own times (ranks × steps, ns) with the cure, and `usual` the work in each part of a step.
    """
    own = case.steps.own
    cured = relieved(case.met.spun, own, case.stages, _in_line(case, kept))
    cured[kept] = target[kept]
    gain, lost = model.recorded_ns - model.step_ns(cured, usual=usual), []
    for row in kept if gain > 0 else ():
        but_one = own.copy()
        but_one[np.setdiff1d(kept, row)] = target[np.setdiff1d(kept, row)]
        lost.append(model.step_ns(but_one, usual=usual) - (model.recorded_ns - gain))
    return gain, lost


def _hypothesis(
    case: Case, kept: I64, gain: float, lost: Sequence[float], model: StepModel | TableModel
) -> Hypothesis:
    """The hypothesis that `kept` are slow, which save `gain` together and `lost` each, within what hosts allow; ns."""
    hosted = model.recorded_ns - cured_ns(case, model, kept)
    bound = beside_waits(case, kept, min(gain, hosted))[1] / gain
    order = sorted(range(len(kept)), key=lambda i: (-lost[i], int(kept[i])))
    return Hypothesis(
        tuple(int(kept[i]) for i in order), tuple(bound * lost[i] for i in order), bound * gain,
        tuple(float(case.found.z[kept[i]]) for i in order),
    )  # fmt: skip


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
