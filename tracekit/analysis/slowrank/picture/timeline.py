"""The time line of one step of the suspect and its peers, on aligned clocks."""

from collections.abc import Iterable

import numpy as np

from tracekit.analysis.slowrank.case import Case
from tracekit.analysis.slowrank.picture.kinds import COMPUTE, TRANSFER, WAIT, axes_of_channels
from tracekit.analysis.slowrank.suspects import Answer
from tracekit.findings.picture import Timeline, TimelineRow
from tracekit.intervals import I64, union
from tracekit.steps.compute_time import windows_of
from tracekit.thresholds.report import TIMELINE_HELD, TIMELINE_PARTS, TIMELINE_RANKS
from tracekit.units import NS_PER_MS


def timeline(case: Case, answer: Answer) -> Timeline | None:
    """The time line of the step with the largest excess of the first suspect, or else of any rank; None without one."""
    value = np.where(np.isfinite(case.found.value), case.found.value, -np.inf)
    if not np.isfinite(value).any():
        return None
    named = [s.rank for s in (*answer.suspects, *answer.candidates) if s.rank in case.steps.ranks]
    named = [r for r in named if np.isfinite(value[case.steps.row(r)]).any()]
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
    peers = _nearest(case, rank, [case.steps.ranks[r] for r in stage])
    return _recorded(case, dict.fromkeys([rank, *named, *peers]), column)[:TIMELINE_RANKS]


def _held(case: Case, shown: list[int], column: int) -> list[int]:
    """Further ranks whose clocks are linked with that of the first one shown, those nearest to it in the mesh first."""
    island = case.clocks.island.get(shown[0])
    others = [r for r in case.steps.ranks if r not in shown and case.clocks.island.get(r) == island]
    return _recorded(case, _nearest(case, shown[0], others), column)[: TIMELINE_HELD - len(shown)]


def _nearest(case: Case, rank: int, others: list[int]) -> list[int]:
    """The others by the number of axes on which they differ from `rank`."""
    at = case.mesh.coords(rank)
    return sorted(others, key=lambda r: (sum(at[d] != i for d, i in case.mesh.coords(r).items()), r))


def _recorded(case: Case, ranks: Iterable[int], column: int) -> list[int]:
    """Those of which the step was recorded whole."""
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
            rows.append(
                TimelineRow(
                    rank,
                    kind,
                    tuple((shifted / NS_PER_MS).tolist()),
                    tuple(((end - gap - begin) / NS_PER_MS).tolist()),
                )
            )
    return rows
