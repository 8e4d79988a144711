"""The picture of a case and its answer: ranks by step and its parts, the descent, a time line, the criteria."""

from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np

from tracekit.analysis.slowrank.suspects import Answer, rows_named
from tracekit.axes import LEVELS, PARTS
from tracekit.case.case import Case
from tracekit.findings import PathLevel
from tracekit.findings.picture import Criterion, Level, SlowRankPicture, Timeline, TimelineRow
from tracekit.inference.mesh.group_uses import world_of
from tracekit.intervals import union
from tracekit.steps.steps import compute_in_steps, windows_of
from tracekit.thresholds.report import PAGE_HOLDS, RANKS_SHOWN, TIMELINE_PARTS
from tracekit.thresholds.slowrank import MIN_LOST_SHARE, MINOR, PROVING_STEPS
from tracekit.timing.measured import Measured
from tracekit.units import F64, I64, NS_PER_MS, ms


def picture_of(case: Case, answer: Answer) -> SlowRankPicture:
    """The picture of `answer`; ranks without a trace have rows of NaN."""
    world = world_of(case.run, case.ops)
    row = {rank: i for i, rank in enumerate(world)}
    rows = np.array([row[r] for r in case.steps.ranks], np.int64)
    hosts = {r.rank: r.host for r in case.run.ranks}
    place = [case.mesh.coordinates.get(r) for r in world]
    places = {
        axis: tuple(-1 if at is None else at[i] for at in place)
        for i, axis in enumerate(case.mesh.order)
        if case.mesh.sizes[axis] > 1
    }
    return SlowRankPicture(
        world, tuple(hosts.get(r) for r in world), places, case.steps.numbers,
        _spread(case.found.value, rows, len(world)),
        _spread(case.steps.wall - case.steps.own, rows, len(world)),
        {kind: _spread(spent, rows, len(world)) for kind, spent in parts_of_step(case).items()},
        levels(case, answer.path, rows_named(case, answer)), timeline(case, answer), criteria(case, answer),
    )  # fmt: skip


def _spread(values: F64, rows: I64, world: int) -> F64:
    """The `values` (ns, by rank read) by rank of the job, ms; NaN without a trace."""
    result = np.full((world, *values.shape[1:]), np.nan)
    result[rows] = values / NS_PER_MS
    return result


_QUANTILES = (0.0, 0.25, 0.5, 0.75, 1.0)


def levels(case: Case, path: Sequence[PathLevel], named: Sequence[int]) -> tuple[Level, ...]:
    """Return a level for each axis of the program of the rows `named`, outer to inner; without a path of all ranks."""
    chosen = {level.dim: level.index for level in path}
    rows = wider = case.of_program(named[0]) if named else np.arange(len(case.steps.ranks))
    found = []
    for axis in LEVELS:
        if case.mesh.size(axis) > 1:
            mine = wider if axis in PARTS else rows  # one index of the axis that it divides tells its own
            index = np.array([case.mesh.coords(case.steps.ranks[r])[axis] for r in mine], np.int64)
            found.append(_level(case, axis, chosen.get(axis), mine, index))
            if axis in chosen and axis not in PARTS:
                wider, rows = rows, rows[index == chosen[axis]]
    return tuple(found)


def _level(case: Case, axis: str, chosen: int | None, rows: I64, index: I64) -> Level:
    """The level of one axis; `index` is that of each of `rows`. Holds at most PAGE_HOLDS, by the largest excess."""
    spread: dict[int, tuple[float, ...]] = {}
    for i in np.unique(index).tolist():
        values = case.found.mean[rows[index == i]]
        values = values[np.isfinite(values)] / NS_PER_MS
        if len(values):
            spread[i] = tuple(np.quantile(values, _QUANTILES).tolist())
    most = sorted(spread, key=lambda i: (i != chosen, -spread[i][-1], i))[:PAGE_HOLDS]
    shown = tuple(sorted(most))
    return Level(axis, chosen, shown, tuple(spread[i] for i in shown), len(spread) - len(shown))


