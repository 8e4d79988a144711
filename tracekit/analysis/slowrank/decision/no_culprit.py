"""Rules that blame no rank: work is uneven, hosts stall in turn, or a hypothesis or a gap may cost the threshold."""

from dataclasses import replace

from tracekit.analysis.slowrank.answers.compared_steps import slow_outside
from tracekit.analysis.slowrank.answers.culprit_answers import leave_link_open
from tracekit.analysis.slowrank.answers.imbalance_answers import (
    blame_data,
    blame_in_turn,
    leave_stage_open,
    of_stage,
    stages_in_words,
)
from tracekit.analysis.slowrank.answers.open_answers import (
    leave_one_step_open,
    leave_rank_open,
    leave_unseen_open,
)
from tracekit.analysis.slowrank.evidence import Evidence
from tracekit.analysis.slowrank.hypotheses.suspect_work import only_attention
from tracekit.analysis.slowrank.price import Price
from tracekit.analysis.slowrank.suspects import Answer, harmless, imbalance, left_open
from tracekit.analysis.slowrank.wording import listed
from tracekit.causes import CPU_LAUNCH, HOST_STALL
from tracekit.thresholds.slowrank import MIN_LOST_SHARE
from tracekit.units import ms


def hosts_stall_in_turn(e: Evidence) -> Answer | None:
    """Hosts stall in turn, so that the stall moves from rank to rank, or all stall in the same step."""
    return blame_in_turn(e.case, e.stalls) if e.stalls is not None else None


def unseen_rank_may_cost(e: Evidence) -> Answer | None:
    """The recorded ranks may lose the threshold by waiting for a rank without a trace."""
    return leave_unseen_open(e.case, e.unseen) if e.unseen.undecided >= e.least else None


def slow_in_one_step(e: Evidence) -> Answer | None:
    """A rank was slow in one step, and too few others were recorded to call that an accident."""
    return leave_one_step_open(e.case, e.once) if e.once is not None and e.once_in_doubt else None


def rank_may_cost(e: Evidence) -> Answer | None:
    """A rank works longer than its peers, and the interval of its price reaches the threshold."""
    open_ = e.undecided
    return leave_rank_open(e.case, open_) if open_ is not None and not e.is_accident(open_) else None


def stage_may_cost(e: Evidence) -> Answer | None:
    """A stage works longer than the others, and the interval of its price reaches the threshold."""
    return leave_stage_open(e.case, e.stage) if e.stage is not None and not e.stage.idle else None


def link_may_cost(e: Evidence) -> Answer | None:
    """A link is slower than its peers, and the interval of its price reaches the threshold."""
    return leave_link_open(e.case, e.link) if e.link is not None else None


def only_step_may_cost(e: Evidence) -> Answer | None:
    """A rank works longer in the only step that it recorded whole."""
    return leave_rank_open(e.case, e.only_step) if e.only_step is not None else None


def work_is_uneven(e: Evidence) -> Answer | None:
    """Work follows the data, so that the longest rank changes from step to step.

    One step cannot show a change; it counts only where nothing but attention is longer.
    """
    if e.tokens or not e.data:
        return None
    changes = e.only_step is None or only_attention(e.case, e.only_step.rows)
    return blame_data(e.case, e.data) if changes else None


def experts_get_uneven_tokens(e: Evidence) -> Answer | None:
    """The token counts of experts explain why ranks differ.

    They do not explain a rank that is slow in one step only or has an open price, nor a device that was slow outside
    the compared steps.
    """
    if not e.tokens or e.once_in_doubt or e.only_step is not None or e.undecided is not None:
        return None
    if slow_outside(e.case) is not None:
        return None
    reason = (
        "tokens are distributed unevenly over experts: the work after all-to-alls follows the sizes that ranks "
        f"received, and ranks wait {ms(e.tokens):.1f} ms of {ms(e.case.step_ns):.1f} ms a step; no rank is slow for "
        "the tokens it received"
    )
    return imbalance(reason, e.tokens)


def slow_in_turn(e: Evidence) -> Answer | None:
    """Ranks work longer in turn, each in few steps, so that no rank costs the threshold, and all together do."""
    return blame_in_turn(e.case, e.moving, hosts=False) if e.moving is not None else None


def stage_stands_still(e: Evidence) -> Answer | None:
    """The devices of a stage are idle between kernels for longer than those of other stages.

    That is healthy by design or with equal hosts, otherwise open.
    """
    if e.stage is None:
        return None
    case, stage = e.case, e.stage
    still = (
        f"the devices of {stages_in_words(case, stage)} are idle {ms(stage.over):.1f} ms of "
        f"{ms(case.step_ns):.1f} ms a step longer than other devices, waiting for launches from their hosts"
    )
    if stage.by_design:
        reason = (
            f"{still}: the processes of all its ranks pause equally, on every node, as if they loaded data"
        )
        return harmless(reason)
    if stage.paused:
        # the price of the stage scales all its work; without the pause, in its place, a step may save all of the pause
        price = Price.between(stage.price.low, stage.price.best, max(stage.price.high, stage.over))
        few = replace(stage, rows=stage.paused, price=price)
        named = listed([case.steps.ranks[row] for row in stage.paused])
        decide = "record its peers in the other replicas, and check what else that process does"
        reason = f"{still}, because the process of rank {named} pauses"
        return left_open(reason, decide, of_stage(case, few, HOST_STALL))
    if stage.hosts_alike:
        reason = (
            f"no rank, stage or link works {MIN_LOST_SHARE:.0%} of the step longer than its peers; {still}: the hosts "
            "of other stages are no faster, but run ahead while they wait"
        )
        return harmless(reason)
    reason = f"{still}, and its hosts are slower than theirs or were not recorded"
    decide = "record the host as well (ProfilerActivity.CPU), and profile the hosts of that stage"
    return left_open(reason, decide, of_stage(case, stage, CPU_LAUNCH))
