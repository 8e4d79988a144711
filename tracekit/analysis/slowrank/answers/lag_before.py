"""A first step that a suspect began late because of a delay before the recording: it is left out of the price.

A host that pauses between two steps is late for the next one. Its peers wait in the first recorded step for a pause
that was not recorded, and no replay of the suspect's work saves that wait. The later steps give the price.
"""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from tracekit.analysis.slowrank.case import Case, build
from tracekit.analysis.slowrank.suspects import Answer
from tracekit.findings import Quality
from tracekit.thresholds.unlike import LAG_BEFORE


def without_lag_before(
    case: Case, answer: Answer, judged: Callable[[Case], tuple[Case, Answer]]
) -> tuple[Case, Answer]:
    """The case and answer without the first step if a suspect began it late; unchanged where the answer differs."""
    suspects = {s.rank for s in answer.suspects}
    late = suspects & set(_late(case)) if answer.verdict == "slow_rank" and case.cut is None else set()
    if not late:
        return case, answer
    first = case.steps.numbers[0]
    detail = f"step {first} is left out: rank {min(late)} began it late, after a delay before the recording"
    run = replace(case.run, quality=(*case.run.quality, Quality("late_begin", None, 1, detail)))
    rest, again = judged(build(run, case.ops, case.mesh, [(n, n + 1) for n in case.steps.numbers[1:]]))
    same = again.verdict == answer.verdict and {s.rank for s in again.suspects} == suspects
    return (rest, again) if same else (case, answer)


def _late(case: Case) -> list[int]:
    """The ranks with a first step shorter than the others' by `LAG_BEFORE` of a step more than any later step."""
    if not case.steps.labelled or len(case.steps.numbers) <= 2:
        return []
    missed = np.nanmedian(case.steps.wall, axis=0) - case.steps.wall
    usual = np.nanmax(np.where(np.isfinite(missed[:, 1:]), missed[:, 1:], 0.0), axis=1)
    least = LAG_BEFORE * float(np.nanmedian(case.steps.wall[:, 1:]))
    found = np.flatnonzero(np.isfinite(missed[:, 0]) & (missed[:, 0] - np.maximum(usual, 0.0) >= least))
    return [case.steps.ranks[row] for row in found.tolist()]
