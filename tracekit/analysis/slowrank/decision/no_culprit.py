"""Rules that blame no rank: the answer stays open, work is uneven, hosts stall in turn, or the job is healthy.

An answer is open where something may cost the threshold, or too little was recorded to exclude it.
"""

from tracekit.analysis.slowrank.answers.compared_steps import slow_outside_answer, unequal_steps_answer
from tracekit.analysis.slowrank.answers.culprit_answers import open_link_answer
from tracekit.analysis.slowrank.answers.faint import faint_answer
from tracekit.analysis.slowrank.answers.harmless import accident_answer, healthy_answer, slack_answer
from tracekit.analysis.slowrank.answers.late_launch import late_launch_answer, launch_bound_answer
from tracekit.analysis.slowrank.answers.lone_groups import lone_group_answer, sole_group_answer
from tracekit.analysis.slowrank.answers.open_answers import (
    contradicted_answer,
    lopsided_answer,
    near_answer,
    one_of_several_answer,
    one_step_answer,
    only_step_answer,
    open_answer,
    unexplained_answer,
    unexplained_table_answer,
    unmeasured_answer,
    unread_answer,
    unseen_answer,
)
from tracekit.analysis.slowrank.answers.stage_answers import idle_stage_answer, open_stage_answer
from tracekit.analysis.slowrank.answers.uneven_work import (
    moving_stalls_answer,
    open_imbalance_answer,
    uneven_answer,
    uneven_tokens_answer,
    varied_answer,
)
from tracekit.analysis.slowrank.decision.evidence import Evidence
from tracekit.analysis.slowrank.gaps.evidence_gaps import compared_little, nearly_costly, unmeasured, unread
from tracekit.analysis.slowrank.gaps.lopsided import lopsided
from tracekit.analysis.slowrank.hypotheses.candidates import significant_rows
from tracekit.analysis.slowrank.hypotheses.suspect_work import only_attention
from tracekit.analysis.slowrank.suspects import Answer
from tracekit.thresholds.slowrank import MIN_LOST_SHARE


def hosts_stall_in_turn(e: Evidence) -> Answer | None:
    """Hosts stall in turn, so that the stall moves from rank to rank, or all stall in the same step."""
    return moving_stalls_answer(e.case, e.stalls) if e.stalls is not None else None


def experts_get_uneven_tokens(e: Evidence) -> Answer | None:
    """The token counts of experts explain why ranks differ.

    They do not explain a rank that is slow in one step only or has an open price. A device that was slow outside the
    compared steps is reported first.
    """
    if not e.tokens or e.once_in_doubt or e.only_step is not None or e.undecided is not None:
        return None
    return slow_outside_answer(e.case) or uneven_tokens_answer(e.case, e.tokens)


def work_is_uneven(e: Evidence) -> Answer | None:
    """Work follows the data, so that the longest rank changes from step to step.

    One step cannot show a change; it counts only where nothing but attention is longer.
    """
    if e.tokens or not e.data:
        return None
    changes = e.only_step is None or only_attention(e.case, e.only_step.rows)
    return uneven_answer(e.case, e.data) if changes else None


def one_step_was_an_accident(e: Evidence) -> Answer | None:
    """A rank was slow in one step, and costs nothing in the others."""
    return accident_answer(e.case, e.once) if e.once is not None else None


def stage_stands_still(e: Evidence) -> Answer | None:
    """The devices of a stage are idle between kernels for longer than those of other stages."""
    return idle_stage_answer(e.case, e.stage) if e.stage is not None else None


def rank_has_slack(e: Evidence) -> Answer | None:
    """A rank works longer than its peers, and no other rank waits for it."""
    return slack_answer(e.case)


def healthy(e: Evidence) -> Answer | None:
    """No rank works longer than its peers by more than chance."""
    return healthy_answer(e.case)


def unseen_rank_may_cost(e: Evidence) -> Answer | None:
    """The recorded ranks may lose the threshold by waiting for a rank without a trace."""
    return unseen_answer(e.case, e.unseen) if e.unseen.undecided >= e.least else None


def slow_in_one_step(e: Evidence) -> Answer | None:
    """A rank was slow in one step, and too few others were recorded to call that an accident."""
    return one_step_answer(e.case, e.once) if e.once is not None and e.once_in_doubt else None


