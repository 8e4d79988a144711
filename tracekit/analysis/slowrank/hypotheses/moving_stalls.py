"""Ranks that are slow in turn, or data loaders late on all ranks at once: the job is not healthy, no rank is slow.

Garbage collection out of phase, logging, or any pause that moves from process to process makes every step wait for
another rank: each stall is significant by itself, but no rank has more stalls than chance explains. Loaders that run
empty every few batches make all ranks late in the same steps, so that no rank exceeds its peers. The price is what a
step saves without all these stalls.

A device that throttles now on this rank and now on that one has the same form in compute: each rank is slow in one
step, which would be an accident, but accidents that hit step after step are what the job loses.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from tracekit.analysis.slowrank.hypotheses.candidates import Hypothesis, those_that_cost
from tracekit.analysis.slowrank.hypotheses.dealt_work import more_data_ns
from tracekit.case.case import Case
from tracekit.case.cures import likely_saved_ns, saved_beside_hosts, without_gaps
from tracekit.causes import DATA_IMBALANCE, DATALOADER, GPU_COMPUTE, HOST_STALL
from tracekit.expected.excess import filled_by_spans, outliers, scattered
from tracekit.findings import Cause
from tracekit.intervals import inside_each
from tracekit.step_graph.delays import levels, low
from tracekit.steps.medians import of_rows
from tracekit.steps.steps import windows_of
from tracekit.thresholds.slowrank import (
    CHANCE,
    LITTLE_SHARE,
    MAJORITY,
    MINOR,
    NEARLY_ALL,
    NO_ACCIDENT,
    ONE_STEP_P,
    PEERS_SAMPLED,
)
from tracekit.timing.device_gaps import gaps_of
from tracekit.units import F64


@dataclass(frozen=True)
class MovingStalls:
    """Stalls of several ranks: `over` is their length beyond usual gaps (ranks × steps, ns), 0 elsewhere.

    `gain` is the saving of the mean step without all of them, ns. `together`: all ranks stall in the same steps.
    `of_work`: compute is longer.
    """

    over: F64
    gain: float
    together: bool = False
    of_work: bool = False

    @property
    def rows(self) -> list[int]:
        """The rows of Steps that stall, longest total first."""
        total = self.over.sum(axis=1)
        return sorted(np.flatnonzero(total > 0).tolist(), key=lambda row: (-total[row], row))

    def explains(self, case: Case, rows: Sequence[int]) -> bool:
        """Whether stalls explain most of the excess of each of `rows`, which is as fast as its peers without them.

        They do not explain a rank with a stall in every step, if that is no chance: its stalls do not move. A device
        that computes longer in every step is slow, however few they are. Nor does work explain what idle time shows.
        """
        struck = self.over > 0
        every_step = len(struck) * float(struck.mean(axis=0).prod())  # of one rank or another, by chance
        by_chance = not self.of_work and every_step >= ONE_STEP_P
        return all(
            case.steps.mean(self.over[row]) >= NEARLY_ALL * case.found.mean[row]
            and (by_chance or not struck[row].all())
            and not (self.of_work and row in case.met.by_idle)
            for row in rows
        )


def moving_stalls(case: Case) -> MovingStalls | None:
    """Return stalls that hit most steps, on ranks drawn as if by chance, and cost 2 % of the step; else None.

    Or those of late data loaders that hit nearly all ranks in the same steps, where these cost far more. One step is
    enough, since no chance delays all, but for the first one recorded, in which loaders and profilers start.
    """
    if case.timeline is None or len(case.steps.numbers) < 2:
        return None
    turns = _in_turn(case, outliers(_gaps(case), case.stages, case.step_ns))
    late = common_stalls(case)
    dear = turns is not None and late is not None and turns.gain >= MAJORITY * late.gain
    if late is None or not late.over[:, 1:].any() or dear:
        return turns or _batches_in_turn(case)
    by_loaders = filled_by_spans(case, *_longest_of(late), MAJORITY) == DATALOADER
    return late if by_loaders else turns or _batches_in_turn(case)


def _in_turn(case: Case, over: F64) -> MovingStalls | None:
    """The stalls `over` (ranks × steps, ns), without trifles, if they hit most steps on ranks drawn as if by chance."""
    over = _without_trifles(over)
    often = float((over > 0).any(axis=0).mean()) if over.size else 0.0
    in_turn = often >= MAJORITY and _moves(over) and scattered(over)
    return _priced(case, MovingStalls(over, 0.0)) if in_turn else None


def _batches_in_turn(case: Case) -> MovingStalls | None:
    """The gaps in which data loaders keep ranks waiting in turn, however often: no wait for a batch is usual."""
    gaps = _gaps(case)
    over = np.nan_to_num(gaps - of_rows(np.nanmin, gaps)[:, None])
    found = _in_turn(case, np.where(over > LITTLE_SHARE * case.step_ns, over, 0.0))
    spans = found and filled_by_spans(case, *_longest_of(found), MAJORITY)
    return found if spans == DATALOADER else None


def common_stalls(case: Case) -> MovingStalls | None:
    """Return the stalls of nearly all ranks in the same steps, whatever their cause; None where they cost below 2 %."""
    if case.timeline is None or len(case.steps.numbers) < 2:
        return None
    gaps = _gaps(case)
    usual = levels(gaps, case.stages, LITTLE_SHARE * case.step_ns)
    over = np.nan_to_num(gaps - usual.row - low(usual.column.T, usual.least)[0][:, None])
    late = over > usual.least
    over = np.where(late & (late.mean(axis=0) >= NEARLY_ALL), over, 0.0)
    if (over > 0).any(axis=0).sum() < 2 and np.median(over.max(axis=1)) < MAJORITY * over.max(initial=0.0):
        return None  # one of them is late beside that, in the one step
    return _priced(case, MovingStalls(over, 0.0, together=True))


def _gaps(case: Case) -> F64:
    """The own time without compute and without what a role explains, ranks × steps, ns."""
    return np.asarray(case.steps.own - case.computed - case.met.role + _not_idle(case), np.float64)


def _not_idle(case: Case) -> F64:
    """What a role explains beyond the idle time of its rank in a step, ranks × steps, ns: others of the role stalled.

    With that, the rank would be the quickest of its peers, and all others late.
    """
    idle = np.nan_to_num(case.met.peers.beyond(case.steps.own - case.computed))
    return np.asarray(np.maximum(case.met.role - np.maximum(idle, 0.0), 0.0), np.float64)


def beside_stalls(case: Case, stalls: MovingStalls, found: Hypothesis) -> Hypothesis | None:
    """Return the ranks of `found` that `stalls` do not explain, priced without the others; None without any."""
    left = [row for row in found.rows if not stalls.explains(case, [row])]
    if len(left) == len(found.rows):
        return found
    return those_that_cost(case, np.array(left)) if left else None


def _priced(case: Case, found: MovingStalls) -> MovingStalls | None:
    """`found` with its price; None where that is below 2 % of the step, or the model's error."""
    over, model = found.over, case.timeline
    most = float(over.max(axis=0).sum()) / len(case.steps.numbers)  # of the longest stall of each step
    if most < case.threshold_ns or model is None:
        return None
    struck = np.flatnonzero(over.any(axis=1)).tolist()
    cuts = without_gaps(case, model, {row: over[row] for row in struck})
    gain = saved_beside_hosts(case, model, struck, lambda m: m.rescaled_ns(cuts))
    return _costly(case, replace(found, gain=gain))


