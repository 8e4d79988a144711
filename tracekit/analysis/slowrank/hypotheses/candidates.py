"""Slow ranks as explanations of a slow step, each priced by the time that a step saves without it.

Only ranks with a significant excess are considered. The step model then prices them, so that ranks with slack cost
nothing and are not named.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tracekit.case.case import Case
from tracekit.case.cures import beside_waits, cured_ns, in_line, typical_without, usual_of
from tracekit.expected.contention import relieved
from tracekit.expected.nodes import nodes_of
from tracekit.step_graph.replay import StepModel, Usual
from tracekit.step_graph.table_model import TableModel
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
    """Whether all of `rows` exceed their peers by a similar amount, and no other rank of their stages nearly so.

    Where half of a stage is slow, the others fall short of the median by as much.
    """
    excess = np.nan_to_num(case.found.mean)
    least = float(excess[rows].min())
    if len(rows) < 2 or least < MAJORITY * float(excess[rows].max()):
        return False
    others = [np.setdiff1d(stage, rows) for stage in case.stages if np.isin(stage, rows).any()]
    return all(len(rest) and least > CLEARLY_MORE * float(excess[rest].max()) for rest in others)


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

    `target` are cured own times (ranks × steps, ns), `usual` the work by parts; waits last in proportion to the excess.
    """
    own, excess = case.steps.own, np.maximum(np.nan_to_num(case.found.mean[kept]), 0.0)
    spared = own - relieved(case.met.spun, own, case.stages, in_line(case, kept))
    cured = own - spared
    cured[kept] = target[kept]
    gain, lost = model.recorded_ns - model.step_ns(cured, usual=usual), []
    for row, awaited in zip(kept, excess / max(float(excess.max()), 1.0), strict=True) if gain > 0 else ():
        but_one = own - (1.0 - awaited) * spared
        but_one[kept] = np.where(kept[:, None] == row, own[kept], target[kept])
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
