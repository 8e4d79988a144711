"""The gaps of the evidence in the order in which they are asked: each with what it could hide, and what would decide.

The first that decides and could hide the threshold leaves a job open that no hypothesis explains. `slowrank --explain`
lists all of them.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Final

import numpy as np

from tracekit.analysis.slowrank.answers.compared_steps import ALL_RANKS, slow_outside_steps, steps_are_unequal
from tracekit.analysis.slowrank.answers.late_hosts import (
    host_launches_late,
    ranks_leave_late,
    same_ranks_stall_at_times,
)
from tracekit.analysis.slowrank.evidence import Evidence, Gap
from tracekit.analysis.slowrank.gaps.evidence_gaps import (
    compared_little,
    more_steps,
    unread,
    what_would_decide,
    whole_steps,
    why_open,
)
from tracekit.analysis.slowrank.gaps.lone_transfers import (
    all_could_hide_ns,
    in_words,
    lopsided,
    prove_no_health,
    remedy,
)
from tracekit.analysis.slowrank.hypotheses.candidates import like_quick_ns, significant_rows
from tracekit.analysis.slowrank.hypotheses.data_imbalance import unexplained_ns
from tracekit.analysis.slowrank.hypotheses.dealt_price import dealt_bounds
from tracekit.analysis.slowrank.hypotheses.lone_rank import lone_ranks, varies_ns
from tracekit.analysis.slowrank.hypotheses.moving_stalls import varied_ns
from tracekit.analysis.slowrank.price import Price
from tracekit.analysis.slowrank.suspects import Answer, left_open, link_end, suspect_of
from tracekit.analysis.slowrank.wording import fewest_traces, listed, ranks_in_words
from tracekit.thresholds.slowrank import CLEAR_SHARE, MIN_LOST_SHARE, RANKS_LISTED
from tracekit.units import ms


def unseen_ranks(e: Evidence) -> Iterator[Gap]:
    """Ranks left no trace, and others may wait for them; a rule decides about these before."""
    case, unseen = e.case, e.unseen
    if case.missing and unseen.undecided > 0:
        what = f"{ranks_in_words(case.missing)} left no trace: others may wait for them"
        to_decide = fewest_traces(case, unseen.ranks or case.missing)
        yield Gap(what, unseen.undecided, to_decide, decides=False)


def replay_contradicts(e: Evidence) -> Iterator[Gap]:
    """The replay of the operations as matched misses the recorded waits."""
    case, missed = e.case, e.case.pinned_residual_ns
    if missed < e.least:
        return
    if case.table is not None:
        idle = case.table.idle.mean(axis=1)
        rank, longest = case.steps.ranks[int(np.argmax(idle))], ms(float(idle.max()))
        what = (
            f"{ms(case.residual_ns):.1f} ms of {ms(case.step_ns):.1f} ms a step are gaps between operations that no "
            f"operation of the table explains; rank {rank} is idle longest, {longest:.1f} ms a step"
        )
        to_decide = f"check what the host of rank {rank} does between operations: the table does not show it"
        yield Gap(what, missed, to_decide)
        return
    what = (
        f"a replay of the recorded steps misses what the ranks waited by {ms(missed):.1f} ms of "
        f"{ms(case.step_ns):.1f} ms a step: steps or operations of different ranks were matched that do not belong "
        "together"
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
        f"rank {case.steps.ranks[found.row]} waits {ms(found.over):.1f} ms of {ms(case.step_ns):.1f} ms a step longer "
        f"than its peers in {found.kind} operations, and some of these operations were not matched: a slow link or a "
        "late rank would look like this"
    )
    candidate = link_end(case, found.row, Price.up_to(found.over))
    yield Gap(what, found.over, what_would_decide(case), (candidate,))


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
    hidden = case.model.recorded_ns - case.free_model.recorded_ns  # waits as short as their transfers
    decides = unread(case) and not len(significant_rows(case, MIN_LOST_SHARE))
    if decides:
        hidden = float(np.where(case.analysed, case.ops.exposed, 0).sum()) / case.steps.wall.size
    what = f"{1 - matched:.2%} of the exposed communication is not matched on all members: waits or transfers"
    yield Gap(what, max(hidden, 0.0), what_would_decide(case), decides=decides)


def lone_transfers_may_be_slow(e: Evidence) -> Iterator[Gap]:
    """Transfers without peers could save much of the step, and their bandwidth proves no healthy link.

    Any member of the group may be at the slow link: all are candidates, or none where they are many.
    """
    case = e.case
    for found, hidden in sorted(e.unproven, key=lambda pair: -pair[0].spent):
        members = () if found.nodes or len(found.ranks) > RANKS_LISTED else found.ranks
        rows = [case.steps.row(r) for r in found.hub or members if r in case.steps.ranks]
        price = Price.up_to(max(found.spent, all_could_hide_ns(case, found.hub)), found.spent)
        what = f"{in_words(case, found, hidden)}: a slow link and a slow network would look the same"
        ends = tuple(link_end(case, row, price) for row in rows)
        yield Gap(what, hidden.high, remedy(case, found), ends, decides=prove_no_health(case, found, hidden))


def table_is_unexplained(e: Evidence) -> Iterator[Gap]:
    """The operations of a table vary, and no rank, link or micro-batch explains why."""
    case, table = e.case, e.case.table
    lost = unexplained_ns(case, table) if table is not None else 0.0
    if table is None or lost < CLEAR_SHARE * table.recorded_ns:
        return
    what = (
        f"typical work of every operation would save {ms(lost):.1f} ms of {ms(case.step_ns):.1f} ms: work varies, and "
        "no rank, link or micro-batch explains it"
    )
    yield Gap(
        what, lost, f"{more_steps(case)}, and run tracekit whatif for each type of operation (--fix op=...)"
    )


def work_varies(e: Evidence) -> Iterator[Gap]:
    """Work varies between ranks by more than chance, and nothing that was recorded explains it."""
    case, lost = e.case, varied_ns(e.case)
    what = (
        f"typical work on all ranks would save {ms(lost):.1f} ms of {ms(case.step_ns):.1f} ms a step more than chance "
        "explains: whole parts of steps are longer, on a different rank each time, and the recording does not show the "
        "cause"
    )
    decide = (
        f"{more_steps(case)}, with all ranks that work on the same data: uneven data makes all of them slower "
        "together, an intermittently slow device makes only one slower"
    )
    if lost > 0:
        yield Gap(what, lost, decide)


def data_may_cost(e: Evidence) -> Iterator[Gap]:
    """Uneven data costs time, and not all waits were matched."""
    case, dealt = e.case, dealt_bounds(e.case)
    what = (
        "work is distributed unevenly, because kernels vary together on all ranks that work on the same data; the cost "
        f"is between {ms(dealt.low):.1f} and {ms(dealt.high):.1f} ms of {ms(case.step_ns):.1f} ms a step and is not "
        f"known more exactly: {why_open(case)}"
    )
    if dealt.high > 0 and case.coverage.matched != 1:
        yield Gap(what, dealt.high, what_would_decide(case))


def lone_ranks_vary(e: Evidence) -> Iterator[Gap]:
    """Ranks without a peer work longer in some steps than in their quickest one.

    Uneven data and an intermittently slow device look alike there; steps that take equally long hide neither.
    """
    case, rows = e.case, lone_ranks(e.case)
    lost = varies_ns(case, rows) if len(rows) else 0.0
    if lost < e.least:
        return
    alone = {int(row): varies_ns(case, np.array([row])) for row in rows}
    what = (
        f"{ranks_in_words([case.steps.ranks[row] for row in rows])} do work that no other rank does, and would save "
        f"{ms(lost):.1f} ms of {ms(case.step_ns):.1f} ms a step if every step were as quick as their quickest: uneven "
        "data and a device that is slow at times would look the same"
    )
    candidates = tuple(
        suspect_of(case, row, Price.up_to(alone[row]), 0.0, "unknown", ())
        for row in sorted(alone, key=lambda row: (-alone[row], row))[:RANKS_LISTED]
    )
    yield Gap(what, lost, _REPEAT, candidates)


_REPEAT: Final = (
    "record the same steps again with the same data in another order, or on another host: a slow device stays slow; "
    "or test the devices alone: tracekit next TRACES"
)


def few_ranks_are_quick(e: Evidence) -> Iterator[Gap]:
    """Few ranks work shorter than all their peers: by less work, which is no doubt, or all others are slow."""
    case, quick = e.case, [one for one in e.case.met.peers.quick if one.work != "equal"]
    for one in quick:
        unknown = [other for other in quick if other.work == one.work == "unknown"]
        saved = like_quick_ns(case, unknown or [one])
        ranks = ranks_in_words([case.steps.ranks[row] for row in one.rows])
        shorter = ms(float(np.nanmean(case.steps.own[one.others]) - np.nanmean(case.steps.own[one.rows])))
        what = f"{ranks} work {shorter:.1f} ms a step shorter than the {len(one.others)} others of the stage"
        what += ": less to do, or all the others are slow" if unknown else ", with fewer or smaller kernels"
        rows = one.others[:RANKS_LISTED].tolist() if unknown else ()
        slow = tuple(suspect_of(case, row, Price.up_to(saved), 0.0, "unknown", ()) for row in rows)
        yield Gap(what, saved, _SIZES, slow, decides=bool(unknown))


_SIZES: Final = (
    "record all kernels with their grids, or the shapes of operators (record_shapes=True): they show whether the work "
    f"is equal; or {_REPEAT}"
)


GAPS: Final[tuple[Callable[[Evidence], Iterator[Gap]], ...]] = (
    unseen_ranks,
    replay_contradicts,
    steps_were_left_out,
    same_ranks_stall_at_times,
    steps_are_unequal,
    host_launches_late,
    slow_outside_steps,
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
)


def a_gap_may_hide(e: Evidence) -> Answer | None:
    """A gap of the evidence could hide the threshold: the first of GAPS that decides leaves the answer open."""
    for gap in GAPS:
        for found in gap(e):
            if found.decides and found.could_hide >= e.least:
                reason = f"no rank, stage or link is proven to cost {MIN_LOST_SHARE:.0%} of the step, but {found.what}"
                answer = left_open(reason, found.to_decide, found.candidates)
                return replace(answer, rules=(gap.__name__,))
    return None


def slow_network_beside(e: Evidence, gain: float) -> Gap | None:
    """Return the gap of transfers without peers that could hide more than an imbalance, which costs `gain`, ns a step.

    What is uneven, by design or by chance, must not hide a slow network.
    """
    found = lone_transfers_may_be_slow(e)
    return next((gap for gap in found if gap.decides and gap.could_hide > gain), None)


def widest_first(e: Evidence) -> list[Gap]:
    """Return all gaps of `e`, the one that could hide most first."""
    return sorted((found for gap in GAPS for found in gap(e)), key=lambda g: (-g.could_hide, g.what))
