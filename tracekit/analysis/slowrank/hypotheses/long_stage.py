"""Pipeline stages with ranks that all work longer than those of other stages, and the bounds of their price.

Two equally long stages, such as those of a slow node, cost nothing one by one, so they are priced together.

Work means compute. A stage with devices that are idle longer between kernels has hosts that launch late: the hosts of
the first stage cannot run ahead at the begin of a step, while those of later stages do so as they wait for it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from tracekit.analysis.slowrank.hypotheses.excess_parts import paused_hosts
from tracekit.analysis.slowrank.hypotheses.suspect_work import late_loaders, launches_alike
from tracekit.analysis.slowrank.price import Price
from tracekit.case.case import Case
from tracekit.case.cures import saved_by_gaps, saved_in
from tracekit.causes import MEMORY
from tracekit.expected.contention import stage_contention
from tracekit.expected.excess import over_all, recurs
from tracekit.expected.nodes import nodes_of
from tracekit.expected.same_kernels import at_places, pace_at
from tracekit.findings import Cause
from tracekit.step_graph.statistics import NO_ROWS, confidence
from tracekit.steps.host_need import launch_pace
from tracekit.steps.medians import median_by_column, of_rows
from tracekit.thresholds.slowrank import CHANCE, LITTLE_SHARE, MAJORITY, NODE_RANKS, USUAL_VARIATION, Z_LIMIT
from tracekit.units import F64, I64


@dataclass(frozen=True)
class LongStage:
    """The ranks of a long stage, or of several (rows of Steps, longest first), and what they cost; ns a step."""

    rows: tuple[int, ...]
    z: float
    over: float  # work beyond the other stages
    price: Price  # the saving of a step if the stage works like the others
    loaders: tuple[int, ...] = ()  # the ranks among `rows` that wait for their data loaders
    idle: bool = False  # it computes no longer: its devices are idle between kernels
    hosts_alike: bool = False  # its hosts launch as fast as the others'
    paused: Mapping[int, Cause] = field(default_factory=dict)  # if it is idle: why, by row, where hosts pause
    by_design: bool = False  # all of its ranks are idle alike, on several nodes
    cured: F64 | None = field(default=None, compare=False)  # own times with it like the others, ranks × steps
    by_compute: bool = False  # only its compute is longer: other stages wait for their hosts as long
    pace: float | None = None  # how many times as long it takes for the same work, where that makes it long


@dataclass(frozen=True)
class _Longer:
    """One stage: its rows of Steps, its time beyond the other stages by step (ns), and its standard errors."""

    place: int  # among the recorded stages
    rows: I64
    over: F64
    z: float
    pace: float | None = None


def long_stage(case: Case) -> LongStage | None:
    """The stages that work significantly longer than the others, usually one; None where none does at a price.

    Only compute makes several stages long together: in most jobs the first and the last stage load data by design.
    """
    least = case.threshold_ns
    found = _at_pace(case, _longest(case, case.steps.own))
    alone = _price(case, found[:1]) if found else None
    if alone is None or (alone.price.high < least and len(found) == 1):
        return _computing_longer(case, least)
    loaders = late_loaders(case, alone.rows) if alone.price.high >= least else ()
    computed = _compute(case)
    if loaders and (loading := _loading(case, found[0], alone, loaders)).price.best >= least:
        return loading
    if computed is None:
        return alone if alone.price.high >= least else None
    work = _priced(case, _of_work(case, found, computed))
    if work.price.high >= least or alone.price.high < least:
        return work if work.price.high >= least else None
    others = _longest(case, computed)
    work = _priced(case, others) if others else work
    return work if work.price.high >= least else _idle(case, alone)


def _at_pace(case: Case, found: Sequence[_Longer]) -> list[_Longer]:
    """The stages of `found`; the excess of one that is slow is what it takes longer than at the pace of the others.

    By design, the stage may have more or less to do than they: its whole time does not show by how much it is slow.
    """
    if not found or case.table is not None:
        return list(found)
    levels = _levels(case, case.steps.own if (computed := _compute(case)) is None else computed)
    long = {one.place for one in found}
    usual = [at_places(case, rows) for place, rows in enumerate(_seen(case)) if place not in long]
    result = []
    for one in found:
        pace = pace_at(at_places(case, one.rows), usual) or 1.0
        slow = levels[one.place] * (1.0 - 1.0 / pace)
        explained = np.nanmean(slow) >= MAJORITY * np.nanmean(one.over)
        result.append(replace(one, over=slow, pace=pace) if explained else one)
    return result


def _computing_longer(case: Case, least: float) -> LongStage | None:
    """The stage that computes longer, although others wait for their hosts as long; None below the threshold.

    The saving is limited by hosts: with less work the stage may wait for its hosts as the others do.
    """
    computed = _compute(case)
    found = _at_pace(case, _longest(case, computed)) if computed is not None else []
    work = _priced(case, found) if found else None
    cured = None if work is None else work.cured
    if work is None or cured is None:
        return None
    hosted = saved_in(case, case.model, work.rows, lambda m: m.step_ns(cured))
    if (gain := min(work.price.best, hosted)) < least:
        return None
    price = Price.between(work.price.low, gain, work.price.high)
    return replace(work, price=price, by_compute=True)


def _of_work(case: Case, found: Sequence[_Longer], computed: F64) -> list[_Longer]:
    """The stages of `found` with their excess limited to compute, without stages that hardly compute longer."""
    beyond = over_all(case, _levels(case, computed)).value
    most = [one.over if one.pace else np.minimum(one.over, beyond[one.place]) for one in found]
    work = [replace(one, over=np.clip(over, 0.0, None)) for one, over in zip(found, most, strict=True)]
    longer = [float(np.nanmean(one.over)) for one in work]
    least = MAJORITY * max(longer)
    return [one for one, over in zip(work, longer, strict=True) if over >= least]


def faint_stage(case: Case) -> LongStage | None:
    """The stage with a costly excess that is unlikely to be chance, but not significant; None where there is none."""
    found = _longest(case, case.steps.own, proven=False)
    if not found or found[0].z > Z_LIMIT:
        return None
    stage = _price(case, found[:1])
    return stage if stage.price.best >= case.threshold_ns else None


def _idle(case: Case, stage: LongStage) -> LongStage:
    """The stage marked as idle, with what its hosts show: their pace beside other stages, and pauses."""
    others = np.setdiff1d(np.arange(len(case.steps.ranks)), stage.rows)
    as_fast = launches_alike(case, stage.rows, others.tolist())
    paused = paused_hosts(case, stage.rows) if launch_pace(case.run, case.steps.ranks[stage.rows[0]]) else {}
    nodes = nodes_of(case)  # where they are unknown, one node cannot hold more than NODE_RANKS
    mine = {
        nodes.get(case.steps.ranks[row]) if nodes else at // NODE_RANKS for at, row in enumerate(stage.rows)
    }
    idle, mates = of_rows(np.nanmedian, case.steps.own - case.computed), np.setdiff1d(stage.rows, [*paused])
    longer = float(np.max(idle[[*paused]], initial=0.0) - np.median(idle[mates])) if len(mates) else 0.0
    alone = longer >= MAJORITY * stage.over or not paused or MEMORY in paused.values()
    return replace(
        stage, idle=True, hosts_alike=as_fast, paused=paused, by_design=len(mine) > 1 and not alone
    )


def _longest(case: Case, spent: F64, *, proven: bool = True) -> list[_Longer]:
    """The longest stage, and further stages of a similar excess; empty where chance explains the longest.

    spent: time of each rank in each step, ns. Unless `proven`, an excess that is unlikely to be chance suffices.
    """
    groups = _seen(case)
    if len(groups) < 2:
        return []
    levels = _levels(case, spent)
    found = over_all(case, levels)
    longer = any(confidence(z, len(found.z)) > 1.0 - CHANCE for z in np.nan_to_num(found.z).tolist())
    if longer and case.table is None and case.on_gpus:  # kernels are read only then
        found = over_all(case, levels - stage_contention(case, groups))
    if not np.isfinite(found.mean).any():
        return []
    surely = [z > Z_LIMIT if proven else confidence(z, len(groups)) > 1.0 - CHANCE for z in found.z.tolist()]
    once = len(case.steps.numbers) == 1
    again = np.ones(len(groups), bool) if once else recurs(found.value / case.steps.shares, case.step_ns)
    order = np.argsort(-np.nan_to_num(found.mean, nan=-np.inf), kind="stable").tolist()
    least = MAJORITY * float(found.mean[order[0]])
    long = [i for i in order if surely[i] and again[i] and found.mean[i] >= least]
    if order[0] not in long:
        return []
    few = len(long) <= MAJORITY * len(groups)
    return [_Longer(i, groups[i], found.value[i], float(found.z[i])) for i in (long if few else order[:1])]


def _seen(case: Case) -> list[I64]:
    """The rows of Steps of each recorded stage, without quick ranks, which are not long with it."""
    quick = [one.rows for one in case.met.peers.quick if one.work != "equal"]
    return [np.setdiff1d(g, np.concatenate([NO_ROWS, *quick])) for g in case.compared_stages]


def _levels(case: Case, spent: F64) -> F64:
    """The lower median over the ranks of each recorded stage, by step, ns: one slow rank of two does not make it long.

    Where ranks are missing, only ranks with counterparts in all recorded stages count, because context- and
    data-parallel ranks work on different data.
    """
    levels = []
    for group in _alike(case):
        ordered = np.sort(spent[group], axis=0)  # NaN last
        known = np.maximum(np.isfinite(ordered).sum(axis=0), 1)
        levels.append(ordered[(known - 1) // 2, np.arange(spent.shape[1])])
    return np.array(levels)


def _alike(case: Case) -> list[I64]:
    """The rows of each recorded stage with a counterpart in every other one; all of them where there are none."""
    groups = _seen(case)
    lines = [np.array([case.mesh.pipeline(case.steps.ranks[row]) for row in g]) for g in groups]
    common = set.intersection(*({tuple(line) for line in found.tolist()} for found in lines))
    if not common:
        return groups
    return [
        g[[tuple(line) in common for line in found.tolist()]] for g, found in zip(groups, lines, strict=True)
    ]


def _compute(case: Case) -> F64 | None:
    """The compute of each rank in each step, ns; None for traces of CPUs and tables, which do not show it apart."""
    if case.table is not None or not case.on_gpus:
        return None
    computed = case.computed
    return computed if np.nansum(computed) > 0 else None


def _priced(case: Case, found: Sequence[_Longer]) -> LongStage:
    """The price of the longest stage of `found`, or of all together where that is higher by more than devices vary."""
    alone = _price(case, found[:1])
    together = _price(case, found) if len(found) > 1 else alone
    return together if together.price.best > (1.0 + USUAL_VARIATION) * alone.price.best else alone


def _price(case: Case, found: Sequence[_Longer]) -> LongStage:
    """The stages of `found` with the price of their excess over the other stages."""
    own = case.steps.own
    levels = _levels(case, own)
    cured = own.copy()
    for one in found:
        level = levels[one.place]
        cured[one.rows] = cured[one.rows] * ((level - one.over) / level)[None, :]
    spent = np.nan_to_num(np.nansum(own, axis=1))
    order = sorted(np.concatenate([one.rows for one in found]).tolist(), key=lambda r: (-float(spent[r]), r))
    longer = max(case.steps.mean(found[0].over), 0.0)
    most = max(sum(case.steps.mean(one.over) for one in found), 0.0)
    if case.table is not None:
        gain = low = case.table.typical_saves_ns(order)  # its work moves to the other stages
        usual = case.table.usual(dict.fromkeys(order, np.setdiff1d(np.arange(len(own)), order)))
        high = max(gain, case.table.recorded_ns - case.table.step_ns(cured, None, usual)) + case.residual_ns
    else:
        gain = max(case.model.recorded_ns - case.model.step_ns(cured), 0.0)
        pinned, early = (m.recorded_ns - m.step_ns(cured) for m in (case.pinned_model, case.early_model))
        exact = case.residual_ns < LITTLE_SHARE * case.step_ns  # else an unseen rank may come later
        low = case.least_saved(pinned, gain, early) if exact else pinned
        high = case.model.recorded_ns - case.free_model.step_ns(cured) + case.residual_ns
    price = Price.between(low, gain, min(max(high, gain), max(most, gain)))
    pace = found[0].pace if all(one.pace for one in found) else None  # one of them has more work
    return LongStage(tuple(order), found[0].z, longer, price, cured=cured, pace=pace)


def _loading(case: Case, stage: _Longer, priced: LongStage, loaders: tuple[int, ...]) -> LongStage:
    """The stage with the price of its `loaders`: of a cure of their longest gaps alone; of a table, that in `priced`.

    A stage with late loaders may have more work as well, which costs something of its own.
    """
    found = replace(priced, loaders=loaders)
    if (models := case.timelines) is None:
        return found
    computed = _compute(case)
    over = case.steps.own - (_levels(case, case.steps.own)[stage.place] - stage.over)
    if computed is not None:
        gaps = case.steps.own - computed
        over = np.minimum(over, gaps - median_by_column(np.delete(gaps, loaders, axis=0)))
    over = np.nan_to_num(np.clip(over, 0.0, None))
    price = Price.between(*saved_by_gaps(case, models, {row: over[row] for row in loaders}))
    return replace(found, price=price, over=case.steps.mean(over[list(loaders)].max(axis=0)))
