"""Explanations of a slow step, each with the time that its absence would save by replay.

A hypothesis is only raised where its statistic is significant; the replay then says what it costs, so that ranks
with slack, stages off the critical path and links that hide behind compute cost nothing and are not named.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tracekit.analysis.slowrank.excess import Rows, stage_rows, typical
from tracekit.analysis.slowrank.statistics import (
    MIN_LOST_SHARE,
    NOISE_FLOOR,
    STAGE_MIN_PEERS,
    SUSPECT_SHARE,
    Z_LIMIT,
    Excess,
    excess,
)
from tracekit.analysis.slowrank.what_if import Replayer, Usual
from tracekit.mesh import Mesh
from tracekit.tables.steps import F64, Steps


@dataclass(frozen=True)
class Hypothesis:
    """Who is suspected (rows of Steps, worst first), what each costs, and what all of them cost together; ns a step."""

    rows: tuple[int, ...]
    lost: tuple[float, ...]
    gain: float
    z: tuple[float, ...]


def slow_ranks(found: Excess, steps: Steps, mesh: Mesh, replayer: Replayer) -> Hypothesis | None:
    """Ranks that work significantly longer than their peers and that the step waits for."""
    step = float(np.nanmean(steps.wall))
    enough = np.nan_to_num(found.mean, nan=0.0) > 0.5 * MIN_LOST_SHARE * step
    rows = np.flatnonzero((np.nan_to_num(found.z, nan=0.0) > found.limit) & enough)
    if not len(rows):
        return None
    groups = stage_rows(steps, mesh)
    target = _typical_without(steps, groups, rows)
    usual = replayer.usual(_peers(groups, rows))
    base = replayer.step_ns(steps.own, steps.own)
    return _judge(rows, found, steps.own, target, base, replayer, usual)


def _peers(groups: Rows, rows: npt.NDArray[np.int64]) -> dict[int, npt.NDArray[np.int64]]:
    """Unsuspected ranks that do the same work as each of `rows`; all of them where everybody is suspected."""
    peers = {}
    for group in groups:
        others = np.setdiff1d(group, rows)
        for row in np.intersect1d(group, rows):
            peers[int(row)] = others if len(others) else np.setdiff1d(group, row)
    return peers


def _typical_without(steps: Steps, groups: Rows, rows: npt.NDArray[np.int64]) -> F64:
    """Own times with `rows` replaced by the median of their unsuspected peers, and never above their own."""
    target = steps.own.copy()
    for group in groups:
        mine = np.intersect1d(group, rows)
        others = np.setdiff1d(group, rows)
        if len(mine) and len(others):
            target[mine] = np.fmin(target[mine], _median(steps.own[others])[None, :])
        elif len(mine):
            target[mine] = np.fmin(target[mine], typical(steps, groups)[mine])
    return target


def _median(own: F64) -> F64:
    """Median over ranks, per step; NaN for a step that none of them has whole."""
    known = np.isfinite(own).any(axis=0)
    result = np.full(own.shape[1], np.nan)
    result[known] = np.nanmedian(own[:, known], axis=0)
    return result


def _judge(
    rows: npt.NDArray[np.int64], found: Excess, own: F64, target: F64, base: float, replayer: Replayer,
    usual: Usual,
) -> Hypothesis | None:  # fmt: skip
    """Keeps the ranks without which the step would be shorter, given that the others are cured as well."""
    kept = rows[np.argsort(-found.mean[rows], kind="stable")]
    while True:
        cured = own.copy()
        cured[kept] = target[kept]
        gain = base - replayer.step_ns(own, cured, usual=usual)
        if gain <= 0:
            return None
        lost = []
        for row in kept:
            but_one = cured.copy()
            but_one[row] = own[row]
            lost.append(replayer.step_ns(own, but_one, usual=usual) - (base - gain))
        worst = max(lost)
        needed = np.array([v >= SUSPECT_SHARE * worst and v > 0 for v in lost])
        if needed.all() or not needed.any():
            order = sorted(range(len(kept)), key=lambda i: (-lost[i], int(kept[i])))
            return Hypothesis(
                tuple(int(kept[i]) for i in order), tuple(lost[i] for i in order), gain,
                tuple(float(found.z[kept[i]]) for i in order),
            )  # fmt: skip
        kept = kept[needed]


def long_stage(steps: Steps, mesh: Mesh, replayer: Replayer) -> Hypothesis | None:
    """A pipeline stage whose ranks all work longer than the other stages."""
    groups = [g for g in stage_rows(steps, mesh) if len(g)]
    if len(groups) < STAGE_MIN_PEERS or mesh.sizes["pp"] < STAGE_MIN_PEERS:
        return None
    levels = np.array([_usual(steps.own[g]) for g in groups])
    found = excess(levels, [np.arange(len(groups))], NOISE_FLOOR * float(np.nanmean(steps.wall)))
    if not np.isfinite(found.mean).any():
        return None
    worst = int(np.nanargmax(found.mean))
    if not found.z[worst] > Z_LIMIT:
        return None
    rows = groups[worst]
    ratio = (levels[worst] - found.value[worst]) / levels[worst]
    cured = steps.own.copy()
    cured[rows] = cured[rows] * ratio[None, :]
    base = replayer.step_ns(steps.own, steps.own)
    gain = base - replayer.step_ns(steps.own, cured)
    if gain <= 0:
        return None
    spent = np.nan_to_num(np.nansum(steps.own, axis=1))
    order = sorted(rows.tolist(), key=lambda r: (-float(spent[r]), r))
    return Hypothesis(
        tuple(order), tuple(gain for _ in order), gain, tuple(float(found.z[worst]) for _ in order)
    )


def _usual(own: F64) -> F64:
    """Lower median of a stage's ranks, per step: one slow rank of two is no long stage."""
    ordered = np.sort(own, axis=0)  # NaN last
    known = np.maximum(np.isfinite(own).sum(axis=0), 1)
    return np.asarray(ordered[(known - 1) // 2, np.arange(own.shape[1])])


def everybody(steps: Steps, mesh: Mesh, replayer: Replayer) -> float:
    """Time a step would save if every rank worked like the median of its peers throughout every step; ns."""
    return replayer.step_ns(steps.own, steps.own) - replayer.levelled_ns(stage_rows(steps, mesh))