def criteria(case: Case, answer: Answer) -> tuple[Criterion, ...]:
    """The criteria of the decision: size, significance and price of the excess, model error, matched share, steps."""
    named = rows_named(case, answer)
    rows = np.array(named or range(len(case.steps.ranks)), np.int64)
    known = ([v for v in part[rows].tolist() if np.isfinite(v)] for part in (case.found.mean, case.found.z))
    longer, z = (max(values, default=float("nan")) for values in known)
    matched = case.coverage.matched
    least = f"{MIN_LOST_SHARE:.0%} of the step: {_ms(case.threshold_ns)}"
    cost = _ms(case.step_ns * answer.gain / case.base_ns) if answer.gain > 0 else "no excess to price"
    share = "none was exposed" if matched is None else f"{matched:.1%}"
    measured = (
        (_ms(longer), least),
        (f"{z:.1f}" if np.isfinite(z) else "unknown", f"{case.found.limit:.1f}"),
        (cost, least),
        (_ms(case.residual_ns), "smaller prices are not proven"),
        (share, f"{MINOR:.0%}; a job below that is never called healthy"),
        (str(len(case.steps.numbers)), f"{PROVING_STEPS} prove a faint excess"),
    )
    which = "the ranks named" if named else "all ranks"
    rows_shown = zip(_CRITERIA, measured, _REASONS, strict=True)
    return tuple(Criterion(what.format(which=which), *each, why) for what, each, why in rows_shown)


_CRITERIA: Final = (
    "Own time beyond the peers', the largest mean of {which}",
    "Significance of that, in standard errors",
    "What the step loses by it, by the model of the step",
    "Difference between the model and the recorded step",
    "Exposed communication that was matched with all members",
    "Steps recorded whole on enough ranks",
)
_REASONS: Final = (
    "Device clocks vary by 1 to 2 % in healthy jobs.",
    "With many ranks the largest one is high by chance; an excess in a single step counts 0.",
    "Work for which no rank waits costs nothing, so its rank is not blamed.",
    "The model is replayed with nothing changed and compared with the recording.",
    "Unmatched communication may be a wait or a transfer: it widens the interval of the price.",
    "One step cannot separate a slow rank from chance.",
)
"""What each criterion measures, and why it counts."""


def _ms(ns: float) -> str:
    return f"{ms(ns):.2f} ms" if np.isfinite(ns) else "unknown"


