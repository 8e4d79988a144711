"""Rules that blame no rank: the answer stays open, work is uneven, hosts stall in turn, or the job is healthy.

An answer is open where something may cost the threshold, or too little was recorded to exclude it.
"""

from typing import Final

import numpy as np

from tracekit.analysis.slowrank.answers.culprit_answers import leave_link_open
from tracekit.analysis.slowrank.answers.imbalance_answers import blame_in_turn, leave_stage_open
from tracekit.analysis.slowrank.answers.open_answers import (
    leave_one_step_open,
    leave_only_step_open,
    leave_rank_open,
    leave_unseen_open,
    more_steps,
    whole_steps,
)
from tracekit.analysis.slowrank.case import Case
from tracekit.analysis.slowrank.evidence import Evidence
from tracekit.analysis.slowrank.gaps.evidence_gaps import (
    compared_little,
    coverage,
    unmeasured,
    unread,
    what_would_decide,
)
from tracekit.analysis.slowrank.gaps.lone_transfers import LoneTransfers, in_words, lopsided, remedy
from tracekit.analysis.slowrank.hypotheses.candidates import significant_rows
from tracekit.analysis.slowrank.hypotheses.data_imbalance import unexplained_ns
from tracekit.analysis.slowrank.price import Price
from tracekit.analysis.slowrank.suspects import Answer, left_open, link_end, suspect_of
from tracekit.analysis.slowrank.wording import ranks_in_words
from tracekit.step_graph.table_model import TableModel
from tracekit.thresholds.slowrank import (
    CLEAR_SHARE,
    LINK_RATIO_OF_TWO,
    MIN_LOST_SHARE,
    RANKS_LISTED,
    SOLE_GROUP_SHARE,
)
from tracekit.units import I64, ms


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
    return leave_only_step_open(e.case, e.only_step) if e.only_step is not None else None


def replay_contradicts(e: Evidence) -> Answer | None:
    """The replay of the operations as matched misses the recorded waits by the threshold or more."""
    case = e.case
    if case.pinned_residual_ns < e.least:
        return None
    return _gaps_of(case, case.table) if case.table else _mismatched(case)


def _mismatched(case: Case) -> Answer:
    """The open answer where no rank has an excess, but the replay does not reproduce the recorded waits."""
    reason = (
        f"no rank works longer than its peers, but a replay of the recorded steps misses what the ranks waited by "
        f"{ms(case.pinned_residual_ns):.1f} ms of {ms(case.step_ns):.1f} ms a step: steps or operations of different "
        "ranks were matched that do not belong together"
    )
    marks = _SAME_STEPS if case.steps.labelled else f"{_MARKS}, and {_SAME_STEPS}"
    if any(rank.on_gpu for rank in case.ops.per_rank.values()):
        return left_open(reason, marks)
    reason += ", or devices did work that was not recorded: the traces hold no kernel"
    return left_open(reason, f"{_KERNELS}; else {marks}")


_KERNELS: Final = (
    "if the job ran on GPUs, give the profiler activities=[CPU, CUDA], and check that CUPTI works"
)
_MARKS: Final = "call the profiler's step() after every step on every rank"
_SAME_STEPS: Final = "record all ranks for the same steps"


def _gaps_of(case: Case, model: TableModel) -> Answer:
    """The open answer about a table in which operations start later than all their dependencies end."""
    idle = model.idle.mean(axis=1)
    row = int(np.argmax(idle))
    reason = (
        f"no rank works longer than its peers, but {ms(case.residual_ns):.1f} ms of {ms(case.step_ns):.1f} ms a step "
        f"are gaps between operations that no operation of the table explains; rank {case.steps.ranks[row]} is idle "
        f"longest, {ms(float(idle[row])):.1f} ms a step"
    )
    decide = f"check what the host of rank {case.steps.ranks[row]} does between operations: the table does not show it"
    return left_open(reason, decide)


def rank_is_unmeasured(e: Evidence) -> Answer | None:
    """A rank recorded none of the compared steps whole."""
    case = e.case
    if not unmeasured(case):
        return None
    ranks = ranks_in_words(unmeasured(case))
    reason = (
        f"no rank works longer than its peers, but {ranks} recorded none of the compared steps whole, so their own "
        "time is unknown"
    )
    return left_open(reason, whole_steps(case))


def little_was_compared(e: Evidence) -> Answer | None:
    """One step was compared, and most operations lie outside it."""
    case = e.case
    if not compared_little(case):
        return None
    share = float(case.analysed.mean())
    reason = (
        f"no rank works longer than its peers in the only step that all ranks recorded whole, but that step holds "
        f"{share:.0%} of the recorded operations: the others are in steps that the windows cut, and were not compared"
    )
    return left_open(reason, whole_steps(case))


def waits_are_lopsided(e: Evidence) -> Answer | None:
    """A rank waits longer than its peers in a kind of operation that was not matched everywhere."""
    case, found = e.case, lopsided(e.case)
    if found is None or found.over < e.least:
        return None
    row, rank = found.row, case.steps.ranks[found.row]
    candidate = link_end(case, row, Price.up_to(found.over))
    reason = (
        f"no rank works longer than its peers, but rank {rank} waits {ms(found.over):.1f} ms of "
        f"{ms(case.step_ns):.1f} ms a step longer than its peers in {found.kind} operations, and some of these "
        "operations were not matched: a slow link or a late rank would look like this"
    )
    return left_open(reason, what_would_decide(case), (candidate,))