def rank_may_cost(e: Evidence) -> Answer | None:
    """A rank works longer than its peers, and the interval of its price reaches the threshold."""
    open_ = e.undecided
    return open_answer(e.case, open_) if open_ is not None and not e.is_accident(open_) else None


def stage_may_cost(e: Evidence) -> Answer | None:
    """A stage works longer than the others, and the interval of its price reaches the threshold."""
    return open_stage_answer(e.case, e.stage) if e.stage is not None and not e.stage.idle else None


def link_may_cost(e: Evidence) -> Answer | None:
    """A link is slower than its peers, and the interval of its price reaches the threshold."""
    return open_link_answer(e.case, e.link) if e.link is not None else None


def only_step_may_cost(e: Evidence) -> Answer | None:
    """A rank works longer in the only step that it recorded whole."""
    return only_step_answer(e.case, e.only_step) if e.only_step is not None else None


def rank_nearly_costs(e: Evidence) -> Answer | None:
    """The price of a rank is below the threshold by less than its uncertainty."""
    near = nearly_costly(e.case)
    return near_answer(e.case, near) if near is not None and not e.is_accident(near) else None


def excess_is_faint(e: Evidence) -> Answer | None:
    """The excess of a rank, a stage or a node is unlikely to be chance, but not significant."""
    return faint_answer(e.case)


def replay_contradicts(e: Evidence) -> Answer | None:
    """The replay of the operations as matched misses the recorded waits by the threshold or more."""
    if e.case.pinned_residual_ns < e.least:
        return None
    return launch_bound_answer(e.case) or contradicted_answer(e.case)


def rank_is_unmeasured(e: Evidence) -> Answer | None:
    """A rank recorded none of the compared steps whole."""
    return unmeasured_answer(e.case) if unmeasured(e.case) else None


def little_was_compared(e: Evidence) -> Answer | None:
    """One step was compared, and most operations lie outside it."""
    return one_of_several_answer(e.case) if compared_little(e.case) else None


def group_has_no_peer(e: Evidence) -> Answer | None:
    """A group's transfers have no peer to compare with: all other groups along its axes lack a trace."""
    return lone_group_answer(e.case)


def steps_are_unequal(e: Evidence) -> Answer | None:
    """The traces mark no steps, and the repetitions used as steps last longer on one rank than on its peers."""
    return unequal_steps_answer(e.case)


def host_launches_late(e: Evidence) -> Answer | None:
    """A host launches collectives late, at a price that the traces do not show."""
    return late_launch_answer(e.case)


def slow_outside_steps(e: Evidence) -> Answer | None:
    """A device was slow in a part of a step that was not compared."""
    return slow_outside_answer(e.case)


def waits_are_lopsided(e: Evidence) -> Answer | None:
    """A rank waits longer than its peers in a kind of operation that was not matched everywhere."""
    apart = lopsided(e.case)
    return lopsided_answer(e.case, apart) if apart is not None and apart.over >= e.least else None


def model_misses(e: Evidence) -> Answer | None:
    """The model of the step misses the recording by the threshold or more."""
    if e.case.residual_ns < e.least:
        return None
    return launch_bound_answer(e.case) or unexplained_answer(e.case)


def communication_is_unmatched(e: Evidence) -> Answer | None:
    """Hardly any communication was matched between ranks, and no rank has a significant excess."""
    return (
        unread_answer(e.case)
        if unread(e.case) and not len(significant_rows(e.case, MIN_LOST_SHARE))
        else None
    )


def sole_group_may_be_slow(e: Evidence) -> Answer | None:
    """The only group along its axes has no peer in the job, and its bandwidth does not prove a healthy link."""
    return sole_group_answer(e.case)


def table_is_unexplained(e: Evidence) -> Answer | None:
    """The operations of a table vary, and no rank, link or micro-batch explains why."""
    return unexplained_table_answer(e.case)


def data_may_cost(e: Evidence) -> Answer | None:
    """The interval of what uneven data costs reaches the threshold."""
    return open_imbalance_answer(e.case)


def work_varies(e: Evidence) -> Answer | None:
    """Work varies between ranks by more than chance, and nothing that was recorded explains it."""
    return varied_answer(e.case)
