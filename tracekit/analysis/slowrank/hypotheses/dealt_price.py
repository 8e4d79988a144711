"""The price of unevenly distributed data: the saving if every micro-batch is typical and chance stays as it is."""

from collections import defaultdict
from collections.abc import Mapping

import numpy as np

from tracekit.analysis.slowrank.case import Case
from tracekit.analysis.slowrank.expected.same_kernels import Kind, SameKernels
from tracekit.analysis.slowrank.hypotheses.dealt_work import (
    Followers,
    Read,
    followers,
    more_data_ns,
    read_kernels,
    rows_sampled,
    variation,
)
from tracekit.analysis.slowrank.price import Price
from tracekit.step_graph.rank_timeline import Cuts, RankTimeline
from tracekit.step_graph.replay import StepModel
from tracekit.steps.step_kernels import StepKernels
from tracekit.thresholds.slowrank import CLEARLY_MORE, MINOR, USUAL_VARIATION
from tracekit.units import F64


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
    exposed = float(np.where(case.analysed, case.ops.exposed, 0).sum())
    little = exposed / case.steps.count / len(case.steps.ranks) < case.threshold_ns
    models = None if little else case.timelines
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
    low = max(model.recorded_ns - model.rescaled_ns(_all_cuts(case, model, read, factor)), 0.0)
    most = model.recorded_ns - models.free.rescaled_ns(_all_cuts(case, models.free, read, factor))
    return Price.between(low, low, min(most, _longest_taken_off(case, read, factor)))


def _all_cuts(
    case: Case, model: StepModel, read: Read, factor: Mapping[int, F64]
) -> dict[tuple[int, int], Cuts]:
    """The cuts of own time and the factors of all ranks in `model`, in the form of `rescaled_ns`."""
    return {
        (n, line.row): _without_data(case, read.by_row[line.row], factor[line.row], line, columns)
        for n, (columns, lines) in enumerate(model.runs)
        for line in lines
        if line.row in factor
    }


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
    case: Case, kernels: StepKernels, factor: F64, line: RankTimeline, columns: tuple[int, ...]
) -> Cuts:
    """The steps in `columns` of a rank with each of its kernels scaled by its factor."""
    mine = np.isin(kernels.column, columns)
    start, lasted = kernels.start[mine], kernels.lasted[mine].astype(np.int64)
    progress = case.ops.progress[case.steps.ranks[line.row]]
    ends = np.stack([progress.at(start), progress.at(start + lasted)], axis=1).ravel().astype(np.float64)
    return line.scaled(ends, factor[mine])


def more_data_price_ns(case: Case) -> float:
    """The most that more data cost which reach now one rank and now another, as counts of kernels show, ns a step.

    The longest rank of each step loses it. 0 unless the counts of ranks vary more than work does without data.
    """
    rows = rows_sampled(max(case.stages, key=len))
    more = more_data_ns(case, rows)
    if variation(float(np.nanmedian(case.steps.own[rows])) + more) <= USUAL_VARIATION:
        return 0.0
    return case.steps.mean(more.max(axis=0))
