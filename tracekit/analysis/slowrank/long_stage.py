"""A pipeline stage whose ranks all work longer than the other stages, and between what bounds it costs.

Work is compute. A stage that stands still more than the others between kernels has hosts that launch late: nothing lets
those of the first stage run ahead at the begin of a step, while the others' do so as they wait for it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from tracekit.analysis.slowrank.case import Case
from tracekit.analysis.slowrank.excess import recurs
from tracekit.analysis.slowrank.nodes import nodes_of
from tracekit.analysis.slowrank.statistics import confidence, excess, median_of_others
from tracekit.analysis.slowrank.suspect_work import late_loaders, launches_alike, paused_hosts
from tracekit.analysis.slowrank.table_model import TableModel
from tracekit.analysis.slowrank.what_if import StepModel
from tracekit.tables.compute_time import compute_in_steps
from tracekit.tables.launch_pace import launch_pace
from tracekit.tables.steps import F64
from tracekit.thresholds.slowrank import (
    FAINT_CONFIDENCE,
    MIN_LOST_SHARE,
    NODE_RANKS,
    NOISE_FLOOR,
    STAGE_MIN_PEERS,
    Z_LIMIT,
)


@dataclass(frozen=True)
class LongStage:
    """The ranks of a long stage (rows of Steps, longest first) and what it costs; ns a step."""

    rows: tuple[int, ...]
    z: float
    over: float  # work beyond the other stages
    gain: float  # what the step would save if the stage worked like the others
    low: float  # the same if all that is not matched keeps its recorded length
    high: float  # the same if all that is not matched shrinks to its transfer, and the model's error counts
    loaders: tuple[int, ...] = ()  # those of `rows` that wait for their data loaders
    idle: bool = False  # it computes no longer: its devices stand still between kernels
    hosts_alike: bool = False  # its hosts launch as fast as the others'
    paused: tuple[int, ...] = ()  # those of `rows` whose processes pause, if it is idle
    by_design: bool = False  # all of them do, on several nodes


def long_stage(case: Case) -> LongStage | None:
    """The pipeline stage that works significantly longer than the others; None where there is none, or it is free."""
    found = _longest(case, case.steps.own)
    if found is None:
        return None
    rows, over, z = found
    whole = _priced(case, rows, over, z)
    if whole.high < MIN_LOST_SHARE * case.step_ns:
        return None
    loaders = late_loaders(case, whole.rows)
    computed = _compute(case)
    if loaders or computed is None:
        return replace(whole, loaders=loaders)
    levels = _levels(case, computed)
    stage = next(i for i, group in enumerate(_seen(case)) if group[0] == rows[0])
    beyond = levels - median_of_others(levels, [np.arange(len(levels))])
    work = _priced(case, rows, np.clip(np.minimum(over, beyond[stage]), 0.0, None), z)
    if work.high >= MIN_LOST_SHARE * case.step_ns:
        return work
    other = _longest(case, computed)
    if other is not None:
        work = _priced(case, *other)
        if work.high >= MIN_LOST_SHARE * case.step_ns:
            return work
    return _idle(case, whole)


def faint_stage(case: Case) -> LongStage | None:
    """The stage whose longer work costs, and is hardly chance, but no proof either; None where there is none."""
    found = _longest(case, case.steps.own, proven=False)
    if found is None or found[2] > Z_LIMIT:
        return None
    stage = _priced(case, *found)
    return stage if stage.gain >= MIN_LOST_SHARE * case.step_ns else None


def _idle(case: Case, stage: LongStage) -> LongStage:
    """The stage as one whose devices stand still, with whether its hosts launch as fast as those of other stages."""
    others = np.setdiff1d(np.arange(len(case.steps.ranks)), stage.rows)
    alike = launches_alike(case, stage.rows, others.tolist())
    paused = paused_hosts(case, stage.rows) if launch_pace(case.run, case.steps.ranks[stage.rows[0]]) else ()
    design = set(paused) == set(stage.rows) and _on_several_nodes(case, stage.rows)
    return replace(stage, idle=True, hosts_alike=alike, paused=paused, by_design=design)


def _on_several_nodes(case: Case, rows: Sequence[int]) -> bool:
    """Whether ranks surely run on several nodes: as their traces tell, or because there are more than a node holds."""
    nodes = nodes_of(case)
    return len({nodes.get(case.steps.ranks[row]) for row in rows}) > 1 if nodes else len(rows) > NODE_RANKS


def _longest(
    case: Case, spent: F64, *, proven: bool = True
) -> tuple[npt.NDArray[np.int64], F64, float] | None:
    """(rows, time beyond the other stages by step, standard errors) of the longest stage; None if by chance.

    spent: time of each rank in each step, ns. It need not be `proven` that it is no chance, but likely.
    """
    groups = _seen(case)
    if len(groups) < STAGE_MIN_PEERS:
        return None
    levels = _levels(case, spent)
    found = excess(levels, [np.arange(len(groups))], NOISE_FLOOR * case.step_ns)
    if not np.isfinite(found.mean).any():
        return None
    worst = int(np.nanargmax(found.mean))
    z = float(found.z[worst])
    if not (z > Z_LIMIT if proven else confidence(z, len(groups)) > FAINT_CONFIDENCE):
        return None
    if len(case.steps.numbers) > 1 and not recurs(found.value, case.step_ns)[worst]:
        return None
    return groups[worst], found.value[worst], z


def _seen(case: Case) -> list[npt.NDArray[np.int64]]:
    """Rows of Steps of each stage that was recorded."""
    return [g for g in case.stages if len(g)]


def _levels(case: Case, spent: F64) -> F64:
    """Lower median over the ranks of each recorded stage, by step, ns: if one of two is slow, the stage is not long.

    Where ranks are missing, those count that have their counterparts in all recorded stages: context and data parallel
    ranks differ by what they were dealt.
    """
    levels = []
    for group in _alike(case):
        ordered = np.sort(spent[group], axis=0)  # NaN last
        known = np.maximum(np.isfinite(ordered).sum(axis=0), 1)
        levels.append(ordered[(known - 1) // 2, np.arange(spent.shape[1])])
    return np.array(levels)


def _alike(case: Case) -> list[npt.NDArray[np.int64]]:
    """The rows of each recorded stage with a counterpart in every other one; all of them where there are none."""
    groups = _seen(case)
    lines = [np.array([case.mesh.line(case.steps.ranks[row], ("pp",)) for row in g]) for g in groups]
    common = set.intersection(*({tuple(line) for line in found.tolist()} for found in lines))
    if not common:
        return groups
    return [
        g[[tuple(line) in common for line in found.tolist()]] for g, found in zip(groups, lines, strict=True)
    ]


def _compute(case: Case) -> F64 | None:
    """Compute of each rank in each step, ns; None where the trace does not tell it from what a rank does besides."""
    on_gpu = all(r.on_gpu for r in case.ops.per_rank.values())
    if isinstance(case.model, TableModel) or not on_gpu:
        return None
    computed = compute_in_steps(case.ops, case.steps)
    return computed if np.nansum(computed) > 0 else None


def _priced(case: Case, rows: npt.NDArray[np.int64], over: F64, z: float) -> LongStage:
    """The stage of `rows` with the price of `over`, its work beyond the others' by step (ns)."""
    own = case.steps.own
    level = _levels(case, own)[next(i for i, g in enumerate(_seen(case)) if g[0] == rows[0])]
    cured = own.copy()
    cured[rows] = cured[rows] * ((level - over) / level)[None, :]
    spent = np.nan_to_num(np.nansum(own, axis=1))
    order = sorted(rows.tolist(), key=lambda r: (-float(spent[r]), r))
    longer = max(float(np.nanmean(over)), 0.0)
    gain = max(_saved(case.model, case.model, cured), 0.0)
    if isinstance(case.model, TableModel):
        gain = min(gain, longer)  # typical work on all ranks cures other faults as well
    high = _saved(case.model, case.free_model, cured) + case.residual_ns
    low = gain if isinstance(case.model, TableModel) else _saved(case.pinned_model, case.pinned_model, cured)
    return LongStage(tuple(order), z, longer, gain, max(low, 0.0), min(max(high, gain), max(longer, gain)))


def _saved(recorded: StepModel | TableModel, model: StepModel | TableModel, cured: F64) -> float:
    """What the step saves with the `cured` own times, ns; of a table, what typical work on all ranks would save."""
    if isinstance(model, TableModel):
        return model.recorded_ns - model.ideal_ns
    return recorded.recorded_ns - model.step_ns(cured)
