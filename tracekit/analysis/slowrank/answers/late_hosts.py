"""Ranks that join collectives late although they work no longer than their peers, at an open price.

A host launches late: the peers queued the same collective long before. On the late rank it starts as soon as it is
launched, so its transfer overlaps with less compute: the step loses overlap, which no own time shows.

A rank posts late in its own time: copies from the host, work on other streams or a late host delay a collective without
lengthening the step's work. No own time shows the delay, and the replay keeps it, so that no rank gets a price. The
other ranks wait nevertheless.

A host of several ranks stalls at times: where its ranks are half of all, noise hides them. Where one pauses while its
device waits for a late rank, only both cures together save anything.

A process stops while a thread of its host carries a collective out (Gloo): it leaves long after the other members,
although all had arrived, and the others wait for it in a later operation. A slow network to that rank looks the same:
behind a link that loses packets, innocent ranks leave late most. A stop behind the thread's end is the rank's own time.
"""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from tracekit.analysis.slowrank.evidence import Evidence, Gap
from tracekit.analysis.slowrank.gaps.evidence_gaps import more_steps
from tracekit.analysis.slowrank.hypotheses.dealt_work import more_data_ns
from tracekit.analysis.slowrank.hypotheses.excess_parts import Explained
from tracekit.analysis.slowrank.hypotheses.moving_stalls import stalls_of_the_same
from tracekit.analysis.slowrank.hypotheses.slow_launch import awaited, complete_collectives
from tracekit.analysis.slowrank.price import Price, rank_doubt_ns
from tracekit.analysis.slowrank.suspects import Answer, blame, explain_rank, maybe_slow, suspect_of, up_to
from tracekit.case.case import Case
from tracekit.case.cures import saved_in, typical_without, usual_of, with_hosts
from tracekit.case.wording import listed, of_step, ranks_in_words
from tracekit.causes import CPU_LAUNCH, HOST_STALL
from tracekit.findings import Evidence as Shown
from tracekit.step_graph.statistics import NO_ROWS, chance_of, spread
from tracekit.steps.medians import growth, median_of_others
from tracekit.thresholds.slowrank import (
    FAR_MORE,
    LAUNCHED_NS,
    MAJORITY,
    MINOR,
    NOISE_FLOOR,
    ONE_STEP_P,
    TIME_SLICE_NS,
    Z_LIMIT,
)
from tracekit.units import F64, Mask, ms


def host_launches_late(e: Evidence) -> Iterator[Gap]:
    """A host launches collectives late, at a price that the traces do not show.

    A collective counts if the member that came last started it as soon as its host launched it, and most of the others
    had launched theirs long before. Its wait is the median over the others.
    """
    case, ops, waits = e.case, e.case.ops, e.case.waits
    issued = np.concatenate([NO_ROWS, *(ops.per_rank[r].issued for r in ops.ranks)])
    lag, late = (ops.start - issued).astype(np.float64), {}
    for last, others in awaited(case):
        queued = lag[others] > FAR_MORE * max(lag[last], LAUNCHED_NS)
        if lag[last] <= LAUNCHED_NS and queued.mean() > MAJORITY:
            late[last] = float(np.median(waits.exposed_wait[others]))
    by_rank = np.bincount(case.place[0][np.array([*late], np.int64)], [*late.values()], len(case.steps.ranks))
    row, waited = int(np.argmax(by_rank)), float(by_rank.max()) / case.steps.count
    if waited < e.least:
        return
    rank = case.steps.ranks[row]
    what = (
        f"the host of rank {rank} launches collectives long after the other ranks queued theirs: they wait "
        f"{of_step(case, waited)} for it, and the traces do not show how much of that a faster host would hide"
    )
    decide = (
        f"profile the host of rank {rank} and a peer's host, and record a few steps with it on another host"
    )
    yield Gap(what, waited, decide, up_to(case, {row: waited}, CPU_LAUNCH))


