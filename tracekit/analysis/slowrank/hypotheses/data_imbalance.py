"""Work that follows unevenly distributed data: the longest rank changes from step to step, and no rank is slow."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tracekit.analysis.slowrank.case import Case
from tracekit.analysis.slowrank.expected.excess import segments
from tracekit.analysis.slowrank.hypotheses.dealt_price import dealt_ns
from tracekit.analysis.slowrank.hypotheses.host_bound import levelling_saves_ns
from tracekit.analysis.slowrank.hypotheses.uneven_micro_batches import lasting_ns, uneven_batches_ns
from tracekit.step_graph.rank_timeline import RankTimeline
from tracekit.step_graph.statistics import MAD_TO_SIGMA
from tracekit.steps.dealt_tokens import Evened, even_shares
from tracekit.steps.features import read_features
from tracekit.thresholds.slowrank import (
    CLEARLY_MORE,
    MIN_LOST_SHARE,
    RANKS_SAMPLED,
    STEP_PARTS,
    UNEVEN_RATIO,
    USUAL_VARIATION,
)
from tracekit.timing.measured import Measured
from tracekit.units import F64


def uneven_data(case: Case) -> float:
    """The price of an imbalance that follows the data, ns a step; 0 where there is none, or it is below the threshold.

    The price is what a step saves if all work that follows the data takes its usual time. Where the kernels do not show
    which work that is, every rank takes the median of its peers in each part of the step. For an operation table, all
    micro-batches are made alike.
    """
    if case.table is not None:
        dealt = uneven_batches_ns(case, case.table)
        return dealt if dealt >= MIN_LOST_SHARE * case.step_ns else 0.0
    dealt = dealt_ns(case)
    if dealt >= MIN_LOST_SHARE * case.step_ns:
        return dealt
    gain = case.model.recorded_ns - case.model.levelled_ns(case.stages)
    gain = min(gain, levelling_saves_ns(case)) if gain >= MIN_LOST_SHARE * case.step_ns else gain
    return gain if gain >= MIN_LOST_SHARE * case.step_ns and _follows_data(case) else 0.0


def data_explains(case: Case, uneven: float, rows: Sequence[int], gain: float) -> bool:
    """Whether an imbalance that costs `uneven` explains why `rows`, which cost `gain` (ns a step), work longer.

    For an operation table, compares with what `rows` cost if all micro-batches are alike.
    """
    if case.table is not None:
        return 0 < uneven >= lasting_ns(case, case.table, rows)
    return uneven > CLEARLY_MORE * gain


def uneven_tokens(case: Case) -> float:
    """The price of an uneven distribution of tokens over experts, ns a step; 0 where it is below the threshold.

    It is what the step gains if every all-to-all deals its group out evenly, and at most what the rank with most tokens
    works beyond the median.
    """
    least, most = MIN_LOST_SHARE * case.step_ns, case.met.tokens.lost_ns
    model = case.timeline
    if most < least or model is None:
        return 0.0
    even = even_shares(case.ops, case.steps, case.stages, case.expert_groups)
    cuts = {
        (n, line.row): _cuts(even[line.row], line, columns)
        for n, (columns, lines) in enumerate(model.runs)
        for line in lines
        if line.row in even
    }
    gain = min(model.recorded_ns - model.rescaled_ns(cuts), most)
    return gain if gain >= least else 0.0


def _cuts(even: Evened, line: RankTimeline, columns: tuple[int, ...]) -> tuple[F64, F64]:
    """(readings of own time that cut the steps in `columns` behind all-to-alls, the factor of each part)."""
    mine = np.isin(even.column, columns)
    ends = np.stack([even.begin[mine], even.end[mine]], axis=1).ravel()
    begin, end = line.knots[0], line.knots[-1]
    cuts = np.concatenate([[begin], np.clip(ends, begin, end), [end]])
    factor = np.ones(len(cuts) - 1)
    factor[1::2] = even.factor[mine]
    return np.maximum.accumulate(cuts), factor


def _follows_data(case: Case) -> bool:
    """Whether work follows uneven data: attention varies between peers more than the rest of compute.

    Where a GPU trace does not name attention, it suffices that whole parts of a step vary, not only single kernels. On
    a CPU it does not, because its scheduler distributes time unevenly as well.
    """
    stage = max(case.stages, key=len)
    rows = [int(r) for r in stage[:: max(1, len(stage) // RANKS_SAMPLED)]][:RANKS_SAMPLED]
    read = [
        f
        for r in rows
        if (f := read_features(case.run, case.ops, case.steps, case.steps.ranks[r])) is not None
    ]
    if not read:
        return False
    most = max(len(f.busy_by_step) for f in read)
    read = [f for f in read if len(f.busy_by_step) == most]  # ranks with every step whole
    if len(read) < 2:
        return False
    attention = np.array([f.attention_by_step for f in read])
    rest = np.array([f.busy_by_step for f in read]) - attention
    if attention.mean() < MIN_LOST_SHARE * rest.mean():
        uneven = dispersion(case)
        return read[0].on_gpu and uneven.ratio > UNEVEN_RATIO and uneven.spread_share > USUAL_VARIATION
    return _variation(attention) > max(CLEARLY_MORE * _variation(rest), USUAL_VARIATION)


def _variation(values: F64) -> float:
    """The spread between ranks over their median, in the median step; `values` are ranks × steps.

    Robust against a single outlying rank.
    """
    middle = np.median(values, axis=0)
    off = MAD_TO_SIGMA * np.median(np.abs(values - middle), axis=0) / np.maximum(middle, 1.0)
    return float(np.sort(off)[(len(off) - 1) // 2])


@dataclass(frozen=True)
class Dispersion:
    """How unevenly work is distributed between peers: `ratio` is 1 where delays are independent of each other."""

    ratio: float
    spread_share: float  # standard deviation of a peer's own time in a step over its mean


def dispersion(run: Measured) -> Dispersion:
    """The overdispersion of own time between peers: variance of blocks over the sum of their operations' variances."""
    parts = segments(run)
    whole, single, level = 0.0, 0.0, 0.0
    for rows in (stage for stage in run.stages if len(stage) >= 2):
        values = parts[rows][:, np.isfinite(parts[rows]).any(axis=0)]
        values = values[np.isfinite(values).all(axis=1)]
        blocks = len(run.steps.numbers) * min(STEP_PARTS, values.shape[1] // (2 * len(run.steps.numbers)))
        if len(values) < 2 or not blocks:
            continue
        cuts = np.linspace(0, values.shape[1], blocks + 1).astype(int)  # two operations or more a block
        deviation = values - values.mean(axis=0)
        # a persistent difference is a slow rank, not an imbalance
        deviation -= deviation.mean(axis=1, keepdims=True)
        sums = np.add.reduceat(deviation, cuts[:-1], axis=1)
        whole += float(np.square(sums).sum())
        single += float(np.square(deviation).sum())
        level += float(values.sum() / len(values)) ** 2 / len(sums[0]) * len(values)
    return Dispersion(whole / single if single > 0 else 1.0, float(np.sqrt(whole / level)) if level else 0.0)
