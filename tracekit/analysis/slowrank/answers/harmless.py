"""Answers that a job is healthy, and why an excess in it costs nothing or is by design."""

import numpy as np

from tracekit.analysis.slowrank.evidence import Evidence, Kind
from tracekit.analysis.slowrank.gaps.lone_transfers import in_words, remedy
from tracekit.analysis.slowrank.gaps.recurrence import OneStep, step_in_words
from tracekit.analysis.slowrank.hypotheses.moving_stalls import common_stalls
from tracekit.analysis.slowrank.hypotheses.uneven_work import uneven_work
from tracekit.analysis.slowrank.price import rank_doubt_ns
from tracekit.analysis.slowrank.suspects import (
    Answer,
    blame,
    explain_rank,
    explained,
    harmless,
    imbalance,
    suspect_of,
)
from tracekit.case.case import Case
from tracekit.case.wording import listed, of_step, ranks_in_words
from tracekit.causes import DATA_IMBALANCE, DATALOADER
from tracekit.thresholds.slowrank import MAJORITY, MIN_LOST_SHARE
from tracekit.units import ms


def healthy(e: Evidence) -> Answer:
    """No rank costs the threshold beyond an accident, chance, or communication beside it."""
    case = e.case
    explained = None if e.once is None else accident(case, e.once)
    explained = explained or _by_common_steps(case) or _by_slack(case) or _beside_communication(case)
    if explained:
        return harmless(explained, _unproven(e))
    worst, idle = int(np.argmax(np.nan_to_num(case.found.mean, nan=-np.inf))), case.steps.own - case.computed
    longer, z = np.nan_to_num([case.found.mean[worst], case.found.z[worst]]).tolist()
    reason = (
        f"no rank, stage or link costs {MIN_LOST_SHARE:.0%} of the step beyond chance (largest excess: rank "
        f"{case.steps.ranks[worst]}, {ms(max(longer, 0.0)):.2f} ms of {ms(case.step_ns):.1f} ms, z {z:.1f})"
    )
    if (most := float(np.nanmedian(idle))) >= MAJORITY * case.step_ns:
        reason += f"; but all devices are idle {ms(most):.1f} ms a step for their hosts (tracekit breakdown)"
    return harmless(reason, _unproven(e))


def _unproven(e: Evidence) -> list[str]:
    """What transfers without peers could hide, a sentence each."""
    return [
        f"{in_words(e.case, found, hidden)}: up to {ms(hidden.high):.1f} ms a step cannot be excluded; "
        f"{remedy(e.case, found)}"
        for found, hidden in e.unproven
    ]


def accident(case: Case, once: OneStep) -> str:
    """Return the reason that a rank had an accident in one step of a healthy job."""
    return (
        f"{step_in_words(case, once)}: one long step, as a checkpoint or a pause makes, but no slow rank, because "
        f"nothing costs {MIN_LOST_SHARE:.0%} in the other steps"
    )


def _by_common_steps(case: Case) -> str | None:
    """The reason if all ranks pause in the same steps, at its price; None where that costs little."""
    found = common_stalls(case)
    if found is None:
        return None
    struck = found.over > 0
    steps = [case.steps.numbers[c] for c in np.flatnonzero(struck.any(axis=0)).tolist()]
    return (
        f"the devices of all ranks are idle {ms(float(np.median(found.over[struck]))):.1f} ms longer in step "
        f"{listed(steps)}, together, as a checkpoint, an evaluation or a collection of garbage makes them: "
        f"{of_step(case, found.gain)}; no rank, stage or link costs {MIN_LOST_SHARE:.0%} beside that"
    )