def _late_posts(case: Case) -> tuple[int, float] | None:
    """(the row of the rank that posts late in most steps, what others wait, ns a step); None below the threshold.

    A wait counts as far as the rank did more of its own work before the collective than the median of the others. None
    as well where another rank is nearly as late, where communication, tokens, more data or a significant excess explain
    the rank, or where data that is dealt again in each step would make one replica so often the last one.
    """
    waited = _waits(case)
    usual = {row: float(np.median(by_step)) for row, by_step in waited.items()}
    row = max(usual, key=lambda r: (usual[r], -r), default=None)
    if row is None or usual[row] < case.threshold_ns:
        return None
    next_ = max((v for r, v in usual.items() if r != row), default=0.0)
    late = int((waited[row] >= MAJORITY * usual[row]).sum())
    replicas = len(set(map(case.mesh.replica, case.ops.ranks)))
    often = chance_of(late, len(case.steps.numbers), 1 / max(replicas, 2)) <= ONE_STEP_P
    known = case.steps.mean(case.met.explained[row]) >= MAJORITY * usual[row]
    longer = row in case.significant(case.threshold_ns)
    if known or longer or not often or next_ > MAJORITY * usual[row]:
        return None
    by_data = np.median(np.minimum(more_data_ns(case, [row])[0], waited[row])) >= MAJORITY * usual[row]
    return None if by_data else (row, usual[row])


def _waits(case: Case) -> dict[int, F64]:
    """Row of a rank → ns by step for which the other members wait, at the median, because it posts collectives late.

    A rank that fell behind stays behind, although its peers waited for that once. Only what it fell behind since the
    previous collective of the same channel counts.
    """
    steps, ops = case.steps, case.ops
    order, bounds = complete_collectives(case, _of_peers(case))
    row, column = (place[order] for place in case.place)
    done = ops.at_start[order] - steps.begin[row, column]
    behind, stood = np.full(len(order), np.nan), np.full(len(order), np.nan)
    size = np.diff(bounds)
    for many in np.unique(size).tolist():
        at = bounds[:-1][size == many][:, None] + np.arange(many)
        behind[at] = done[at] - median_of_others(done[at].T, [np.arange(many)]).T
        waited = case.waits.exposed_wait[order[at]].T.astype(np.float64)
        stood[at] = median_of_others(waited, [np.arange(many)]).T
    spent = np.fmin(growth(behind, (ops.channel[order], row, column)), stood)
    found: dict[int, F64] = defaultdict(lambda: np.zeros(len(steps.numbers)))
    for i in np.flatnonzero((order == case.waits.last[ops.instance[order]]) & (spent > 0)).tolist():
        found[int(row[i])][column[i]] += spent[i]
    return found


def _of_peers(case: Case) -> Mask:
    """Whether each operation is on a channel of peers alone."""
    group = {rank: n for n, peers in enumerate(case.met.peers.groups) for rank in case.ranks_of(peers)}
    alone = [len({group[m] for m in c.members if m in group}) == 1 for c in case.ops.channels]
    return np.array([*alone, False])[case.ops.channel]


def rank_posts_late(e: Evidence) -> Iterator[Gap]:
    """A rank is the last to join collectives in most steps, in its own time."""
    case, found = e.case, _late_posts(e.case) if len(e.case.steps.numbers) > 1 else None
    if found is None:
        return
    (row, waited), rank = found, case.steps.ranks[found[0]]
    what = (
        f"rank {rank} is the last to join collectives in most steps, after more of its own work than the others: they "
        f"wait {of_step(case, waited)} for it; the delay overlaps with its compute, as a copy from the host would, or "
        "is hidden by uneven work"
    )
    decide = (
        f"compare copies and launches of rank {rank} with a peer's (tracekit open shows both), and record a few "
        "steps with that rank on another host"
    )
    yield Gap(what, waited, decide, up_to(case, {row: waited}))


def same_ranks_stall_at_times(e: Evidence) -> Iterator[Gap]:
    """The same ranks work longer in some steps, and so many of their peers do that they may be noise."""
    case, found = e.case, stalls_of_the_same(e.case)
    if found is None:
        return
    rows, struck = found.rows, found.over > 0
    longer, steps = float(np.median(found.over[struck])), int(struck.any(axis=0).sum())
    ranks = ranks_in_words(sorted(case.ranks_of(rows)))
    what = (
        f"{ranks} work {ms(longer):.1f} ms longer than their peers in {steps} of {len(case.steps.numbers)} steps, "
        f"together, which costs up to {of_step(case, found.gain)}: with as few other ranks, uneven data and a host "
        "that stalls at times look the same"
    )
    candidates = maybe_slow(case, rows, found.gain)
    yield Gap(what, found.gain, f"{more_steps(case)}, and look at what these ranks share", candidates)


