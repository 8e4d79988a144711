"""The rules of the decision in the order in which they are asked, and the challenges to their answer.

The first rule that applies gives the answer; the last one always applies. The highest price is blamed if its lower
bound reaches the threshold; a fault is named before a design that costs more. What may cost as much as the threshold,
or could be hidden by a gap of the evidence, leaves the answer open. A job is healthy only if no other rule applies.
"""

from collections.abc import Callable
from typing import Final

from tracekit.analysis.slowrank.answers.dominant_rank import with_most_of_it
from tracekit.analysis.slowrank.answers.late_posts import with_late_posts
from tracekit.analysis.slowrank.answers.steady_work import with_hidden_rank
from tracekit.analysis.slowrank.answers.unsteady_links import with_unsteady_link
from tracekit.analysis.slowrank.case import Case
from tracekit.analysis.slowrank.decision import blameless, culprits, limits, open_questions
from tracekit.analysis.slowrank.decision.evidence import Evidence
from tracekit.analysis.slowrank.suspects import Answer

Rule = Callable[[Evidence], Answer | None]
"""Returns the answer about a case; None where the rule does not apply, and the next one is asked."""
Challenge = Callable[[Case, Answer], Answer]
"""Returns what a challenge leaves of an answer; the same object where it does not apply."""

RULES: Final[tuple[Rule, ...]] = (
    culprits.one_rank_alone,
    culprits.unseen_rank_is_dearer,
    culprits.slow_link_is_dearest,
    culprits.slow_ranks_beside_a_stage,
    culprits.slow_link_beside_a_stage,
    culprits.lone_rank_of_a_stage,
    culprits.long_stage_is_dearest,
    culprits.slow_ranks_are_dearest,
    open_questions.unseen_rank_may_cost,
    blameless.hosts_stall_in_turn,
    blameless.experts_get_uneven_tokens,
    blameless.work_is_uneven,
    open_questions.slow_in_one_step,
    open_questions.rank_may_cost,
    open_questions.stage_may_cost,
    open_questions.link_may_cost,
    open_questions.only_step_may_cost,
    open_questions.rank_nearly_costs,
    open_questions.excess_is_faint,
    open_questions.replay_contradicts,
    open_questions.rank_is_unmeasured,
    open_questions.little_was_compared,
    open_questions.group_has_no_peer,
    open_questions.steps_are_unequal,
    culprits.host_launches_slowly,
    open_questions.host_launches_late,
    open_questions.slow_outside_steps,
    open_questions.waits_are_lopsided,
    open_questions.model_misses,
    open_questions.communication_is_unmatched,
    open_questions.sole_group_may_be_slow,
    open_questions.table_is_unexplained,
    open_questions.data_may_cost,
    open_questions.work_varies,
    blameless.one_step_was_an_accident,
    blameless.stage_stands_still,
    blameless.rank_has_slack,
    blameless.healthy,
)
CHALLENGES: Final[tuple[Challenge, ...]] = (
    limits.dumps_time_communication,
    with_hidden_rank,
    with_most_of_it,
    with_late_posts,
    with_unsteady_link,
    limits.mesh_is_unknown,
    limits.part_of_a_step,
)