def model_misses(e: Evidence) -> Answer | None:
    """The model of the step misses the recording by the threshold or more."""
    case = e.case
    if case.residual_ns < e.least:
        return None
    reason = (
        f"no rank, stage or link costs {MIN_LOST_SHARE:.0%} of the step by the model of the recorded steps, but that "
        f"model is off by {ms(case.residual_ns):.1f} ms of {ms(case.step_ns):.1f} ms: a rank with unmatched messages "
        "or waits may cost as much"
    )
    return left_open(reason, what_would_decide(case))


def communication_is_unmatched(e: Evidence) -> Answer | None:
    """Hardly any communication was matched between ranks, and no rank has a significant excess."""
    case = e.case
    if not unread(case) or len(significant_rows(case, MIN_LOST_SHARE)):
        return None
    matched = coverage(case).matched or 0.0
    reason = (
        f"no rank works longer than its peers, but only {matched:.0%} of the exposed communication could be matched "
        "between ranks, so that slow transfers and late ranks would not show"
    )
    return left_open(reason, what_would_decide(case))


def table_is_unexplained(e: Evidence) -> Answer | None:
    """The operations of a table vary, and no rank, link or micro-batch explains why."""
    case = e.case
    if case.table is None:
        return None
    lost = unexplained_ns(case, case.table)
    if lost < CLEAR_SHARE * case.table.recorded_ns:
        return None
    reason = (
        f"no rank, stage or link costs {MIN_LOST_SHARE:.0%} of the step, but typical work of every operation would "
        f"save {ms(lost):.1f} ms of {ms(case.step_ns):.1f} ms: work varies, and no rank, link or micro-batch explains"
        " it"
    )
    decide = f"{more_steps(case)}, and run tracekit whatif for each type of operation (--fix op=...)"
    return left_open(reason, decide)


def lone_transfers_may_be_slow(e: Evidence) -> Answer | None:
    """Transfers without peers could save much of the step, and their bandwidth proves no healthy link.

    Links between nodes are left to a statement beside the answer, because few of their networks reach the bandwidth
    that proves health. Where peers can be recorded, it suffices that a link slow by the smallest ratio that two groups
    would show could cost the threshold.
    """

    def counts(found: LoneTransfers, hidden: float) -> bool:
        least_slow = found.spent * (1 - 1 / LINK_RATIO_OF_TWO)
        much = hidden >= SOLE_GROUP_SHARE * e.case.step_ns and not found.nodes
        return much or bool(found.peers and least_slow >= e.least)

    case = e.case
    found = max((f for f, hidden in e.unproven if counts(f, hidden)), key=lambda f: f.spent, default=None)
    if found is None:
        return None
    price = Price.up_to(found.spent, found.spent)
    rows = [case.steps.row(r) for r in found.ranks[:RANKS_LISTED]] if found.peers else []
    reason = f"{in_words(case, found)}: a slow link and a slow network would look the same"
    return left_open(reason, remedy(case, found), tuple(link_end(case, row, price) for row in rows))


def lone_ranks_vary(e: Evidence) -> Answer | None:
    """Ranks without a peer work longer in some steps than in their quickest one, which costs the threshold.

    Uneven data and an intermittently slow device look alike there; steps that take equally long hide neither.
    """
    case, rows = e.case, _lone_ranks(e.case)
    lost = _varies_ns(case, rows) if len(rows) else 0.0
    if lost < e.least:
        return None
    alone = {int(row): _varies_ns(case, np.array([row])) for row in rows}
    ranks = ranks_in_words([case.steps.ranks[row] for row in rows])
    reason = (
        f"{ranks} do work that no other rank does, and would save {ms(lost):.1f} ms of {ms(case.step_ns):.1f} ms a "
        "step if every step were as quick as their quickest: uneven data and a device that is slow at times would "
        "look the same"
    )
    candidates = tuple(
        suspect_of(case, row, Price.up_to(alone[row]), 0.0, "unknown", ())
        for row in sorted(alone, key=lambda row: (-alone[row], row))[:RANKS_LISTED]
    )
    return left_open(reason, _REPEAT, candidates)


_REPEAT: Final = (
    "record the same steps again with the same data in another order, or on another host: a slow device stays slow; "
    "or test the devices alone: tracekit next TRACES"
)


def _lone_ranks(case: Case) -> I64:
    """The rows of GPU ranks that recorded several steps and have no peer in any of them."""
    alone = ~np.isfinite(case.found.mean) & (np.isfinite(case.steps.own).sum(axis=1) > 1)
    on_gpu = [case.ops.per_rank[rank].on_gpu for rank in case.steps.ranks]
    return np.flatnonzero(alone & on_gpu)


def _varies_ns(case: Case, rows: I64) -> float:
    """What a step saves if each of `rows` works in every step as in its quickest one, ns."""
    target = case.steps.own.copy()
    target[rows] = np.minimum(target[rows], np.nanmin(target[rows], axis=1, keepdims=True))
    return max(case.model.recorded_ns - case.model.step_ns(target), 0.0)
