"""Nobody can be named: the job is healthy, or the evidence leaves that open.

A job is healthy only if nothing that the evidence leaves open could cost 2 % of the step.
"""

import numpy as np

from tracekit.analysis.slowrank.answers.everybody_typical import open_imbalance_answer, varied_answer
from tracekit.analysis.slowrank.answers.faint import faint_answer
from tracekit.analysis.slowrank.answers.inferred_steps import unequal_steps_answer
from tracekit.analysis.slowrank.answers.late_launch import late_launch_answer
from tracekit.analysis.slowrank.answers.launch_bound import launch_bound_answer
from tracekit.analysis.slowrank.answers.lone_groups import lone_group_answer
from tracekit.analysis.slowrank.answers.moving_stalls import moving_stalls, moving_stalls_answer
from tracekit.analysis.slowrank.answers.open_answers import (
    candidates_of,
    contradicted_answer,
    lopsided_answer,
    one_step_answer,
    only_step_answer,
    open_answer,
    open_link_answer,
    unmeasured_answer,
    unread_answer,
    unseen_answer,
    whole_steps,
)
from tracekit.analysis.slowrank.answers.outside_steps import slow_outside_answer
from tracekit.analysis.slowrank.answers.role_note import role_in_words
from tracekit.analysis.slowrank.answers.slow_launch import slow_launch_answer
from tracekit.analysis.slowrank.answers.sole_groups import sole_group_answer
from tracekit.analysis.slowrank.answers.stage_answers import (
    idle_stage_answer,
    open_stage_answer,
    stages_in_words,
)
from tracekit.analysis.slowrank.case import Case
from tracekit.analysis.slowrank.gaps.evidence_gaps import (
    Undecided,
    compared_little,
    in_the_only_step,
    nearly_costly,
    undecided,
    unmeasured,
    unread,
    what_would_decide,
)
from tracekit.analysis.slowrank.gaps.lopsided import lopsided
from tracekit.analysis.slowrank.gaps.recurrence import OneStep, in_one_step, others_prove_health, told
from tracekit.analysis.slowrank.hypotheses.candidates import significant_rows
from tracekit.analysis.slowrank.hypotheses.data_imbalance import uneven_data, uneven_tokens
from tracekit.analysis.slowrank.hypotheses.long_stage import LongStage
from tracekit.analysis.slowrank.hypotheses.slow_link import SlowLink
from tracekit.analysis.slowrank.hypotheses.suspect_work import only_attention
from tracekit.analysis.slowrank.hypotheses.table_shares import everybody_ns, share_in_words
from tracekit.analysis.slowrank.hypotheses.uneven_micro_batches import unexplained_ns
from tracekit.analysis.slowrank.suspects import Answer, healthy, left_open
from tracekit.analysis.slowrank.unrecorded.unrecorded import Unseen
from tracekit.analysis.slowrank.wording import listed
from tracekit.step_graph.table_model import TableModel
from tracekit.thresholds.operation_tables import UNEXPLAINED
from tracekit.thresholds.slowrank import MIN_LOST_SHARE
from tracekit.units import ms


def nobody(case: Case, unseen: Unseen, stage: LongStage | None, link: SlowLink | None) -> Answer:
    """The job is healthy, the data is uneven, or the evidence leaves it open; `stage` and `link` are not proven."""
    if unseen.undecided >= MIN_LOST_SHARE * case.step_ns:
        return unseen_answer(case, unseen)
    moving = moving_stalls(case)
    if moving is not None:
        return moving_stalls_answer(case, moving)
    once = in_one_step(case)
    chance = once is not None and not others_prove_health(case, once)
    alone, dealt = in_the_only_step(case), uneven_tokens(case)
    beyond = chance or alone is not None or undecided(case) is not None  # more than tokens explain
    if dealt and not beyond:
        return slow_outside_answer(case) or uneven_tokens_answer(case, dealt)
    uneven = 0.0 if dealt else uneven_data(case)
    if uneven and (
        alone is None or only_attention(case, alone.rows)
    ):  # else one step shows no change of ranks
        return uneven_answer(case, uneven)
    if once is not None and chance:
        return one_step_answer(case, once)
    return (
        _somebody_may_cost(case, stage, link, once)
        or _not_seen(case)
        or _lost_to_nobody(case)
        or open_imbalance_answer(case)
        or varied_answer(case)
        or _explained(case, once, stage)
        or _healthy(case)
    )


