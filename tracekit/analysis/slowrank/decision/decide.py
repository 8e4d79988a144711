"""Decides about a case: the first rule that applies gives an answer, which the challenges may change."""

from dataclasses import replace

from tracekit.analysis.slowrank.answers.lag_before import without_lag_before
from tracekit.analysis.slowrank.case import Case
from tracekit.analysis.slowrank.decision.evidence import Evidence
from tracekit.analysis.slowrank.decision.order import CHALLENGES, RULES
from tracekit.analysis.slowrank.suspects import Answer
from tracekit.analysis.slowrank.unrecorded.unseen_replay import with_typical_unseen


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
