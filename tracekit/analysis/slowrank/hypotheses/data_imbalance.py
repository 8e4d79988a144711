"""Work that follows unevenly distributed data: the longest rank changes from step to step, and no rank is slow.

In an operation table a long micro-batch is long on every stage that it passes, forward and backward; noise and slow
devices differ from stage to stage. With only one stage, forward and backward are compared.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from tracekit.analysis.slowrank.case import Case
from tracekit.analysis.slowrank.hypotheses.dealt_price import dealt_ns, more_data_price_ns
from tracekit.analysis.slowrank.hypotheses.dealt_work import rows_sampled, variation
from tracekit.step_graph.rank_timeline import Cuts, RankTimeline
from tracekit.step_graph.table_model import TableModel
from tracekit.steps.dealt_tokens import Evened, even_shares
from tracekit.thresholds.slowrank import (
    CLEARLY_MORE,
    MAJORITY,
    MIN_LOST_SHARE,
    STEP_PARTS,
    UNEVEN_RATIO,
    USUAL_VARIATION,
)
from tracekit.timing.measured import Measured
from tracekit.units import F64, I64


def uneven_data(case: Case) -> float:
    """The price of an imbalance that follows the data, ns a step; 0 where there is none, or it is below the threshold.

    The price is what a step saves if all work that follows the data takes its usual time. Where the kernels do not show
    which work that is, every rank takes the median of its peers in each part of the step, and where they only run more
    often, no more than these cost. For an operation table, all micro-batches are made alike.
    """
    if case.table is not None:
        dealt = uneven_batches_ns(case, case.table)
        return dealt if dealt >= case.threshold_ns else 0.0
    dealt = dealt_ns(case)
    if dealt >= case.threshold_ns:
        return dealt
    gain = case.model.recorded_ns - case.model.levelled_ns(case.stages)
    if gain >= case.threshold_ns and not _follows_data(case):
        gain = min(gain, more_data_price_ns(case))
    return gain if gain >= case.threshold_ns else 0.0


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
    least, most = case.threshold_ns, case.met.tokens.lost_ns
    model = case.timeline
    if most < least or model is None:
        return 0.0
    even = even_shares(case.ops, case.steps, case.stages, case.expert_groups)
    cuts = {
        (n, line.row): _evened(even[line.row], line, columns)
        for n, (columns, lines) in enumerate(model.runs)
        for line in lines
        if line.row in even
    }
    gain = min(model.recorded_ns - model.rescaled_ns(cuts), most)
    return gain if gain >= least else 0.0


def _evened(even: Evened, line: RankTimeline, columns: tuple[int, ...]) -> Cuts:
    """The steps in `columns` of a rank with the work behind all-to-alls scaled."""
    mine = np.isin(even.column, columns)
    return line.scaled(np.stack([even.begin[mine], even.end[mine]], axis=1).ravel(), even.factor[mine])


def _follows_data(case: Case) -> bool:
    """Whether work follows uneven data: attention varies between peers more than the rest of compute.

    Where a GPU trace does not name attention, it suffices that whole parts of a step vary, not only single kernels. On
    a CPU it does not, because its scheduler distributes time unevenly as well.
    """
    read = [f for r in rows_sampled(max(case.stages, key=len)) if (f := case.features(r)) is not None]
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
    return variation(attention) > max(CLEARLY_MORE * variation(rest), USUAL_VARIATION)


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


def uneven_batches_ns(run: Measured, model: TableModel) -> float:
    """The saving of a step if every micro-batch needs the same work, ns; 0 where stages do not agree on the long ones.

    Each rank keeps its lasting excess over its peers, and each step its excess over other steps.
    """
    dealt = _Dealt(run, model)
    shared, correlation = dealt.shared
    if shared < USUAL_VARIATION or correlation < MAJORITY:
        return 0.0
    return model.recorded_ns - float(model.timeline.step_ns(dealt.evenly).mean())


def lasting_ns(run: Measured, model: TableModel, rows: Sequence[int]) -> float:
    """The saving of a step without the lasting slowness of `rows`, with all micro-batches alike, ns."""
    dealt = _Dealt(run, model)
    work = dealt.evenly.copy()
    for kind in dealt.kinds.values():
        level = {
            row: work[kind[model.row[kind] == row]].mean() for row in np.unique(model.row[kind]).tolist()
        }
        others = [v for row, v in level.items() if row not in rows] or list(level.values())
        for row in set(level).intersection(rows):
            work[kind[model.row[kind] == row]] *= min(float(np.median(others)) / max(level[row], 1.0), 1.0)
    return float((model.timeline.step_ns(dealt.evenly) - model.timeline.step_ns(work)).mean())


def unexplained_ns(run: Measured, model: TableModel) -> float:
    """The saving of a step if every operation takes the typical time of its type, compute by stage and type; ns."""
    work = model.typical.copy()
    for rows in _Dealt(run, model).kinds.values():
        work[rows] = model.timeline.work[rows].mean()
    return model.recorded_ns - float(model.timeline.step_ns(work).mean())


@dataclass(frozen=True)
class _Dealt:
    """The compute of micro-batches, by kind and stage."""

    run: Measured
    model: TableModel

    @cached_property
    def stage(self) -> dict[int, int]:
        """The pipeline stage of each row of Steps."""
        return {int(row): n for n, rows in enumerate(self.run.stages) for row in rows}

    @cached_property
    def kinds(self) -> dict[tuple[int, str, int], I64]:
        """(stage, name, chunk) → the operations that compute a micro-batch, or run once a step."""
        found: dict[tuple[int, str, int], list[int]] = defaultdict(list)
        seen: dict[tuple[int, str, int], int] = defaultdict(int)
        for i in np.flatnonzero(~self.model.timeline.communication).tolist():
            operation = self.model.timeline.recording.operations[i]
            row = int(self.model.row[i])
            chunk = 0
            if operation.micro_batch >= 0:  # it passes each chunk of the stage once
                passed = (row, operation.name, operation.micro_batch)
                chunk, seen[passed] = seen[passed], seen[passed] + 1
            found[self.stage[row], operation.name, chunk].append(i)
        return {key: np.array(rows, np.int64) for key, rows in found.items()}

    @cached_property
    def evenly(self) -> F64:
        """The work if all micro-batches are alike, operations × steps, ns."""
        work = self.model.timeline.work.copy()
        for rows in self.kinds.values():
            mine = self.model.timeline.work[rows]
            usual = float(mine.mean())
            for row in np.unique(self.model.row[rows]).tolist():
                at = self.model.row[rows] == row
                work[rows[at]] = mine.mean(axis=0) * (float(mine[at].mean()) / max(usual, 1.0))
        return work

    @cached_property
    def shared(self) -> tuple[float, float]:
        """(coefficient of variation that all places of a micro-batch share, correlation between these places).

        An excess of a rank in all micro-batches of a step is left out, because intermittently slow hosts cause it too.
        """
        work = self.model.timeline.work / np.maximum(self.evenly, 1.0)
        places: dict[tuple[int, int], dict[tuple[int, str], list[F64]]] = defaultdict(
            lambda: defaultdict(list)
        )
        several = sum(len(rows) > 0 for rows in self.run.stages) > 1
        for (stage, name, _), rows in self.kinds.items():
            for row in np.unique(self.model.row[rows]).tolist():
                mine = rows[self.model.row[rows] == row]
                if len(mine) < 2:
                    continue
                off = work[mine] - work[mine].mean(axis=0)
                replica = min(self.run.mesh.pipeline(self.run.steps.ranks[row]))
                for order, values in enumerate(off):
                    places[replica, order][stage, "" if several else name].append(values)
        pairs = [
            (np.mean(values[a], axis=0), np.mean(values[b], axis=0))
            for values in places.values()
            for n, a in enumerate(values)
            for b in list(values)[n + 1 :]
        ]
        if not pairs:
            return 0.0, 0.0
        one, two = (np.concatenate(side) for side in zip(*pairs, strict=True))
        spread = float(np.sqrt(np.mean(one**2) * np.mean(two**2)))
        together = float(np.mean(one * two))
        return float(np.sqrt(max(together, 0.0))), together / spread if spread > 0 else 0.0


def segments(run: Measured) -> F64:
    """The own time before each operation of the analysed steps, ns; rows as in `run.steps`, one column an operation.

    Column k is the work between the posts of the rank's operations k−1 and k, or since the begin of its step where the
    previous step was not analysed. Rows of stages with fewer operations end in NaN; a rank with a different number of
    operations than its peers is NaN throughout.
    """
    ops, steps = run.ops, run.steps
    parts = []
    after_a_gap = np.flatnonzero(np.diff(steps.numbers) > 1) + 1
    for i, rank in enumerate(steps.ranks):
        where = ops.of(rank)
        posts = ops.at_start[where][run.analysed[where]].astype(np.float64)
        late = len(steps.numbers) == 1 and np.isfinite(steps.begin[i, 0])
        part = np.diff(posts, prepend=steps.begin[i, 0] if late else posts[:1])
        labels = ops.step[where][run.analysed[where]]
        for column in after_a_gap.tolist():
            if np.isfinite(steps.begin[i, column]):
                first = int(np.argmax(labels == steps.numbers[column]))
                part[first] = max(posts[first] - steps.begin[i, column], 0.0)
        parts.append(part)
    result = np.full((len(parts), max((len(p) for p in parts), default=0)), np.nan)
    for rows in run.stages:
        usual = int(np.median([len(parts[r]) for r in rows])) if len(rows) else 0
        for row in rows:
            if len(parts[row]) == usual:
                result[row, :usual] = parts[row]
    return result