def moving_work(case: Case) -> MovingStalls | None:
    """Return own times beyond chance in single steps, if of several ranks and 2 % of the step together; else None.

    Each may be an accident of its rank; fewer than NO_ACCIDENT are. What hits several ranks in one step alone is one
    accident, and moves nowhere; nor does what its longest rank costs alone, but for trifles. None for ranks on CPUs,
    because their threads get unequal shares of a processor.
    """
    over, model = _accidents(case), case.timeline
    if over is None or model is None or not scattered(over):
        return None
    peers = {row: case.stage_of(row) for row in np.flatnonzero(over.any(axis=1)).tolist()}

    def saved(stalls: F64) -> float:
        return model.recorded_ns - model.step_ns(case.steps.own - stalls, usual=model.usual(peers, share=0.0))

    moves = (gain := saved(over)) - saved(_of_longest_rank(over)) >= MINOR * gain
    return _costly(case, MovingStalls(over, gain, of_work=True)) if moves else None


def stalls_of_the_same(case: Case) -> MovingStalls | None:
    """Return what `moving_work` looks for, where it hits the same ranks each time, as one of two hosts; else None.

    None where it hits every step: what lasts is tested against what varies.
    """
    over = _accidents(case)
    if over is None or scattered(over) or over.any(axis=0).all():
        return None
    rows = np.flatnonzero(over.any(axis=1)).astype(np.int64)
    return _costly(case, MovingStalls(over, likely_saved_ns(case, rows)))


