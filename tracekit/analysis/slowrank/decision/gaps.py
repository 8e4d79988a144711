"""The gaps of the evidence in the order in which they are asked: each with what it could hide, and what would decide.

The first that decides and could hide the threshold leaves a job open that no hypothesis explains. `slowrank --explain`
lists all of them.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Final

import numpy as np

from tracekit.analysis.slowrank.answers.compared_steps import (
    ALL_RANKS,
    slow_outside_steps,
    steps_are_unequal,
    unseen_late_outside,
)
from tracekit.analysis.slowrank.answers.late_hosts import (
    host_launches_late,
    rank_posts_late,
    ranks_leave_late,
    same_ranks_stall_at_times,
)
from tracekit.analysis.slowrank.answers.unsteady_links import link_is_irregular
from tracekit.analysis.slowrank.decision.work_gaps import (
    data_may_cost,
    few_ranks_are_quick,
    lone_ranks_vary,
    slow_at_times,
    table_is_unexplained,
    work_varies,
)
from tracekit.analysis.slowrank.evidence import Evidence, Gap
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
from tracekit.analysis.slowrank.suspects import Answer, left_open, link_ends
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
        what = f"{ranks_in_words(without)} recorded none of the compared steps whole, so their own time is unknown"
        yield Gap(what, case.step_ns, whole_steps(case))
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
    what = (
        f"rank {case.steps.ranks[found.row]} waits {of_step(case, found.over)} longer than its peers in {found.kind} "
        "operations, and some of these operations were not matched: a slow link or a late rank would look like this"
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
    slow_outside_steps,
    unseen_late_outside,
    slow_at_times,
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
    rank_posts_late,
    link_is_irregular,
)
BESIDE: Final = (slow_at_times, lone_transfers_may_be_slow, rank_posts_late, link_is_irregular)
"""The gaps that uneven work does not explain: a device slow at times, one late rank, and transfers after all came."""


def a_gap_may_hide(e: Evidence) -> Answer | None:
    """A gap of the evidence could hide the threshold: the first of GAPS that decides leaves the answer open."""
    for gap in GAPS:
        for found in gap(e):
            if found.decides and found.could_hide >= e.least:
                reason = f"no rank, stage or link is proven to cost {MIN_LOST_SHARE:.0%} of the step, but {found.what}"
                answer = left_open(reason, found.to_decide, found.candidates)
                return replace(answer, rules=(gap.__name__,))
    return None


def unexplained_by_an_imbalance(e: Evidence, gain: float) -> Gap | None:
    """Return the first of BESIDE that could hide more than an imbalance, which costs `gain`, ns a step; None without.

    What is uneven, by design or by chance, must not hide a slow network or a late host.
    """
    found = (gap for each in BESIDE for gap in each(e))
    return next((gap for gap in found if gap.decides and gap.could_hide > max(gain, e.least)), None)


def widest_first(e: Evidence) -> list[Gap]:
    """Return all gaps of `e`, the one that could hide most first."""
    return sorted((found for gap in GAPS for found in gap(e)), key=lambda g: (-g.could_hide, g.what))
