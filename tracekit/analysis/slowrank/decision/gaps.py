"""The gaps of the evidence in the order in which they are asked: each with what it could hide, and what would decide.

The first that decides and could hide the threshold leaves a job open that no hypothesis explains. `slowrank --explain`
lists all of them.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from operator import itemgetter
from typing import Final

import numpy as np

from tracekit.analysis.slowrank.answers.compared_steps import (
    ALL_RANKS,
    slow_at_times,
    slow_in_some,
    steps_are_unequal,
    unseen_late_outside,
)
from tracekit.analysis.slowrank.answers.late_hosts import (
    host_launches_late,
    rank_posts_late,
    ranks_leave_late,
    same_ranks_stall_at_times,
)
from tracekit.analysis.slowrank.answers.open_answers import leave_one_step_open, leave_rank_open
from tracekit.analysis.slowrank.answers.unsteady_links import link_is_irregular
from tracekit.analysis.slowrank.decision.work_gaps import (
    data_may_cost,
    few_ranks_are_quick,
    hosts_meet,
    lone_ranks_vary,
    table_is_unexplained,
    work_varies,
)
from tracekit.analysis.slowrank.evidence import Evidence, Gap, evidence_of
from tracekit.analysis.slowrank.gaps.evidence_gaps import (
    compared_little,
    unread,
    what_would_decide,
    whole_steps,
)
from tracekit.analysis.slowrank.gaps.lone_transfers import (
    all_could_hide_ns,
    in_words,
    lopsided,
    prove_no_health,
    remedy,
)
from tracekit.analysis.slowrank.price import Price
from tracekit.analysis.slowrank.suspects import Answer, left_open, link_ends, rows_named, up_to
from tracekit.case.case import Case
from tracekit.case.wording import fewest_traces, listed, of_step, ranks_in_words
from tracekit.thresholds.slowrank import MIN_LOST_SHARE, RANKS_LISTED
from tracekit.units import ms


def unseen_ranks(e: Evidence) -> Iterator[Gap]:
    """Ranks left no trace, and others may wait for them; a rule decides about these before."""
    case, unseen = e.case, e.unseen
    if case.missing and unseen.most > 0:
        what = f"{ranks_in_words(case.missing)} left no trace: others may wait for them"
        to_decide = fewest_traces(case, unseen.ranks or case.missing)
        yield Gap(what, unseen.most, to_decide, decides=False)


def replay_contradicts(e: Evidence) -> Iterator[Gap]:
    """The replay of the operations as matched misses the recorded waits."""
    case, missed = e.case, e.case.pinned_residual_ns
    if missed < e.least:
        return
    if case.table is not None:
        idle = case.table.idle.mean(axis=1)
        rank, longest = case.steps.ranks[int(np.argmax(idle))], ms(float(idle.max()))
        what = (
            f"{of_step(case, case.residual_ns)} are gaps between operations that no "
            f"operation of the table explains; rank {rank} is idle longest, {longest:.1f} ms a step"
        )
        to_decide = f"check what the host of rank {rank} does between operations: the table does not show it"
        yield Gap(what, missed, to_decide)
        return
    what = (
        f"a replay of the recorded steps misses what the ranks waited by {of_step(case, missed)}: steps or operations "
        "of different ranks were matched that do not belong together"
    )
    marks = _SAME_STEPS if case.steps.labelled else f"{_MARKS}, and {_SAME_STEPS}"
    if not any(rank.on_gpu for rank in case.ops.per_rank.values()):
        what += ", or devices did work that was not recorded: the traces hold no kernel"
        marks = f"{_KERNELS}; else {marks}"
    yield Gap(what, missed, marks)


_KERNELS: Final = (
    "if the job ran on GPUs, give the profiler activities=[CPU, CUDA], and check that CUPTI works"
)
_MARKS: Final = "call the profiler's step() after every step on every rank"
_SAME_STEPS: Final = "record all ranks for the same steps"


def steps_were_left_out(e: Evidence) -> Iterator[Gap]:
    """Some ranks recorded no compared step whole, most operations lie outside the only one, or windows cut some."""
    case, without = e.case, e.case.unmeasured
    if without:
        own = "its own time is" if len(without) == 1 else "their own times are"
        what = f"{ranks_in_words(without)} recorded none of the compared steps whole, so that {own} unknown"
        few = {case.steps.row(rank): case.step_ns for rank in without if len(without) <= RANKS_LISTED}
        yield Gap(what, case.step_ns, whole_steps(case), up_to(case, few))
    if compared_little(case):
        what = (
            f"the only step that all ranks recorded whole holds {float(case.analysed.mean()):.0%} of the recorded "
            "operations: the others are in steps that the windows cut, and were not compared"
        )
        yield Gap(what, case.step_ns, whole_steps(case))
    if case.steps.partial:
        what = f"step {listed(case.steps.partial)} is left out: too few ranks recorded it whole"
        yield Gap(what, case.step_ns, ALL_RANKS, decides=False)
    if len(case.steps.numbers) == 1:
        most = float(np.nan_to_num(case.found.mean).max(initial=0.0))
        what = "one step was compared: it cannot separate a slow rank from chance"
        yield Gap(what, most, "record three whole steps or more", decides=False)


def waits_are_lopsided(e: Evidence) -> Iterator[Gap]:
    """A rank waits longer than its peers in a kind of operation that was not matched everywhere."""
    case, found = e.case, lopsided(e.case)
    if found is None:
        return
    longer = " longer than its peers" if len(case.stage_of(found.row)) > 1 else ""
    what = (
        f"rank {case.steps.ranks[found.row]} waits {of_step(case, found.over)}{longer} in {found.kind} operations, and "
        "some of these operations were not matched: a slow link or a late rank would look like this"
    )
    ends = link_ends(case, case.ranks_of([found.row]), Price.up_to(found.over))
    yield Gap(what, found.over, what_would_decide(case), ends)


def model_misses(e: Evidence) -> Iterator[Gap]:
    """The model of the step misses the recording."""
    case, missed = e.case, e.case.residual_ns
    what = (
        f"the model is off by {ms(missed):.1f} ms of {ms(case.step_ns):.1f} ms from the recorded steps: a rank with "
        "unmatched messages or waits may cost as much"
    )
    if missed > 0:
        yield Gap(what, missed, what_would_decide(case))


def communication_is_unmatched(e: Evidence) -> Iterator[Gap]:
    """Some communication is not matched; that decides where hardly any is, and no rank has a significant excess."""
    case, matched = e.case, e.case.coverage.matched
    if matched is None or matched == 1:
        return
    decides = unread(case) and not len(case.significant(case.threshold_ns))
    shorter = case.model.recorded_ns - case.free_model.recorded_ns  # waits as short as their transfers
    hidden = case.exposed_ns if decides else shorter
    what = f"{1 - matched:.2%} of the exposed communication is not matched on all members: waits or transfers"
    yield Gap(what, max(hidden, 0.0), what_would_decide(case), decides=decides)


def lone_transfers_may_be_slow(e: Evidence) -> Iterator[Gap]:
    """Transfers without peers could save much of the step, and their bandwidth proves no healthy link.

    Any member of the group may be at the slow link: all are candidates, or none where they are many, or where all
    transfers of the job are longer than the hardware that the user describes lets them.
    """
    case = e.case
    unfit = any(found.unfit for found in e.peerless)
    for found, hidden in sorted(e.unproven, key=lambda pair: -pair[0].spent):
        members = () if found.between_nodes or len(found.ranks) > RANKS_LISTED else found.ranks
        most = hidden.high if found.longer else max(found.spent, all_could_hide_ns(case, found.hub))
        price = Price.up_to(most, min(most, found.spent))
        else_ = "other calls" if found.longer else "a slow network"
        what = f"{in_words(case, found, hidden)}: a slow link and {else_} would look the same"
        ends = link_ends(case, () if unfit else found.hub or members, price)
        yield Gap(what, hidden.high, remedy(case, found), ends, decides=prove_no_health(case, found, hidden))


GAPS: Final[tuple[Callable[[Evidence], Iterator[Gap]], ...]] = (
    unseen_ranks,
    replay_contradicts,
    steps_were_left_out,
    same_ranks_stall_at_times,
    steps_are_unequal,
    host_launches_late,
    slow_at_times,
    unseen_late_outside,
    waits_are_lopsided,
    ranks_leave_late,
    model_misses,
    communication_is_unmatched,
    lone_transfers_may_be_slow,
    table_is_unexplained,
    data_may_cost,
    work_varies,
    lone_ranks_vary,
    few_ranks_are_quick,
    hosts_meet,
    rank_posts_late,
    link_is_irregular,
)
BESIDE: Final = (
    partial(slow_in_some, compared=True), lone_transfers_may_be_slow, rank_posts_late, link_is_irregular,
)  # fmt: skip
"""The gaps that uneven work does not explain: a device slow in compared steps, a late rank, late transfers."""


def a_gap_may_hide(e: Evidence) -> Answer | None:
    """A gap of the evidence could hide the threshold: the first of GAPS that decides leaves the answer open."""
    for gap in GAPS:
        for found in gap(e):
            if found.decides and found.could_hide >= e.least:
                reason = f"no rank, stage or link is proven to cost {MIN_LOST_SHARE:.0%} of the step, but {found.what}"
                answer = left_open(reason, found.to_decide, found.candidates)
                return replace(answer, rules=(gap.__name__,))
    return None


def widest_first(e: Evidence) -> list[Gap]:
    """Return all gaps of `e`, the one that could hide most first."""
    return sorted((found for gap in GAPS for found in gap(e)), key=lambda g: (-g.could_hide, g.what))


def dearer_in_doubt(case: Case, answer: Answer) -> Answer:
    """`answer`, left open where something in doubt may cost more than all that it names.

    A cheaper fault is not blamed while a dearer one is in doubt, nor is a design or the data. The dearest doubt comes
    first in an answer that is open already.
    """
    named = max((s.lost_ms_high or 0.0 for s in answer.candidates), default=ms(answer.gain))
    doubts = _doubts(evidence_of(case), answer) if answer.verdict != "healthy" else ()
    most, leave_open = max(doubts, key=itemgetter(0), default=(0.0, partial(left_open, "")))
    if ms(most) <= max(named, ms(case.threshold_ns)):
        return answer
    doubt = leave_open()
    ranks = [c.rank for c in doubt.candidates]
    if answer.candidates and ranks[:1] == [answer.candidates[0].rank]:
        return answer
    ours = answer.candidates or (answer.suspects if answer.verdict != "imbalance" else ())
    both = *doubt.candidates, *(s for s in ours if s.rank not in ranks)
    return left_open(f"{doubt.reason}; in addition, {answer.reason}", doubt.to_decide, both)


def _doubts(e: Evidence, answer: Answer) -> Iterator[tuple[float, Callable[[], Answer]]]:
    """Yield what the evidence leaves in doubt beside `answer`: (the most that it costs, ns; the open answer about it).

    Other ranks count with a larger excess than its own. Slowness in one step and gaps are no doubt about ranks that are
    slow in every step. Work that is uneven, by design or by chance, explains no gap.
    """
    case, excess = e.case, np.nan_to_num(e.case.found.mean)
    own = max(excess[rows_named(case, answer)], default=-np.inf) if answer.verdict == "slow_rank" else -np.inf
    once = e.lone_once or (e.once if e.once_in_doubt else None)
    if once is not None and answer.verdict != "slow_rank":
        yield once.gain, partial(leave_one_step_open, case, once)
    for found in (e.only_step, e.undecided):
        if found is not None and not e.is_accident(found):
            each = zip(found.rows, found.prices, strict=True)
            high = [p.high for row, p in each if p.low < e.least and excess[row] > own]
            yield max(high, default=0.0), partial(leave_rank_open, case, found)
    for gap in (gap for ask in BESIDE for gap in ask(e)) if answer.verdict == "imbalance" else ():
        if gap.decides:
            both = *gap.candidates, *answer.suspects
            yield gap.could_hide, partial(left_open, gap.what, gap.to_decide, both)
