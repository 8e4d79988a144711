"""Decides about a case: the first rule that applies gives an answer, which the challenges may change."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from tracekit.analysis.slowrank.case import Case, build
from tracekit.analysis.slowrank.decision.evidence import Evidence
from tracekit.analysis.slowrank.decision.order import CHALLENGES, RULES
from tracekit.analysis.slowrank.suspects import Answer
from tracekit.analysis.slowrank.unrecorded.unseen_replay import with_typical_unseen
from tracekit.findings import Quality
from tracekit.thresholds.unlike import LAG_BEFORE


def concluded(case: Case) -> tuple[Case, Answer]:
    """Return the answer after all challenges, and the case that it rests on."""
    case, answer = without_lag_before(*_judged(case), _judged)
    for challenge in CHALLENGES:
        left = challenge(case, answer)
        if left is not answer:
            answer = replace(left, rules=(*answer.rules, challenge.__name__))
    return case, answer


def decide(case: Case) -> Answer:
    """Return the answer of the first rule that applies to `case`; its `rules` name that rule."""
    return first_of(Evidence(case))


def first_of(evidence: Evidence) -> Answer:
    """Return the answer of the first rule that applies to `evidence`; the last rule always does."""
    for rule in RULES:
        answer = rule(evidence)
        if answer is not None:
            return replace(answer, rules=(rule.__name__,))
    raise AssertionError("the last rule always has something to say")


def _judged(case: Case) -> tuple[Case, Answer]:
    """The answer and its case: with ranks without a trace modelled where that fits better, or turns open into named."""
    replayed = with_typical_unseen(case)
    if replayed is not None and replayed.residual_ns < case.residual_ns:
        return replayed, decide(replayed)
    answer = decide(case)
    if replayed is not None and answer.verdict == "inconclusive":
        again = decide(replayed)
        if again.verdict == "slow_rank":
            return replayed, again
    return case, answer


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
