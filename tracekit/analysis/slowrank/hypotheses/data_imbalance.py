"""Work that follows unevenly distributed data: the longest rank changes from step to step, and no rank is slow.

Its price is the saving if every micro-batch is typical and chance stays as it is.
"""

from collections import defaultdict
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tracekit.analysis.slowrank.hypotheses.dealt_work import (
    Followers,
    Read,
    followers,
    more_data_price_ns,
    read_kernels,
    variation,
)
from tracekit.analysis.slowrank.price import Price
from tracekit.case.case import Case
from tracekit.expected.same_kernels import Kind, SameKernels
from tracekit.step_graph.micro_batches import lasting_ns, uneven_batches_ns
from tracekit.step_graph.rank_timeline import Cuts, RankTimeline
from tracekit.step_graph.replay import StepModel
from tracekit.steps.dealt_tokens import Evened, even_shares
from tracekit.steps.medians import sampled
from tracekit.thresholds.slowrank import (
    CLEARLY_MORE,
    MIN_LOST_SHARE,
    MINOR,
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
    which work that is, every rank takes the median of its peers in each part of the step, and where they only run more
    often, no more than these cost. For an operation table, all micro-batches are made alike.
    """
    if case.table is not None:
        dealt = uneven_batches_ns(case, case.table)
        return dealt if dealt >= case.threshold_ns else 0.0
    dealt = dealt_price(case).low
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
    cuts = _cuts_of(model, even, lambda line, columns: _evened(even[line.row], line, columns))
    gain = min(model.recorded_ns - model.rescaled_ns(cuts), most)
    return gain if gain >= least else 0.0


def _cuts_of(
    model: StepModel, rows: Container[int], of: Callable[[RankTimeline, tuple[int, ...]], Cuts]
) -> dict[tuple[int, int], Cuts]:
    """The cuts that `of` gives for each of `rows` and the columns of its run, in the form of `rescaled_ns`."""
    runs = enumerate(model.runs)
    return {(n, line.row): of(line, some) for n, (some, lines) in runs for line in lines if line.row in rows}


def _evened(even: Evened, line: RankTimeline, columns: tuple[int, ...]) -> Cuts:
    """The steps in `columns` of a rank with the work behind all-to-alls scaled."""
    mine = np.isin(even.column, columns)
    return line.scaled(np.stack([even.begin[mine], even.end[mine]], axis=1).ravel(), even.factor[mine])


def _follows_data(case: Case) -> bool:
    """Whether work follows uneven data: attention varies between peers more than the rest of compute.

    Where a GPU trace does not name attention, it suffices that whole parts of a step vary, not only single kernels. On
    a CPU it does not, because its scheduler distributes time unevenly as well.
    """
    stage = sampled(max(case.stages, key=len), RANKS_SAMPLED).tolist()
    read = [f for row in stage if (f := case.features(row)) is not None]
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


def dealt_price(case: Case) -> Price:
    """The price of unevenly distributed work that follows the data, ns a step; 0 where none follows the data.

    Only what ranks with the same data have in common is taken off the kernels, so that each keeps its deviation by
    chance: in any job noise makes some rank the longest. At the low end unmatched operations keep their length; at the
    high end unmatched waits vanish, up to the time that data add to a rank's kernels. The case keeps the answer.
    """
    known: Price | None = vars(case).get("dealt_price")
    if known is None:
        known = vars(case)["dealt_price"] = _priced(case)
    return known


Common = dict[tuple[int, int, int], F64]
"""By replica and shape: the relative deviations of kernels that its ranks have in common, steps × places."""


def _priced(case: Case) -> Price:
    """`dealt_price`, found."""
    models = case.timelines if case.exposed_ns >= case.threshold_ns else None
    if models is None:
        return Price.exactly(0.0)
    model = models.likely
    read = read_kernels(case)
    found = followers(case, read) if read is not None else None
    if read is None or found is None:
        return Price.exactly(0.0)
    if len(read.by_row) < len(case.steps.ranks):  # the other ranks would still be the longest
        levelled = max(model.recorded_ns - model.levelled_ns(case.stages), 0.0)
        return Price.exactly(levelled)
    common = {kind: _in_common(case, read, kind, by_step=found.by_step) for kind in found.share}
    factor = {row: _factors(case, read, found, common, row) for row in read.by_row}

    def shorter_ns(other: StepModel) -> float:
        cuts = _cuts_of(other, factor, lambda line, columns: _without_data(case, read, factor, line, columns))
        return model.recorded_ns - other.rescaled_ns(cuts)

    low, most = max(shorter_ns(model), 0.0), shorter_ns(models.free)
    return Price.between(low, low, min(most, _longest_taken_off(case, read, factor)))


def _longest_taken_off(case: Case, read: Read, factor: Mapping[int, F64]) -> float:
    """The largest time that data add to the kernels of one rank, by step; mean over the steps, ns."""
    many = len(case.steps.numbers)
    taken = [
        np.bincount(kernels.column, kernels.lasted * np.maximum(1.0 - factor[row], 0.0), minlength=many)
        for row, kernels in read.by_row.items()
    ]
    return case.steps.mean(np.max(taken, axis=0))


def _factors(case: Case, read: Read, found: Followers, common: Mapping[Kind, Common], row: int) -> F64:
    """The factor by which each kernel of the rank in `row` is scaled to remove the effect of the data."""
    kernels, replica = read.by_row[row], case.replica_of(row)
    factor = np.ones(len(kernels.lasted))
    for kind, share in found.share.items():
        for same in (s for s in read.of(kind) if row in s.rows):
            i = same.rows.index(row)
            data = common[kind].get((replica, *same.lasted.shape[1:]))
            data = _by_share(same, i, share, by_step=found.by_step) if data is None else data
            factor[same.index[i]] = _without(same, i, data, by_step=found.by_step)
    return np.where(kernels.counts, factor, 1.0)


def _in_common(case: Case, read: Read, kind: Kind, *, by_step: bool) -> Common:
    """The deviations of kernels that ranks with the same data have in common, where a replica has two such ranks.

    An accident lengthens a kernel of one rank only, so the median counts, and of two ranks the smaller deviation.
    """
    mates: dict[tuple[int, int, int], list[F64]] = defaultdict(list)
    for same in read.of(kind):
        for row, off in zip(same.rows, same.off_in_step if by_step else same.off, strict=True):
            mates[case.replica_of(row), *same.lasted.shape[1:]].append(off)
    return {key: _shared(np.stack(several)) for key, several in mates.items() if len(several) > 1}


def _shared(off: F64) -> F64:
    """What the first axis has in common: the median; of two values the one nearer to 0, and 0 for unlike signs."""
    if len(off) > 2:
        return np.asarray(np.median(off, axis=0), np.float64)
    nearer = np.where(np.abs(off[0]) <= np.abs(off[1]), off[0], off[1])
    return np.asarray(np.where(off[0] * off[1] > 0, nearer, 0.0), np.float64)


def _by_share(same: SameKernels, i: int, share: float, *, by_step: bool) -> F64:
    """The part of the `i`-th rank's deviations that data cause, which make `share` of their variance."""
    off = np.broadcast_to(same.off_in_step[i], same.share[i].shape) if by_step else same.off[i]
    usual = np.where(np.abs(off) > CLEARLY_MORE - 1.0, 0.0, off)
    return np.asarray(usual * (1.0 - np.sqrt(1.0 - min(share, 1.0))), np.float64)


def _without(same: SameKernels, i: int, data: F64, *, by_step: bool) -> F64:
    """The factor for the `i`-th rank's kernels, steps × places, without the part `data` of their deviations."""
    took = 1.0 + same.share[i]
    wanted = (took - data - same.lasting_by_chance()[i]) * (1.0 if by_step else same.typical() / same.usual)
    return np.asarray(np.maximum(wanted, 0.0) / np.maximum(took, MINOR), np.float64)


def _without_data(
    case: Case, read: Read, factor: Mapping[int, F64], line: RankTimeline, columns: tuple[int, ...]
) -> Cuts:
    """The steps in `columns` of a rank with each of its kernels scaled by its factor."""
    kernels = read.by_row[line.row]
    mine = np.isin(kernels.column, columns)
    start, lasted = kernels.start[mine], kernels.lasted[mine].astype(np.int64)
    progress = case.ops.progress[case.steps.ranks[line.row]]
    ends = np.stack([progress.at(start), progress.at(start + lasted)], axis=1).ravel().astype(np.float64)
    return line.scaled(ends, factor[line.row][mine])