def _costly(case: Case, found: MovingStalls) -> MovingStalls | None:
    """`found`; None where its price is below 2 % of the step, or the model's error."""
    return found if found.gain >= max(case.threshold_ns, case.residual_ns) else None


def _accidents(case: Case) -> F64 | None:
    """The own times beyond chance (ranks × steps, ns), 0 elsewhere; None where they do not move, or on CPUs."""
    if case.timeline is None or not case.on_gpus:
        return None
    own = case.steps.own - case.met.explained + _not_idle(case)
    over = _without_trifles(outliers(own, case.stages, case.step_ns))
    return over if _moves(over) else None


def _without_trifles(over: F64) -> F64:
    """`over` without what is far shorter than a usual step's longest: with that, ranks that always stall take turns."""
    longest = over.max(axis=0, initial=0.0)
    usual = float(np.median(longest[longest > 0])) if longest.any() else 0.0
    return np.asarray(np.where(over >= MINOR * usual, over, 0.0), np.float64)


def _moves(over: F64) -> bool:
    """Whether stalls are no accident, and neither one rank nor one step makes up what they cost but for trifles.

    One that is far too long for an exponential distribution of the mean of all others is not one of them.
    """
    longest, others = over.max(axis=0), (over - _of_longest_rank(over)).max(axis=0)
    stalls = np.sort(over[over > 0])
    if len(stalls) < NO_ACCIDENT or len(stalls) * np.exp(-stalls[-1] / stalls[:-1].mean()) < CHANCE:
        return False
    rest = others.sum(), np.delete(longest, int(longest.argmax())).sum()
    return bool(min(rest) >= MINOR * longest.sum())


def _of_longest_rank(over: F64) -> F64:
    """`over` of the rank that has most of it alone."""
    row = int(over.sum(axis=1).argmax())
    return np.asarray(np.where(np.arange(len(over))[:, None] == row, over, 0.0), np.float64)


def cause_of(case: Case, found: MovingStalls) -> Cause:
    """The cause of the longest stalls: what spans name, device, or host if devices wait for launches; or `unknown`."""
    rows, stalled = _longest_of(found)
    if (named := filled_by_spans(case, rows, stalled, MAJORITY)) is not None:
        return named
    longer = case.met.peers.beyond(case.computed)[rows]
    if np.clip(more_data_ns(case, rows), 0.0, stalled).sum() >= NEARLY_ALL * stalled.sum():
        return DATA_IMBALANCE
    if np.clip(longer, 0.0, stalled).sum() >= NEARLY_ALL * stalled.sum():
        return GPU_COMPUTE if _stays_on_its_stage(case, found) else "unknown"
    host = np.array([_host_gaps(case, row) for row in rows])
    return HOST_STALL if np.minimum(host, stalled).sum() >= NEARLY_ALL * stalled.sum() else "unknown"


def _longest_of(found: MovingStalls) -> tuple[list[int], F64]:
    """A few rows with the longest stalls, and these stalls."""
    rows = found.rows[:PEERS_SAMPLED]
    return rows, found.over[rows]


def _stays_on_its_stage(case: Case, found: MovingStalls) -> bool:
    """Whether the other stages of a pipeline take their usual time while one is slow, so that no data explains it."""
    struck = [(row, column) for row, column in np.argwhere(found.over > 0).tolist()]
    mates = [
        np.nanmedian(case.found.value[others, column]) / found.over[row, column]
        for row, column in struck
        if (others := [o for o in case.line_of(row) if o != row and np.isfinite(case.found.value[o, column])])
    ]
    return bool(mates) and float(np.median(mates)) < MINOR


def _host_gaps(case: Case, row: int) -> F64:
    """The time of each step in which the device of the rank in `row` waits for a launch, or its CPU is idle, ns."""
    columns = list(range(len(case.steps.numbers)))
    rank, known = case.steps.ranks[row], np.isfinite(case.steps.own[row])
    found = np.zeros(len(columns))
    chosen = [c for c in columns if known[c]]
    windows = windows_of(case.ops, case.steps, rank, chosen)
    found[chosen] = inside_each(gaps_of(case.run, case.ops, rank).host, windows)
    return found