def _by_slack(case: Case) -> str | None:
    """The reason if a rank works longer, and another one, which waits least, sets the pace; None where none does."""
    free = case.significant(case.threshold_ns)
    if not len(free):
        return None
    row, waits = int(free[np.argmax(case.found.mean[free])]), case.waits.exposed_wait
    waited = [float(np.where(case.analysed, waits, 0)[case.ops.of(r)].sum()) for r in case.steps.ranks]
    pace = min((i for i in range(len(waited)) if i != row), key=lambda i: waited[i])
    return (
        f"rank {case.steps.ranks[row]} works {of_step(case, float(case.found.mean[row]))} longer than its peers, but "
        f"that costs less than {MIN_LOST_SHARE:.0%} of the step: rank {case.steps.ranks[pace]} sets the pace, because "
        f"it waits least ({ms(waited[pace] / case.steps.count):.1f} ms a step)"
    )


def _beside_communication(case: Case) -> str | None:
    """The reason if communication that shares a rank's device explains its excess; None if it explains little."""
    longer = case.steps.means(case.met.beside)
    row = int(np.argmax(longer))
    if longer[row] < case.threshold_ns:
        return None
    return (
        f"rank {case.steps.ranks[row]} works {of_step(case, float(longer[row]))} longer than its peers, but only "
        "where its kernels overlap with communication that they do not have: its other kernels take as long as theirs"
    )


def role_in_words(case: Case) -> str | None:
    """Return the sentence about how long ranks are idle for their role; None where that is below 2 % of the step."""
    rows = case.met.of_role
    longer = case.steps.means(case.met.role)
    if not len(rows) or longer[rows].max() < case.threshold_ns:
        return None
    return (
        f"{ranks_in_words(case.ranks_of(rows))} are idle {of_step(case, float(np.median(longer[rows])))} longer than "
        "the other ranks of their stages, like ranks that load data for the others: all have tensor index 0"
    )


def a_role_loads(e: Evidence) -> Answer | None:
    """Ranks load data for the others by their role, which costs most; a role's one rank is named."""
    case, role = e.case, e.role
    if role is None or e.dearest != Kind.ROLE:
        return None
    ranks = case.ranks_of(role.rows)
    which, groups = "with tensor index 0", "their groups"
    if role.stage is not None:
        which, groups = f"of pipeline stage {role.stage}", "the other stages"
    do = f"are idle, as if they loaded data for {groups},"
    if role.cause == DATALOADER:
        do = f"load data for {groups}"
    reason = (
        f"all ranks {which} ({ranks_in_words(ranks)}) {do} for {of_step(case, role.longer)}, and the others wait: "
        f"{ms(role.price.best):.1f} ms a step; that is the job's design: load on every rank, prefetch, or use more "
        "loader workers"
    )
    if len(role.rows) > 1:
        return imbalance(reason, role.price.best, role.cause)
    reason += f"; or the loader of rank {ranks[0]} is slow: no other rank has this role"
    cost = role.price.widened(rank_doubt_ns(case, np.array(role.rows)))
    evidence = explain_rank(case, role.rows[0], role.rows, other_stages=role.stage is not None).evidence
    named = suspect_of(case, role.rows[0], cost, np.inf, role.cause, evidence, every=True)
    return blame(case, reason, (named,), role.price.best, "imbalance")


def some_ranks_have_more_work(e: Evidence) -> Answer | None:
    """Ranks of a stage run more or larger kernels than few others in every step, and even work saves the threshold."""
    case, found = e.case, uneven_work(e.case)
    if found is None or found.price.low < e.least:
        return None
    more, less = (ranks_in_words(case.ranks_of(those)) for those in (found.rows, found.others))
    reason = (
        f"{more} run more or larger kernels than {less} in every step: even work would save "
        f"{of_step(case, found.price.best)}, and up to {ms(found.price.high):.1f} ms as little work as theirs; no rank "
        "is slow for its work"
    )
    rows = found.rows.tolist()
    suspects = explained(case, rows, [found.price] * len(rows), [found.z] * len(rows), every=True)
    return blame(case, reason, suspects, found.price.best, "imbalance", DATA_IMBALANCE)
