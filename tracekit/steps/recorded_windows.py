"""The windows of a run as separate runs, each with the ranks that recorded it and its time; the last ones; late begins.

Ranks may lack windows, and their clocks may have any offset. Windows are equal if they begin with the same marked step;
without marks, if they begin at the same times after a shift of the clocks. If several shifts fit, as with windows at
equal distances, a shift of about 0 is preferred, else the one that fits best.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final

import numpy as np

from tracekit.arrays import to_numpy
from tracekit.findings.shared import Quality
from tracekit.matching.clock import Clocks
from tracekit.matching.match import Operations
from tracekit.rank_events.event_columns import filled, matches
from tracekit.rank_events.step_marks import NO_STEP, step_number
from tracekit.steps.medians import median_of_others
from tracekit.steps.steps import Steps
from tracekit.store import Run
from tracekit.thresholds.ingest import FILES_NAMED, LEAST_STEPS
from tracekit.thresholds.slowrank import MIN_LOST_SHARE
from tracekit.thresholds.tables import MOST_RANKS, SAME_WINDOW
from tracekit.units import I64

_FOREVER: Final = np.iinfo(np.int64).max


@dataclass(frozen=True)
class Window:
    """What was recorded in one window, when it began (ns since the first one did), and its name if paths have one."""

    run: Run
    at_ns: int
    name: str = ""


def windows_of(run: Run) -> tuple[Window, ...]:
    """Return the windows of `run` in order of time; () where every rank recorded only one. InputError on a bad file."""
    if not any(r.windows for r in run.ranks):
        return ()
    begins = {r.rank: r.windows or _only(run, r.rank) for r in run.ranks}
    begins = {rank: found for rank, found in begins.items() if found}
    first = {rank: _first_steps(run, rank, mine) for rank, mine in begins.items()}
    names = {r.rank: r.window_names for r in run.ranks if r.rank in begins}
    times, numbers = by_names(begins, names) or by_steps(begins, first) or common(begins)
    spans: list[dict[int, tuple[int, int]]] = [{} for _ in times]
    for rank, mine in numbers.items():
        ends = [*begins[rank][1:], _FOREVER]
        for number, span in zip(mine, zip(begins[rank], ends, strict=True), strict=True):
            spans[number][rank] = span
    name_of = {
        number: name
        for rank, mine in numbers.items()
        for number, name in zip(mine, names[rank], strict=False)
    }
    return tuple(
        Window(run.between(s), at - times[0], name_of.get(n, ""))
        for n, (at, s) in enumerate(zip(times, spans, strict=True))
    )


def last_windows(run: Run, steps: Sequence[tuple[int | None, int | None]] | None) -> Run:
    """Return the most recent part of `run`: its last window that most ranks have, where paths of files name windows.

    Earlier ones are added until it has LEAST_STEPS marked steps, if step numbers continue from window to window. The
    whole run is returned where windows have no names (they are read as one), or `steps` choose among continued numbers.
    A quality row says which windows were taken and which others exist. Raises InputError on a bad file.
    """
    if not any(r.window_names for r in run.ranks):
        return run
    goes_on = _steps_go_on(run)
    if steps and goes_on:
        return run
    windows = windows_of(run)
    most = max(len(w.run.ranks) for w in windows)
    shared = [w for w in windows if len(w.run.ranks) > MOST_RANKS * most]
    taken, marked = [shared[-1]], _marked(shared[-1].run)
    while goes_on and len(marked) < LEAST_STEPS and len(taken) < len(shared):
        taken.insert(0, shared[-len(taken) - 1])
        marked |= _marked(taken[0].run)
    if len(taken) == len(windows):
        return run
    return replace(
        run.between(_spans(taken)), quality=(*run.quality, _windows_taken(taken, windows, goes_on=goes_on))
    )


def _spans(windows: Sequence[Window]) -> dict[int, tuple[int, int]]:
    """Return from when to when each rank recorded `windows`, ns, by rank."""
    spans: dict[int, tuple[int, int]] = {}
    for window in windows:
        for rank, (begin, end) in (window.run.spans or {}).items():
            first, last = spans.get(rank, (begin, end))
            spans[rank] = min(first, begin), max(last, end)
    return spans


def _windows_taken(taken: Sequence[Window], windows: Sequence[Window], *, goes_on: bool) -> Quality:
    """Return the quality row about the windows that were taken, and how to select the others."""
    others = [w.name for w in windows if all(w is not t for t in taken)]
    few = ", ".join(others[-FILES_NAMED:]) + (
        f" and {len(others) - FILES_NAMED} more" if len(others) > FILES_NAMED else ""
    )
    names = ", ".join(w.name for w in taken)
    by_step = ", or --steps" if goes_on else ""
    detail = f"{names} is analysed; {few} of the same job exist as well: name their folder or file{by_step}; "
    return Quality("last_window", None, len(others), f"{detail}trend follows all")


def _marked(run: Run) -> set[int]:
    """Return the steps that the first rank of a run marked."""
    events = run.events(run.ranks[0].rank, ["name"])
    return {int(n) for n in matches(events, "name", step_number) if n is not None}


def _steps_go_on(run: Run) -> bool:
    """Whether every rank marked steps in its windows, with rising numbers from window to window."""
    begins = {r.rank: r.windows or _only(run, r.rank) for r in run.ranks}
    return all(_first_steps(run, rank, mine) is not None for rank, mine in begins.items() if mine)


def by_names(
    begins: Mapping[int, Sequence[int]], names: Mapping[int, Sequence[str]]
) -> tuple[list[int], dict[int, list[int]]] | None:
    """Return as `common`, for windows that have `names`; None if a rank lacks them, or has another order."""
    if not all(len(names[rank]) == len(mine) for rank, mine in begins.items()):
        return None
    order = sorted(begins, key=lambda r: (-len(begins[r]), r))
    every = list(names[order[0]])
    place = {name: n for n, name in enumerate(every)}
    if not all(name in place for mine in names.values() for name in mine):
        return None
    numbers = {rank: [place[name] for name in names[rank]] for rank in begins}
    if any(a >= b for mine in numbers.values() for a, b in pairwise(mine)):
        return None
    return list(begins[order[0]]), numbers


def _only(run: Run, rank: int) -> tuple[int, ...]:
    """Return the begin of the only window of a rank; () where it is empty."""
    found = to_numpy(run.events(rank, ["ts"]).column("ts"))
    return (int(found.min()),) if len(found) else ()


def _first_steps(run: Run, rank: int, begins: Sequence[int]) -> list[int] | None:
    """Return the first marked step in each window of a rank; None where marks are missing or do not ascend."""
    events = run.events(rank, ["ts", "name"])
    number = matches(events, "name", step_number)
    rows = np.flatnonzero(filled(events, "name", step_number))
    steps = np.array([int(number[r]) for r in rows], np.int64)
    window = (
        np.searchsorted(np.array(begins, np.int64), to_numpy(events.column("ts"))[rows], side="right") - 1
    )
    found = [steps[window == n] for n in range(len(begins))]
    if not all(len(mine) for mine in found):
        return None
    apart = all(one.max() < two.min() for one, two in pairwise(found))
    return [int(mine.min()) for mine in found] if apart else None


def by_steps(
    begins: Mapping[int, Sequence[int]], first: Mapping[int, list[int] | None]
) -> tuple[list[int], dict[int, list[int]]] | None:
    """Return as `common`, for windows that begin with the steps `first`; None if a rank lacks them.

    The begin of a window that the rank with most windows lacks is taken from a rank that has it and the window nearest
    to it.
    """
    marked = {rank: steps for rank, steps in first.items() if steps is not None}
    if len(marked) < len(first):
        return None
    every = sorted({step for steps in marked.values() for step in steps})
    order = sorted(marked, key=lambda r: (-len(marked[r]), r))
    times = dict(zip(marked[order[0]], begins[order[0]], strict=True))
    for rank in order[1:]:
        mine = dict(zip(marked[rank], begins[rank], strict=True))
        both = sorted(times.keys() & mine.keys())
        for step in [s for s in mine if s not in times]:
            near = min(both, key=lambda b: abs(b - step), default=None)
            times[step] = mine[step] + (times[near] - mine[near] if near is not None else 0)
    place = {step: n for n, step in enumerate(every)}
    return [times[step] for step in every], {
        rank: [place[s] for s in steps] for rank, steps in marked.items()
    }


def common(begins: Mapping[int, Sequence[int]]) -> tuple[list[int], dict[int, list[int]]]:
    """Return (begin of each common window, rank → the common number of each of its windows).

    Times are on the clock of the rank with most windows. begins: ns on each rank's own clock, ascending.
    """
    order = sorted(begins, key=lambda r: (-len(begins[r]), r))
    times = np.array(begins[order[0]], np.int64)
    shifted = {}
    for rank in order:
        mine = np.array(begins[rank], np.int64)
        shifted[rank] = mine + _shift(times, mine)
        new = shifted[rank][_nearest(times, shifted[rank])[1] > _tolerance(times)]
        times = np.sort(np.concatenate([times, new]))
    return times.tolist(), {rank: _nearest(times, at)[0].tolist() for rank, at in shifted.items()}


def _tolerance(times: I64) -> float:
    """Return how far apart two begins of one window may lie, ns; unlimited for a single window."""
    return SAME_WINDOW * float(np.diff(times).min()) if len(times) > 1 else float(_FOREVER)


def _shift(times: I64, mine: I64) -> int:
    """Return the ns to add to the begins `mine` so that most of them coincide with `times`."""
    anchors = {0, len(mine) // 2, len(mine) - 1}
    shifts = np.unique(np.concatenate([times - mine[a] for a in anchors]))
    hits = [int((_nearest(times, mine + s)[1] <= _tolerance(times)).sum()) for s in shifts.tolist()]
    best = [s for s, n in zip(shifts.tolist(), hits, strict=True) if n == max(hits)]
    least = min(best, key=lambda s: (abs(s), s))
    if abs(least) <= _tolerance(times):
        return int(least)
    return int(min(best, key=lambda s: (int(_nearest(times, mine + s)[1].sum()), abs(s), s)))


def _nearest(times: I64, mine: I64) -> tuple[I64, I64]:
    """Return (index of the nearest of `times`, its distance) for each of `mine`."""
    after = np.clip(np.searchsorted(times, mine), 0, len(times) - 1)
    before = np.maximum(after - 1, 0)
    place = np.where(np.abs(times[before] - mine) <= np.abs(times[after] - mine), before, after)
    return place, np.abs(times[place] - mine)


# Late begins: profilers start at different times, so that a late begin of a window alone proves no delay.


def with_late_start(ops: Operations, steps: Steps, clocks: Clocks) -> Steps:
    """Return a single step with own times from one common moment, so that a late entry counts as delay.

    With several steps `with_late_begins` decides, because profilers start at different times.
    """
    starts = [ops.start[ops.of(r)] for r in steps.ranks]
    labels = [ops.step[ops.of(r)] for r in steps.ranks]
    aligned = np.full(len(steps.ranks), np.nan)
    for i, rank in enumerate(steps.ranks):
        inside = labels[i] == steps.numbers[0] if steps.labelled else labels[i] >= NO_STEP
        if inside.any() and np.isfinite(steps.own[i, 0]):
            first = int(np.flatnonzero(inside)[0])
            lead = float(ops.at_start[ops.of(rank)][first]) - steps.begin[i, 0]
            aligned[i] = float(clocks.align(rank, starts[i][first : first + 1])[0]) - max(lead, 0.0)
    earliest = np.nanmin(aligned) if np.isfinite(aligned).any() else 0.0
    late = (aligned - earliest)[:, None]
    return replace(steps, own=steps.own + late, wall=steps.wall + late, begin=steps.begin - late)


def with_late_begins(steps: Steps, stages: list[I64]) -> Steps:
    """Return several steps with the delay of a late begin as own time, as far as every later step of the rank shows it.

    A host that pauses, or waits for its data, before every step did so before the first step of its window as well, and
    its peers waited for that. `stages` hold rows of ranks that do the same work; they end a step together, so that the
    first step of a late rank is shorter than that of the others. A rank that works no longer than they in a later step
    shows no such delay, and one below the threshold is not added.
    """
    firsts = np.append(0, np.flatnonzero(np.diff(steps.numbers) > 1) + 1)
    later = np.setdiff1d(np.arange(len(steps.numbers)), firsts)
    if not steps.labelled or not len(later):
        return steps
    least = MIN_LOST_SHARE * float(np.nanmedian(steps.wall[:, later]))
    shorter = median_of_others(steps.wall, stages) - steps.wall
    beyond = steps.own - median_of_others(steps.own, stages)
    lag = shorter[:, firsts] - np.maximum(shorter[:, later].max(axis=1, keepdims=True), 0.0)
    found = np.minimum(lag, beyond[:, later].min(axis=1, keepdims=True) - np.maximum(beyond[:, firsts], 0.0))
    late = np.zeros(steps.own.shape)
    late[:, firsts] = np.where(found >= least, found, 0.0)
    begun = tuple((steps.numbers[c], steps.ranks[r]) for r, c in np.argwhere(late).tolist())
    own, wall, begin = steps.own + late, steps.wall + late, steps.begin - late
    return replace(steps, own=own, wall=wall, begin=begin, begun_late=begun)
