"""Decides about a case: the first of RULES that applies gives an answer, which CHALLENGES may change.

The highest price is blamed if its lower bound reaches the threshold; a fault is named before a design that costs more.
What may cost as much as the threshold leaves the answer open, as does a gap of the evidence that could hide as much. A
job is healthy only if no rule applies and no gap is as wide.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Final

import numpy as np

from tracekit.analysis.slowrank.answers import culprit_answers, harmless, late_hosts
from tracekit.analysis.slowrank.answers.hidden_rank import with_hidden_rank, with_most_of_it
from tracekit.analysis.slowrank.decision import culprits, gaps, limits, no_culprit
from tracekit.analysis.slowrank.evidence import Evidence, evidence_of
from tracekit.analysis.slowrank.gaps.recurrence import step_in_words
from tracekit.analysis.slowrank.suspects import Answer
from tracekit.analysis.slowrank.unrecorded.unrecorded import with_typical_unseen
from tracekit.case.case import Case, without_steps
from tracekit.case.wording import listed
from tracekit.findings import Quality

Rule = Callable[[Evidence], Answer | None]
"""Returns the answer about a case; None where the rule does not apply, and the next one is asked."""
Challenge = Callable[[Case, Answer], Answer]
"""Returns what a challenge leaves of an answer; the same object where it does not apply."""

RULES: Final[tuple[Rule, ...]] = (
    no_culprit.one_rank_alone,
    no_culprit.unseen_rank_is_dearer,
    culprits.slow_ranks_are_dearest,
    culprits.slow_link_is_dearest,
    culprits.lone_rank_of_a_stage,
    culprits.long_stage_is_dearest,
    culprits.faults_hide_each_other,
    late_hosts.host_pauses_behind,
    no_culprit.unseen_rank_may_cost,
    harmless.a_role_loads,
    no_culprit.hosts_stall_in_turn,
    no_culprit.experts_get_uneven_tokens,
    no_culprit.work_is_uneven,
    harmless.some_ranks_have_more_work,
    no_culprit.slow_in_turn,
    no_culprit.slow_in_one_step,
    no_culprit.price_may_reach_the_threshold,
    culprit_answers.host_launches_slowly,
    gaps.a_gap_may_hide,
    no_culprit.stage_stands_still,
    harmless.healthy,
)
CHALLENGES: Final[tuple[Challenge, ...]] = (
    limits.dumps_time_communication,
    with_hidden_rank,
    with_most_of_it,
    limits.shares_no_communication,
    limits.mesh_is_unknown,
    limits.part_of_a_step,
    limits.price_may_be_smaller,
    gaps.dearer_in_doubt,
)


def concluded(case: Case) -> tuple[Case, Answer]:
    """Return the answer after all challenges, and the case that it rests on."""
    return without_accident(*_challenged(case))


def _challenged(case: Case) -> tuple[Case, Answer]:
    """The answer about all steps of a case after all challenges, and the case that it rests on."""
    case = of_their_steps(case)
    case = with_typical_unseen(case) or case  # with ranks without a trace, if that reproduces the recording
    answer = decide(case)
    for challenge in CHALLENGES:
        left = challenge(case, answer)
        if left is not answer:
            answer = replace(left, rules=(*answer.rules, challenge.__name__))
    return case, answer


def of_their_steps(case: Case) -> Case:
    """`case` without steps that ranks which are slow in one recorded in part: what they cost there is unknown."""
    lacks = np.flatnonzero(np.isnan(case.steps.own[sorted(case.found.throughout)]).any(axis=0))
    lacking = [case.steps.numbers[column] for column in lacks.tolist()]
    detail = f"left out because a rank that is slow recorded a part: {listed(lacking)}"
    note = Quality("partial_steps", None, len(lacking), detail)
    return without_steps(case, lacking, note) if 0 < len(lacking) < len(case.steps.numbers) else case


def decide(case: Case) -> Answer:
    """Return the answer of the first rule that applies to `case`; its `rules` name that rule, or its gap."""
    return first_of(evidence_of(case))


def first_of(evidence: Evidence) -> Answer:
    """Return the answer of the first rule that applies to `evidence`; the last rule always does."""
    for rule in RULES:
        answer = rule(evidence)
        if answer is None:
            continue
        rules = answer.rules or (rule.__name__,)
        cures = answer.cures or culprits.cures_in_order(evidence, answer)
        return replace(answer, rules=rules, cures=cures)
    raise AssertionError("the last rule always has something to say")


def without_accident(case: Case, answer: Answer) -> tuple[Case, Answer]:
    """Return the case and answer without the one step in which a rank had an accident; unchanged where that stays open.

    Unchanged as well where ranks are late in turn, or together, in that step and in others.

    Each rule sees the accident by its own measure, as uneven work, a late launch, or a slow link. The other steps show
    whether anything else is wrong.
    """
    decided, evidence = answer.verdict == "healthy" or answer.suspects, evidence_of(case)
    once = evidence.once if not decided and case.steps.cut is None and case.steps.labelled else None
    if once is None or evidence.once_in_doubt:
        return case, answer
    several = [found.over for found in (evidence.stalls, evidence.moving) if found is not None]
    if any((over[list(once.rows), once.column] > 0).all() for over in several):
        return case, answer
    step = case.steps.numbers[once.column]
    detail = f"step {step} is left out: {step_in_words(case, once)}"
    rest, again = _challenged(without_steps(case, [step], Quality("accident", None, 1, detail)))
    rules = (*answer.rules, without_accident.__name__, *again.rules)
    if again.verdict == "healthy":
        return case, replace(again, reason=harmless.accident(case, once), rules=rules)
    return (case, answer) if again.verdict == "inconclusive" else (rest, replace(again, rules=rules))
