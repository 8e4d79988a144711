"""Rules that name no rank: work is uneven, hosts stall in turn, or the job is healthy."""

from tracekit.analysis.slowrank.answers.harmless import accident_answer, healthy_answer, slack_answer
from tracekit.analysis.slowrank.answers.outside_steps import slow_outside_answer
from tracekit.analysis.slowrank.answers.stage_answers import idle_stage_answer
from tracekit.analysis.slowrank.answers.uneven_work import (
    moving_stalls_answer,
    uneven_answer,
    uneven_tokens_answer,
)
from tracekit.analysis.slowrank.decision.evidence import Evidence
from tracekit.analysis.slowrank.hypotheses.suspect_work import only_attention
from tracekit.analysis.slowrank.suspects import Answer


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
