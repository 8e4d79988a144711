"""Whether the few ranks of a stage that work shorter than all others have less to do, or all others are slow.

Delays only add, so the lower of two levels is the usual one if all ranks do the same work. What they launch shows that:
kernels of the same names, as often, on equally large grids, or products of as many FLOPs. The same work that takes
longer is slow, fewer or smaller kernels are less work, and where a recording shows neither, both readings are open.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np

from tracekit.step_graph.delays import lower_level
from tracekit.step_graph.statistics import NO_ROWS, usual_of_others
from tracekit.steps.features import NO_WORK, Work
from tracekit.steps.host_need import products_in_steps
from tracekit.steps.medians import median_by_column, sampled
from tracekit.thresholds.slowrank import LITTLE_SHARE, MAJORITY, MINOR
from tracekit.timing.measured import Measured, Rows
from tracekit.units import F64, I64, Mask

Amount = Literal["equal", "less", "unknown"]
"""The work of quick ranks beside that of the others."""


@dataclass(frozen=True)
class QuickRanks:
    """The ranks of a stage (rows of Steps), half of it or fewer, on the lower of two levels of time, and their work."""

    rows: I64
    others: I64
    work: Amount
    shown: float = 0.0  # the share of the difference that less work explains


@dataclass(frozen=True)
class Peers:
    """Which ranks are compared with each other (rows of Steps).

    groups: the ranks of a stage, apart where few are quick and the others not, unless their work is known to be equal.
    usual: rows that show what their group needs: those on the lower level, if it has most ranks or equal work.
    """

    groups: Rows
    usual: I64
    quick: tuple[QuickRanks, ...]

    def beyond(self, spent: F64) -> F64:
        """Return what each row of `spent` (rows × columns, ns) exceeds its peers' usual by; NaN without any."""
        return spent - usual_of_others(spent, self.groups, self.usual)


def peers_of_work(run: Measured, one_part: Callable[[list[int]], str], *, of_table: bool) -> Peers:
    """Return the ranks that do equal work; a table shows no kernels, so that it shows no work of quick ranks either.

    Where the others are all ranks of `one_part` of the network, such as a host, that part is slow unless their work is
    known to be more.
    Raises InputError where the events of a rank cannot be read.
    """
    groups, usual, quick = [], [NO_ROWS], []
    for stage in run.stages:
        low, high = _two_levels(run, stage, of_table=of_table)
        apart = False
        if 0 < len(low) <= len(high):
            found = QuickRanks(low, high, *(("unknown",) if of_table else _work_of(run, low, high)))
            if found.work != "unknown" or not one_part(run.ranks_of(high)):
                quick.append(found)
                apart = found.work != "equal"
        groups += [low, np.setdiff1d(stage, low)] if apart else [stage]
        usual += [] if apart else [low]
    return Peers(groups, np.concatenate(usual), tuple(quick))


def _two_levels(run: Measured, stage: I64, *, of_table: bool) -> tuple[I64, I64]:
    """The rows of `stage` on the lower and the upper level of own time, else of compute; one level has no upper one.

    Late ranks compute beside less communication, and so faster: with longer own times they are no quick ranks.
    """
    for spent in (run.steps.own,) if of_table or not run.on_gpus else (run.steps.own, run.computed):
        known = stage[np.isfinite(spent[stage]).any(axis=1)]
        low = _lasting_level(spent[known])
        if not low.all():
            break
    quick, others = known[low], known[~low]
    late = len(others) and np.nanmedian(run.steps.own[quick]) > np.nanmedian(run.steps.own[others])
    return (known, NO_ROWS) if late else (quick, others)


def _lasting_level(spent: F64) -> Mask:
    """The rows on the lower level of `spent` (rows × steps, ns); all of them where one step alone makes two levels."""
    low = lower_level(spent)
    if low.all() or spent.shape[1] == 1:
        return low
    apart = median_by_column(spent[~low]) - median_by_column(spent[low])
    rest = np.delete(spent, int(np.argmax(np.nan_to_num(apart, nan=-np.inf))), axis=1)
    return low if (lower_level(rest) == low).all() else np.ones(len(spent), bool)


@dataclass(frozen=True)
class _Level:
    """What ranks of one level run, ns a step: medians over a sample; FLOPs a step, None where unknown."""

    own: float
    busy: float
    flops: float | None
    work: dict[str, Work]
    devices: frozenset[str]  # the models of their devices, `""` where unknown
    cut: float  # pieces a step that windows may cut at their edges, below one of each name