def _somebody_may_cost(
    case: Case, stage: LongStage | None, link: SlowLink | None, once: OneStep | None
) -> Answer | None:
    """The answer that names candidates whose price the evidence leaves open; None where there are none.

    A rank that costs nothing in all steps but `once` is none, however significant its excess in these is.
    """
    open_, whim = undecided(case), () if once is None else (once.row,)
    if open_ is not None and open_.rows != whim:
        return open_answer(case, open_)
    if stage is not None and not stage.idle:
        return open_stage_answer(case, stage)
    if link is not None:
        return open_link_answer(case, link)
    alone = in_the_only_step(case)
    if alone is not None:
        return only_step_answer(case, alone)
    near = nearly_costly(case)
    if near is not None and near.rows != whim:
        return _near_answer(case, near)
    return faint_answer(case)


def _near_answer(case: Case, found: Undecided) -> Answer:
    """A rank works longer than its peers, and the price of that is too near the threshold to call it harmless."""
    candidates = candidates_of(case, found)
    longer = ms(float(case.found.mean[found.rows[0]]))
    reason = (
        f"rank {listed([c.rank for c in candidates])} works {longer:.1f} ms of {ms(case.step_ns):.1f} ms a step longer "
        f"than its peers; the others lose up to {ms(max(found.high)):.1f} ms by it, because {found.why}"
    )
    return left_open(reason, found.decide, candidates)


def _not_seen(case: Case) -> Answer | None:
    """The answer that too little was seen, or was seen wrongly, to call anybody healthy; None where enough was."""
    if case.pinned_residual_ns >= MIN_LOST_SHARE * case.step_ns:
        return launch_bound_answer(case) or contradicted_answer(case)
    if unmeasured(case):
        return unmeasured_answer(case)
    if compared_little(case):
        return _one_of_several_answer(case)
    told = lone_group_answer(case) or unequal_steps_answer(case)
    told = told or slow_launch_answer(case) or late_launch_answer(case) or slow_outside_answer(case)
    if told is not None:
        return told
    apart = lopsided(case)
    if apart is not None and apart.over >= MIN_LOST_SHARE * case.step_ns:
        return lopsided_answer(case, apart)
    if case.residual_ns >= MIN_LOST_SHARE * case.step_ns:
        return launch_bound_answer(case) or _unexplained_answer(case)
    if unread(case) and not len(significant_rows(case, MIN_LOST_SHARE)):
        return unread_answer(case)
    return sole_group_answer(case)


def _lost_to_nobody(case: Case) -> Answer | None:
    """The answer that an operation table loses time which nothing explains; None where it does not."""
    if not isinstance(case.model, TableModel):
        return None
    lost = unexplained_ns(case, case.model)
    if lost < UNEXPLAINED * case.model.recorded_ns:
        return None
    reason = (
        f"no rank, stage or link costs {MIN_LOST_SHARE:.0%} of the step, but typical work of every operation would "
        f"save {ms(lost):.1f} ms of {ms(case.step_ns):.1f} ms: work varies, and no rank, link or micro-batch tells why"
    )
    decide = "record ten steps or more, and ask tracekit whatif for each type of operation (--fix op=...)"
    return left_open(reason, decide)


def _one_of_several_answer(case: Case) -> Answer:
    """Nobody works longer than the others in the one step that could be compared, and most was recorded outside it."""
    share = float(case.analysed.mean())
    reason = (
        f"no rank works longer than its peers in the only step that all ranks recorded whole, but it holds {share:.0%} "
        "of the recorded operations: the others lie in steps that the windows cut, and were not compared"
    )
    return left_open(reason, whole_steps(case))


def _unexplained_answer(case: Case) -> Answer:
    """Nobody costs as much by the step model, but that misses the recorded steps by more: it rules nobody out."""
    reason = (
        f"no rank, stage or link costs {MIN_LOST_SHARE:.0%} of the step by the model of the recorded steps, but that "
        f"misses them by {ms(case.residual_ns):.1f} ms of {ms(case.step_ns):.1f} ms: as much may be lost to somebody "
        "whose messages or waits could not be matched"
    )
    return left_open(reason, what_would_decide(case))


def _explained(case: Case, once: OneStep | None, stage: LongStage | None) -> Answer | None:
    """Why a rank or a stage that takes longer is nobody's fault; None where there is none."""
    if once is not None:
        accident = f"an accident and no slow rank, for nothing costs {MIN_LOST_SHARE:.0%} in the others"
        return healthy(f"{told(case, once)}: {accident}")
    if stage is not None:
        return idle_stage_answer(case, stage)
    free = significant_rows(case, MIN_LOST_SHARE)
    if len(free):
        return healthy(_costs_nothing(case, int(free[np.argmax(case.found.mean[free])])))
    return None


