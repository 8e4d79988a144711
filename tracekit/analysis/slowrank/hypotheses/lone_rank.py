"""A rank alone on its stage, or the only one recorded there: the part of its longer work by its device or host.

No other recorded rank does the same work, so that a longer stage may be one by design. But stages run the same
layers: a device that needs longer for nearly every kind of kernel that all stages run is slow, and a host that
launches far more slowly than the others, or pauses again and again, is late. More layers, or a loss, lengthen none of
these kernels. On a CPU, which launches for itself, only pauses between operators show that.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from tracekit.analysis.slowrank.hypotheses.suspect_work import pace_among
from tracekit.analysis.slowrank.price import Price
from tracekit.case.case import Case, Timelines
from tracekit.case.cures import saved_by, saved_by_gaps
from tracekit.causes import CAUSES, CPU_LAUNCH, GPU_COMPUTE, HOST_STALL
from tracekit.expected.excess import filled_by_spans, over_all
from tracekit.expected.same_kernels import Place, Ran, at_places, pace_at
from tracekit.findings import Cause
from tracekit.intervals import union
from tracekit.step_graph.replay import StepModel
from tracekit.steps.medians import median_of_others, of_rows
from tracekit.steps.steps import idle_within, windows_of
from tracekit.thresholds.slowrank import (
    FAR_MORE,
    KIND_RATIO,
    MAJORITY,
    MIN_LOST_SHARE,
    MINOR,
    NO_ACCIDENT,
    PEERS_SAMPLED,
    STAGE_TELLING_PEERS,
    USUAL_VARIATION,
)
from tracekit.units import F64, I64


@dataclass(frozen=True)
class LoneFault:
    """A rank (row of Steps) with a slow device or host: the cause, its price (ns a step), and its sign in words.

    over: what it takes longer than ranks of other stages, by step, ns; z: standard errors of their mean. The ends of
    the price differ by unmatched waits. A pause that messages wait for may cost all of its length, where the model
    hides a part of it.
    """

    row: int
    cause: Cause
    price: Price
    comparison: str
    over: F64
    z: float

    @property
    def gain(self) -> float:
        """What it most likely costs, ns a step."""
        return self.price.best

    @property
    def struck(self) -> list[int]:
        """The columns of Steps in which it costs something."""
        return np.flatnonzero(self.over >= MINOR * self.over.max()).tolist()

    @property
    def once(self) -> bool:
        """Whether it struck in one step alone, which may be an accident."""
        return len(self.struck) == 1


def lone_faults(case: Case) -> list[LoneFault]:
    """The faults of ranks without a recorded peer, the dearest first; empty where each has one, or none has a fault.

    A fault need not make its stage the longest one: a stage with more work may hide it. Ranks without a trace leave the
    others to compare with.
    """
    models = _compared(case)
    if models is None:
        return []
    found = [*_slow_devices(case, models), *(f for f in _late_hosts(case, models) if not f.once)]
    return sorted(found, key=lambda f: -f.gain)


def lone_accident(case: Case) -> LoneFault | None:
    """The most expensive fault of a host in one step; None as `lone_faults`, and where other steps show an accident.

    One step fewer shows that of the first one captured, in which a profiler starts.
    """
    others = len(case.steps.numbers) - 1
    models = _compared(case) if others < NO_ACCIDENT else None
    late = [f for f in _late_hosts(case, models) if f.once] if models is not None else []
    found = [f for f in late if others < NO_ACCIDENT - int(f.struck == [0])]
    return max(found, key=lambda f: f.gain, default=None)


def _compared(case: Case) -> Timelines | None:
    """The models that price a fault; None where each rank has a recorded peer, or one rank was read."""
    return case.timelines if _lone_rows(case) and len(case.steps.ranks) > 1 else None


def _lone_rows(case: Case) -> list[int]:
    """The rows of ranks without a recorded peer on their stage, but with other ranks of their program."""
    return [int(rows[0]) for rows in case.stages if len(rows) == 1 and rows[0] not in case.alone_in_program]


def _slow_devices(case: Case, models: Timelines) -> list[LoneFault]:
    """The faults of devices that need longer for nearly all kernels that other stages run too, in all steps or some."""
    if not case.on_gpus:
        return []
    turns = _turns(case)
    most = turns.max(axis=1, keepdims=True) - 1.0
    struck = (turns - 1.0 >= MAJORITY * most) | (most < USUAL_VARIATION)
    read = {r for row in _lone_rows(case) for r in _others(case, row)}
    usual = {r: at_places(case, np.array([r])) for r in sorted(read)}
    found = []
    for row in _lone_rows(case):
        others = [usual[r] for r in _others(case, row)]
        pace = pace_at(at_places(case, np.array([row]), struck[row]), others) or 1.0
        if pace - 1.0 <= max(MIN_LOST_SHARE, _usual_spread(others)):
            continue
        by_step = np.maximum(pace * turns[row] / np.median(turns[row][struck[row]]), 1.0)
        over = np.nan_to_num(case.computed[row] * (1.0 - 1.0 / by_step))
        cured = case.steps.own.copy()
        cured[row] -= over
        sign = f"nearly all kinds of kernels that every stage runs take {pace:.2f} times as long"
        z = float(np.nan_to_num(over_all(case, case.computed).z[row]))
        price = Price.between(*saved_by(case, models, [row], partial(StepModel.step_ns, target=cured)))
        if len(others) + 1 < STAGE_TELLING_PEERS:
            price = Price.between(0.0, price.best, price.high)  # nothing shows which of two devices is usual
        found.append(LoneFault(row, GPU_COMPUTE, price, sign, over, z))
    return found


def _others(case: Case, row: int) -> list[int]:
    """The rows that the rank in `row` is compared with: others without a recorded peer, and a sample of the rest."""
    mates, lone = case.of_program(row).tolist(), _lone_rows(case)
    rest = [r for r in mates if r not in lone][:PEERS_SAMPLED]
    return [*(r for r in lone if r != row and r in mates), *rest]


def _usual_spread(others: Sequence[Mapping[Place, Ran]]) -> float:
    """The excess pace that devices may have by chance: far more than `others` differ by, or what one kind varies by."""
    if len(others) < 2:
        return KIND_RATIO - 1.0
    paces = [pace_at(one, [o for o in others if o is not one]) or 1.0 for one in others]
    return FAR_MORE * float(np.abs(np.array(paces) - 1.0).max())


def _turns(case: Case) -> F64:
    """How many times its usual compute each rank needs in each step, beyond what varies on the others as well."""
    usual = of_rows(np.nanmedian, case.computed)[:, None]
    varied = np.nan_to_num(case.computed / np.maximum(usual, 1.0), nan=1.0)
    others = median_of_others(varied, [np.arange(len(varied))])
    return np.divide(varied, others, out=np.ones_like(varied), where=others > 0)


def _late_hosts(case: Case, models: Timelines) -> list[LoneFault]:
    """The faults of hosts, each in several steps or in one."""
    return [f for row in _lone_rows(case) if (f := _late_host(case, models, row))]


def _late_host(case: Case, models: Timelines, row: int) -> LoneFault | None:
    """The fault of the host of the rank in `row`; None unless its device is idle longer for it."""
    others, found = _others(case, row), over_all(case, case.steps.own - case.computed)
    over = np.nan_to_num(np.clip(found.value[row] - _at_begins(case, row), 0.0, None))
    if case.steps.mean(over) < case.threshold_ns:
        return None
    pace = pace_among(case, (row,), others)
    if pace is None and case.on_gpus:
        return None
    price, z = Price.between(*saved_by_gaps(case, models, {row: over})), float(np.nan_to_num(found.z[row]))
    # without its pauses it may wait for a stage without a trace instead, in messages that now find it late
    low = 0.0 if set(case.mesh.pipeline(case.steps.ranks[row])) & set(case.missing) else price.low
    price = Price.between(low, price.best, max(price.high, case.steps.mean(over)))
    cause = _cause_of_gaps(case, row, others, over)
    loads = cause is not None and CAUSES[cause].shown_by("loader")
    if not loads and pace is not None and pace[0] > KIND_RATIO * pace[1]:
        sign = f"its host needs {pace[0] / pace[1]:.1f} times as long between two launches"
        return LoneFault(row, CPU_LAUNCH, price, sign, over, z)
    return LoneFault(row, cause, price, CAUSES[cause].meaning, over, z) if cause else None


def _cause_of_gaps(case: Case, row: int, others: Sequence[int], over: F64) -> Cause | None:
    """What most of a device's longer gaps are (by step, ns): named spans, or gaps longer than any of the others'."""
    mine, theirs = case.features(row), [case.features(r) for r in others]
    known = [f for f in theirs if f is not None]
    if mine is None or len(known) < len(theirs):
        return None
    if (named := filled_by_spans(case, [row], over[None], MAJORITY, others)) is not None:
        return named
    longest = float(np.median([f.gaps.max(initial=0) for f in known])) if known else 0.0
    usual_gap = float(np.median([f.gap for f in known])) * case.steps.count
    pauses = float(mine.gaps[mine.gaps > longest].sum())
    return HOST_STALL if pauses >= MAJORITY * (float(mine.gaps.sum()) - usual_gap) else None


def _at_begins(case: Case, row: int) -> F64:
    """How long the device of the first stage is idle at the begin of each step, ns; 0 for other stages.

    The hosts of the others do the same work at that time, but run ahead while they wait for messages. A wait for data
    is a fault of its own.
    """
    found, rank = np.zeros(len(case.steps.numbers)), case.steps.ranks[row]
    mine = case.features(row)
    loads = mine is not None and mine.loader >= MAJORITY * mine.gap
    columns = np.flatnonzero(np.isfinite(case.steps.own[row])).tolist()
    if case.mesh.stage(rank) > 0 or loads or not columns:
        return found
    windows = windows_of(case.ops, case.steps, rank, columns)
    begin, end = idle_within(case.ops, rank, union(*windows))
    for column, at in zip(columns, windows[0].tolist(), strict=True):
        found[column] = (end - begin)[(begin <= at) & (at < end)].sum()
    return found


def lone_ranks(case: Case) -> I64:
    """Return the rows of GPU ranks that recorded several steps and have no peer in any of them, or in their program."""
    alone = ~np.isfinite(case.found.mean) & (np.isfinite(case.steps.own).sum(axis=1) > 1)
    alone &= [case.on_gpu(row) for row in range(len(alone))]
    return np.union1d(np.flatnonzero(alone), case.alone_in_program)


def varies_ns(case: Case, rows: I64) -> float:
    """Return what a step saves if each of `rows` works in every step as in its quickest one, ns; or not, if alone."""
    target = case.steps.own.copy()
    target[rows] = np.minimum(target[rows], np.nanmin(target[rows], axis=1, keepdims=True))
    target[np.intersect1d(rows, case.alone_in_program)] = 0.0
    return max(case.model.recorded_ns - case.model.step_ns(target), 0.0)