def _work_of(run: Measured, rows: I64, others: I64) -> tuple[Amount, float]:
    """The work of the ranks in `rows` beside that of `others`, and the share of the difference that it explains."""
    quick, usual = _level(run, rows), _level(run, others)
    if quick is None or usual is None:
        return "unknown", 0.0
    apart = usual.own - quick.own
    if (less := _less_ns(quick, usual)) >= MAJORITY * apart:
        return "less", min(less / apart, 1.0) if apart > 0 else 1.0
    unlike = _unlike_ns(quick, usual, on_gpus=run.on_gpus)
    return "equal" if unlike <= MINOR * apart else "unknown", 0.0


def _level(run: Measured, rows: I64) -> _Level | None:
    """What the ranks in `rows` run; None where no rank has a whole step."""
    read = [f for row in sampled(rows).tolist() if (f := run.features(row)) is not None]
    if not read:
        return None
    flops = [products_in_steps(run.run, run.ops, run.steps, f.rank) for f in read]
    known = [f for f in flops if f is not None]
    work = {}
    for name in {n for f in read for n in f.work}:  # the grid is known only where all of them show it
        of_each = [(w.count, w.each, w.blocks) for w in (f.work.get(name, NO_WORK) for f in read)]
        work[name] = Work(*np.median(of_each, axis=0).tolist())
    own, busy = (float(np.median([getattr(f, part) for f in read])) for part in ("own", "busy"))
    names = {r.rank: r.device for r in run.run.ranks}
    devices = frozenset(names[f.rank] for f in read)
    cuts = [len(run.ops.per_rank[f.rank].begins) / f.steps for f in read]
    cut = max((share for share in cuts if share < 1.0), default=0.0)
    return _Level(
        own, busy, float(np.median(known)) if len(known) == len(flops) else None, work, devices, cut
    )


def _pairs(quick: _Level, usual: _Level) -> Iterator[tuple[Work, Work, bool]]:
    """The work of each name on both levels, then that of all names of one level alone, with whether names differ.

    A device of another model, or another version of a library, does the same work in kernels of other names.
    """
    for name in sorted(quick.work.keys() & usual.work.keys()):
        yield quick.work[name], usual.work[name], False
    yield _alone(quick, usual), _alone(usual, quick), True


def _alone(level: _Level, other: _Level) -> Work:
    """The work of `level` in kernels of names that `other` does not run."""
    found = [level.work[name] for name in sorted(level.work.keys() - other.work.keys())]
    count = sum(work.count for work in found)
    return Work(count, sum(work.count * work.each for work in found) / count) if count else NO_WORK


def _less_ns(quick: _Level, usual: _Level) -> float:
    """The own time that quick ranks need less because they run fewer or smaller pieces, ns a step.

    It falls with the number of blocks, or of FLOPs, as gaps between pieces do with the number of these.
    """
    spent, least = 0.0, 0.0
    for mine, theirs, _ in _pairs(quick, usual):
        part = mine.count / theirs.count if theirs.count else 0.0
        if np.isfinite(mine.blocks / theirs.blocks):
            part *= mine.blocks / theirs.blocks
        spent += theirs.count * theirs.each
        least += theirs.count * theirs.each * part if theirs.count else mine.count * mine.each
    launched = 1.0 - least / spent if spent > 0 else 0.0
    products = 1.0 - quick.flops / usual.flops if quick.flops is not None and usual.flops else 0.0
    return max(launched, products) * usual.own


def _unlike_ns(quick: _Level, usual: _Level, *, on_gpus: bool) -> float:
    """The most of the difference that other work may explain, ns a step: all time of pieces not shown to be equal.

    Where ranks run as many pieces of each name, only compute may be shorter for less work; CPUs do not show it apart.
    """
    products = quick.flops is not None and usual.flops is not None
    if products and not _equal(quick.flops or 0.0, usual.flops or 0.0):
        return np.inf
    spent, as_often = 0.0, True
    other_device = "" not in quick.devices | usual.devices and not quick.devices & usual.devices
    for mine, theirs, renamed in _pairs(quick, usual):
        often = _equal(mine.count, theirs.count, max(quick.cut, usual.cut))
        as_often &= often
        if not often or not (products or (renamed and other_device) or _equal(mine.blocks, theirs.blocks)):
            spent += max(mine.count * mine.each, theirs.count * theirs.each)
    return min(spent, max(usual.busy - quick.busy, 0.0)) if as_often and on_gpus else spent


def _equal(one: float, two: float, cut: float = 0.0) -> bool:
    """Whether two amounts are equal but for the `cut` of windows, or nearly; false where one is unknown (NaN)."""
    return abs(one - two) <= max(LITTLE_SHARE * max(one, two), cut)