def timeline(case: Case, answer: Answer) -> Timeline | None:
    """The time line of the step with the largest excess of the first suspect, or else of any rank; None without one."""
    value = np.where(np.isfinite(case.found.value), case.found.value, -np.inf)
    if not np.isfinite(value).any():
        return None
    named = [case.steps.ranks[row] for row in rows_named(case, answer) if np.isfinite(value[row]).any()]
    rank = named[0] if named else case.steps.ranks[int(np.argmax(value.max(axis=1)))]
    column = int(np.argmax(value[case.steps.row(rank)]))
    shown = _beside(case, rank, named[1:], column)
    held = _held(case, shown, column)
    ranks = [*shown, *held]
    windows = {r: windows_of(case.ops, case.steps, r, [column]) for r in ranks}
    begins = [int(case.clocks.align(r, windows[r][0])[0]) for r in ranks]
    ends = [int(case.clocks.align(r, windows[r][1])[0]) for r in ranks]
    gap = max((max(ends) - min(begins)) // TIMELINE_PARTS, 1)
    rows = [row for r in ranks for row in _rows(case, r, windows[r], min(begins), gap)]
    linked = len({case.clocks.island.get(r) for r in shown}) == 1
    return Timeline(
        case.steps.numbers[column], tuple(shown), tuple(rows), gap / NS_PER_MS, linked, tuple(held)
    )


def _beside(case: Case, rank: int, named: list[int], column: int) -> list[int]:
    """`rank`, others named with it, and the ranks of its stage that stand next to it in the mesh."""
    stage = next(rows for rows in case.stages if case.steps.row(rank) in rows)
    peers = _nearest(case, rank, case.ranks_of(stage))
    return _recorded(case, dict.fromkeys([rank, *named, *peers]), column)[:RANKS_SHOWN]


def _held(case: Case, shown: list[int], column: int) -> list[int]:
    """Further ranks whose clocks are linked with that of the first one shown, those nearest to it in the mesh first."""
    island = case.clocks.island.get(shown[0])
    others = [r for r in case.steps.ranks if r not in shown and case.clocks.island.get(r) == island]
    return _recorded(case, _nearest(case, shown[0], others), column)[: PAGE_HOLDS - len(shown)]


def _nearest(case: Case, rank: int, others: list[int]) -> list[int]:
    """The others by the number of axes on which they differ from `rank`; those of other programs come last."""
    at, program = case.mesh.coords(rank), case.mesh.program(rank)
    apart = {r: sum(at[d] != i for d, i in case.mesh.coords(r).items()) for r in others}
    return sorted(others, key=lambda r: (case.mesh.program(r) != program, apart[r], r))


def _recorded(case: Case, ranks: Iterable[int], column: int) -> list[int]:
    """The ranks whose step was recorded whole."""
    return [r for r in ranks if np.isfinite(case.steps.own[case.steps.row(r), column])]


def _rows(case: Case, rank: int, window: tuple[I64, I64], zero: int, gap: int) -> list[TimelineRow]:
    """The stretches of each kind of time of `rank` in its step, ms from `zero`, gaps below `gap` ns closed."""
    ops, waits = case.ops, case.waits
    first, last = int(window[0][0]), int(window[1][0])
    where = ops.of(rank)
    mine = np.flatnonzero((ops.exposed[where] > 0) & (ops.end[where] > first) & (ops.start[where] < last))
    mine += where.start
    since = ops.end[mine] - ops.exposed[mine]
    went = since + waits.exposed_wait[mine]
    names = np.array(axes_of_channels(case), object).astype(str)[ops.channel[mine]]
    stretches = {COMPUTE: case.ops.per_rank[rank].computed}
    for name in sorted(set(names.tolist())):
        of = names == name
        stretches[f"{WAIT} {name}"] = (since[of], went[of])
        stretches[f"{TRANSFER} {name}"] = (went[of], ops.end[mine][of])
    rows = []
    for kind, stretch in stretches.items():
        starts, ends = (np.clip(times, first, last) for times in stretch)
        some = ends > starts
        begin, end = union(starts[some], ends[some] + gap)
        if len(begin):
            shifted = case.clocks.align(rank, begin) - zero
            at, lasts = ((times / NS_PER_MS).tolist() for times in (shifted, end - gap - begin))
            rows.append(TimelineRow(rank, kind, tuple(at), tuple(lasts)))
    return rows


COMPUTE: Final = "compute"
HOST: Final = "host and gaps"
WAIT: Final = "waits on"
TRANSFER: Final = "transfers on"


def axes_of_channels(run: Measured) -> list[str]:
    """The name of each channel's axes; the last entry is for operations without a channel."""
    return [*("_".join(run.axes_of(c)) or "other" for c in run.ops.channels), "unknown"]


def parts_of_step(run: Measured) -> dict[str, F64]:
    """Return kind of time → mean of a step of each rank (rows of `run.steps`), ns; the kinds sum to the step.

    Time in which compute is idle for several operations at once is divided among them in proportion.
    """
    steps, ops = run.steps, run.ops
    whole = np.isfinite(steps.own)
    count = np.maximum(whole.sum(axis=1), 1)
    known = whole.any(axis=1)
    computing = np.nansum(np.minimum(compute_in_steps(ops, steps), steps.own), axis=1)
    own = np.nansum(steps.own, axis=1)
    result = {COMPUTE: computing, HOST: own - computing, **_communication(run)}
    for kind, spent in result.items():
        result[kind] = np.where(known, spent / count, np.nan)
    return result


def _communication(run: Measured) -> dict[str, F64]:
    """Kind of exposed communication → its time on each rank over its whole steps, ns."""
    steps, ops, (at, column) = run.steps, run.ops, run.place
    kept = run.analysed & np.isfinite(steps.own)[at, np.minimum(column, len(steps.numbers) - 1)]
    names, axis = np.unique(np.array(axes_of_channels(run), object).astype(str), return_inverse=True)
    axis = axis[ops.channel]  # channel −1 takes the last name
    waited = run.waits.exposed_wait
    result = {}
    for number, name in enumerate(names.tolist()):
        mine = kept & (axis == number) & (ops.exposed > 0)
        if mine.any():
            for kind, spent in ((WAIT, waited), (TRANSFER, ops.exposed - waited)):
                by_rank = np.bincount(at[mine], spent[mine].astype(np.float64), len(steps.ranks))
                result[f"{kind} {name}"] = by_rank
    stood = np.nansum(steps.wall - steps.own, axis=1)
    total = np.sum(list(result.values()), axis=0) if result else np.zeros(len(stood))
    share = np.divide(stood, total, out=np.zeros(len(stood)), where=total > 0)
    return {kind: spent * share for kind, spent in result.items() if spent.any()}