def _healthy(case: Case) -> Answer:
    """Nobody works longer than the others by more than chance."""
    explained = _beside_communication(case) or _by_role(case)
    if explained:
        return healthy(explained)
    worst = int(np.nanargmax(np.nan_to_num(case.found.mean, nan=-np.inf)))
    reason = (
        f"no rank, stage or link costs {MIN_LOST_SHARE:.0%} of the step beyond chance (largest excess: rank "
        f"{case.steps.ranks[worst]}, {ms(max(float(np.nan_to_num(case.found.mean[worst])), 0.0)):.2f} ms of "
        f"{ms(case.step_ns):.1f} ms, "
        f"z {float(np.nan_to_num(case.found.z[worst])):.1f})"
    )
    return healthy(reason)


def _beside_communication(case: Case) -> str | None:
    """Why a rank that works longer is not slow: communication shares its device; None where none does."""
    longer = np.nanmean(case.met.beside, axis=1)
    row = int(np.argmax(longer))
    if longer[row] < MIN_LOST_SHARE * case.step_ns:
        return None
    return (
        f"rank {case.steps.ranks[row]} works {ms(float(longer[row])):.1f} ms of {ms(case.step_ns):.1f} ms a step "
        "longer than its peers, but only where communication that they do not have runs beside its kernels: else these "
        "are as quick as theirs"
    )


def _by_role(case: Case) -> str | None:
    """Why ranks that stand still longer are not slow: their role makes them; None where it makes nobody."""
    told = role_in_words(case)
    return f"{told}, by design, it seems, and none of them longer than the rest" if told else None


def _costs_nothing(case: Case, row: int) -> str:
    """Why a rank that works longer than its peers costs nothing: which rank sets the pace instead."""
    ops, analysed = case.ops, case.analysed
    waited = [
        float(np.where(analysed, case.waits.exposed_wait, 0)[ops.of(r)].sum()) for r in case.steps.ranks
    ]
    pace = min((i for i in range(len(waited)) if i != row), key=lambda i: waited[i])
    longer, least = ms(float(case.found.mean[row])), ms(waited[pace] / len(case.steps.numbers))
    return (
        f"rank {case.steps.ranks[row]} works {longer:.1f} ms of {ms(case.step_ns):.1f} ms a step longer than its "
        f"peers, but nobody loses {MIN_LOST_SHARE:.0%} by it: the step follows rank {case.steps.ranks[pace]}, which "
        f"waits least ({least:.1f} ms a step)"
    )


def uneven_tokens_answer(case: Case, gain: float) -> Answer:
    """Experts got uneven numbers of tokens, which costs `gain` (ns a step), and nobody is to blame."""
    reason = (
        f"tokens are dealt unevenly to experts: the work behind all-to-alls follows the sizes that ranks received, and "
        f"{ms(gain):.1f} ms of {ms(case.step_ns):.1f} ms a step go into waiting; no rank is slow for its tokens"
    )
    return Answer("imbalance", "data_imbalance", reason, gain=gain)


def uneven_answer(case: Case, gain: float, stage: LongStage | None = None) -> Answer:
    """Work is dealt unevenly, which costs `gain` (ns a step), and nobody is to blame; a long `stage` costs less.

    Of an operation table the price is that of typical work on all ranks, as of any imbalance.
    """
    whole = everybody_ns(case, gain)
    besides = {} if stage is None else {f"typical work on {stages_in_words(case, stage)}": stage.gain}
    reason = (
        f"work is dealt unevenly and the longest rank changes: {ms(whole):.1f} ms of {ms(case.step_ns):.1f} ms "
        f"a step go into waiting, no rank is slow throughout{share_in_words(case, 'even work', gain, besides)}"
    )
    return Answer("imbalance", "data_imbalance", reason, gain=whole)


def uneven_experts_answer(case: Case, gain: float) -> Answer:
    """Experts got uneven numbers of tokens, whose sizes nothing tells, which costs `gain` (ns a step)."""
    reason = (
        "tokens are dealt unevenly to experts: ranks differ in every step, but kernels that follow no data take as "
        f"long on all; {ms(gain):.1f} ms of {ms(case.step_ns):.1f} ms a step go into waiting"
    )
    return Answer("imbalance", "data_imbalance", reason, gain=gain)