def host_pauses_behind(e: Evidence) -> Answer | None:
    """Ranks are late, and one host pauses as long behind their delay: only both cures together save the threshold."""
    case, model, found = e.case, e.case.timeline, e.slow
    if model is None or found is None or found.gain >= e.least:
        return None
    late, need = np.array(found.rows), defaultdict[int, float](float)
    for host in (host for some in with_hosts(case, model, found.rows).hosts for host in some):
        need[host.row] += ms(host.need) / case.steps.count
    rows = [*found.rows, *sorted(need, key=lambda row: -need[row])[:1]]
    own, usual = typical_without(case, late), usual_of(case, late)
    saved = saved_in(case, model, rows, lambda m: m.step_ns(own, usual=usual))
    if len(need) < 2 or saved < e.least:
        return None
    mine, rest = need.pop(rows[-1]), np.array([*need.values()])
    others, chance = float(np.median(rest)), max(spread(rest), NOISE_FLOOR * ms(case.step_ns))
    if mine - others < Z_LIMIT * chance:
        return None
    shown = Explained(HOST_STALL, (Shown("host at work or paused a step", mine, others, "ms"),))
    price, z = (
        Price.exactly(saved).widened(rank_doubt_ns(case, np.array(rows))),
        [*found.z, (mine - others) / chance],
    )
    why = [*(explain_rank(case, row, rows) for row in found.rows), shown]
    suspects = tuple(suspect_of(case, row, price, v, *w) for row, v, w in zip(rows, z, why, strict=True))
    reason = (
        f"{ranks_in_words(case.ranks_of(late))} worked longer than the peers, and behind that delay the host of rank "
        f"{suspects[-1].rank} works or pauses {mine:.1f} ms a step, others {others:.1f} ms: one cure saves little "
        f"without the other, both save {of_step(case, saved)}"
    )
    return replace(blame(case, reason, suspects, saved), least=price.low)


def ranks_leave_late(e: Evidence) -> Iterator[Gap]:
    """Ranks leave collectives later than the other members do, by more than a time slice."""
    case, model = e.case, e.case.timeline
    if model is None or not model.later.any():
        return
    late = _beyond_usual(case, model.later)
    prompt = replace(model, later=model.later - late)
    lost = max(model.recorded_ns - prompt.step_ns(case.steps.own), 0.0)
    struck = np.flatnonzero((late[: len(case.ops.start)] > 0) & case.analysed)
    spent = case.by_step(struck, late[struck])
    if lost < e.least or not spent.any():
        return
    mean = spent.mean(axis=1)
    rows = [row for row in np.argsort(-mean, kind="stable").tolist() if mean[row] >= MINOR * mean.max()]
    longest = spent[rows].max(axis=0)
    steps = [case.steps.numbers[c] for c in np.flatnonzero(longest >= MINOR * longest.max()).tolist()]
    what = (
        f"{ranks_in_words(case.ranks_of(rows))} left collectives later than the other members, by "
        f"up to {ms(float(longest.max())):.1f} ms in step {listed(steps)}, and the others lose {of_step(case, lost)}: "
        "a stopped process and a slow network would look the same"
    )
    decide = (
        "look for what stops its process: a debugger, a CPU quota, swapping; or record it on another host"
    )
    yield Gap(what, lost, decide, up_to(case, {row: min(lost, float(mean[row])) for row in rows}))


def _beyond_usual(case: Case, later: F64) -> F64:
    """By how much each operation ends later than usual for its call, ns; 0 within a time slice of that."""
    ops, late = case.ops, np.zeros(len(later))
    here = later[: len(ops.start)]  # operations of ranks without a trace follow
    for token in np.unique(ops.token[here > TIME_SLICE_NS].astype(str)).tolist():
        same = np.flatnonzero((ops.token == token) & (ops.instance >= 0))
        over = here[same] - np.median(here[same])
        late[same] = np.where(over > TIME_SLICE_NS, over, 0.0)
    return late
