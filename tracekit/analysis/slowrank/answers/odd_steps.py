"""Leaves out of the comparison the steps with additional operations, such as a checkpoint or an evaluation.

A rank that is late for the additional work need not be late for the step, and its time would distort all prices.
"""

from collections import Counter
from dataclasses import replace

import numpy as np

from tracekit.analysis.slowrank.case import Case, build
from tracekit.analysis.slowrank.wording import listed
from tracekit.findings import Quality
from tracekit.intervals import I64
from tracekit.thresholds.slowrank import FEWEST_USUAL_STEPS, MAJORITY, ODD_STEP


def without_odd_steps(case: Case) -> Case:
    """`case` without its odd steps; unchanged where there are none, or where too few steps would remain."""
    odd = odd_steps(case)
    kept = [n for n in case.steps.numbers if n not in odd]
    if not odd or len(kept) < max(FEWEST_USUAL_STEPS, MAJORITY * len(case.steps.numbers)):
        return case
    detail = f"left out because operations that other steps lack made them long, as a checkpoint does: {listed(odd)}"
    run = replace(case.run, quality=(*case.run.quality, Quality("odd_steps", None, len(odd), detail)))
    return build(run, case.ops, case.mesh, [(n, n + 1) for n in kept])


def odd_steps(case: Case) -> tuple[int, ...]:
    """The numbers of the steps that are long because they hold operations that the usual ones do not."""
    if not (case.steps.labelled and case.cut is None and case.timeline is not None):
        return ()
    votes = Counter(column for row in range(len(case.steps.ranks)) for column in _odd_columns(case, row))
    most = MAJORITY * len(case.steps.ranks)
    return tuple(case.steps.numbers[c] for c, often in sorted(votes.items()) if often > most)


def _odd_columns(case: Case, row: int) -> list[int]:
    """The columns of the rank's steps that additional operations made long."""
    rank = case.steps.ranks[row]
    source, labels = case.ops.per_rank[rank], case.ops.step[case.ops.of(rank)]
    kinds, ends = {}, {}
    for column in np.flatnonzero(np.isfinite(case.steps.wall[row])).tolist():
        rows = np.flatnonzero(labels == case.steps.numbers[column])
        rows = rows[np.lexsort((rows, source.issued[rows]))]
        kinds[column] = tuple((source.op[i], int(source.group[i])) for i in rows.tolist())
        ends[column] = source.end[rows]
    usual, often = Counter(kinds.values()).most_common(1)[0] if kinds else ((), 0)
    if often < FEWEST_USUAL_STEPS:
        return []
    wall = case.steps.wall[row]
    typical = float(np.median([wall[c] for c, k in kinds.items() if k == usual]))
    found = []
    for column, mine in kinds.items():
        longer = float(wall[column]) - typical
        more = _inserted(mine, usual)
        if more is None or longer < ODD_STEP * typical:
            continue
        if _lasted(ends[column], *more, float(wall[column])) >= MAJORITY * longer:
            found.append(column)
    return found


def _inserted(mine: tuple[object, ...], usual: tuple[object, ...]) -> tuple[int, int] | None:
    """The half-open range of what `mine` has inserted into `usual` in one place; None where they differ otherwise."""
    more = len(mine) - len(usual)
    if more <= 0:
        return None
    common = next((i for i, (a, b) in enumerate(zip(mine, usual, strict=False)) if a != b), len(usual))
    return (common, common + more) if mine[common + more :] == usual[common:] else None


def _lasted(end: I64, first: int, behind: int, wall: float) -> float:
    """The time from the end of all earlier operations to the end of `first` to `behind`, in a step of `wall`; ns.

    `end` is when each of its operations ended.
    """
    before = float(end[:first].max()) if first else float(end.max()) - wall
    return float(end[first:behind].max()) - before
