"""Rules that blame no rank: work is uneven, hosts stall in turn, or a hypothesis may cost the threshold.

Its price may be open, or near a limit: an excess that is hardly significant, or priced below the threshold by little.
"""

from dataclasses import replace
from typing import Final

import numpy as np

from tracekit.analysis.slowrank.answers.compared_steps import slow_at_times
from tracekit.analysis.slowrank.answers.culprit_answers import leave_link_open
from tracekit.analysis.slowrank.answers.imbalance_answers import (
    blame_data,
    blame_in_turn,
    doubted,
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
from tracekit.analysis.slowrank.gaps.evidence_gaps import (
    NAME_GROUPS,
    Undecided,
    bounds_of,
    faint_ranks,
    in_the_only_step,
    more_steps,
    most_ns,
    varies,
)
from tracekit.analysis.slowrank.hypotheses.long_stage import faint_stage
from tracekit.analysis.slowrank.hypotheses.shared_documents import only_attention
from tracekit.analysis.slowrank.price import NOT_EXACT, Price, may_cost_ns
from tracekit.analysis.slowrank.suspects import Answer, harmless, imbalance, left_open
from tracekit.analysis.slowrank.unrecorded.unrecorded import Unseen, late_alone
from tracekit.case.case import Case
from tracekit.case.wording import of_step, ranks_in_words
from tracekit.causes import CAUSES, CPU_LAUNCH
from tracekit.expected.like_transfers import comparable, message_of
from tracekit.expected.nodes import nodes_of
from tracekit.step_graph.statistics import level_of
from tracekit.steps.medians import of_rows
from tracekit.thresholds.slowrank import CLEARLY_MORE, MIN_LOST_SHARE, STAGE_TELLING_PEERS, Z_LIMIT
from tracekit.units import ms


def hosts_stall_in_turn(e: Evidence) -> Answer | None:
    """Hosts stall in turn, so that the stall moves from rank to rank, or all stall in the same step."""
    return blame_in_turn(e.case, e.stalls) if e.stalls is not None else None


def one_rank_alone(e: Evidence) -> Answer | None:
    """Only one rank was read, so there is nothing to compare it with."""
    ranks = e.case.ops.ranks
    if len(ranks) > 1:
        return None
    return left_open(f"only rank {ranks[0]} was read, so it cannot be compared; add the other ranks' traces")


def unseen_rank_is_dearer(e: Evidence) -> Answer | None:
    """The recorded ranks wait for a rank without a trace, and lose at least as much by it as by anything recorded."""
    dearest, unseen = max(e.prices.values()), e.unseen
    awaited = max(dearest - e.least, e.case.suspect_ns)
    if unseen.awaited < awaited or unseen.most < max(e.least, dearest):
        return None
    return leave_unseen_open(e.case, unseen, e.lone, e.peerless)


def unseen_rank_may_cost(e: Evidence) -> Answer | None:
    """The recorded ranks may lose the threshold by waiting for a rank without a trace."""
    if e.unseen.most < e.least:
        return None
    return leave_unseen_open(e.case, e.unseen, e.lone, e.peerless)


def slow_in_one_step(e: Evidence) -> Answer | None:
    """A rank was slow in one step, and too few others were recorded to call that an accident."""
    once = e.once if e.once_in_doubt else e.lone_once
    return leave_one_step_open(e.case, once) if once is not None else None


def price_may_reach_the_threshold(e: Evidence) -> Answer | None:
    """The price of ranks, a stage or a link may reach the threshold, or that of an excess that is hardly significant.

    First where the interval of the price reaches the threshold, then where a rank has one whole step alone, or a price
    below the threshold by less than its uncertainty. The one slow step of a rank is an accident.
    """
    case, stage = e.case, e.stage
    if e.undecided is not None and not e.is_accident(e.undecided):
        return leave_rank_open(case, e.undecided)
    if stage is not None and not stage.idle:
        return leave_stage_open(case, stage)
    if e.link is not None:
        return leave_link_open(case, e.link)
    for ask in (in_the_only_step, nearly_costly, faint_ranks, faint_node):
        found = ask(case)
        if found is not None and not e.is_accident(found):
            return leave_rank_open(case, found)
    if (stage := faint_stage(case)) is not None:
        why = varies(case, stage.z, Z_LIMIT)
        return leave_stage_open(case, stage, why, f"{more_steps(case)} on every rank")
    return None


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

    They do not explain a device that was slow outside the compared steps, nor more waiting than they cost: what a
    replay misses, or what a recorded rank waits for one without a trace.
    """
    if not e.tokens or e.tokens < e.case.pinned_residual_ns or any(slow_at_times(e)):
        return None
    late = late_alone(e.case, e.unseen.ranks)
    if (most := max(late.values(), default=0.0)) > e.tokens:
        return leave_unseen_open(e.case, Unseen(most, most, tuple(late)), e.lone, e.peerless)
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
        f"the devices of {stages_in_words(case, stage)} are idle {of_step(case, stage.over)} longer than other "
        "devices, waiting for launches from their hosts"
    )
    if stage.by_design:
        reason = (
            f"{still}: the processes of all its ranks pause equally, on every node, as if they loaded data"
        )
        return harmless(reason)
    if stage.paused:
        # the price of the stage scales all its work; without the pause, in its place, a step may save all of the pause
        price = Price.between(doubted(case, stage).low, stage.price.best, max(stage.price.high, stage.over))
        few = replace(stage, rows=tuple(stage.paused), price=price)
        cause = CAUSES[next(iter(stage.paused.values()))]
        decide = f"record its peers in the other replicas, and {cause.next_step}"
        reason = f"{still}, because of {ranks_in_words(case.ranks_of(few.rows))}: {cause.meaning}"
        return left_open(reason, decide, of_stage(case, few, cause.name))
    if stage.hosts_alike:
        reason = (
            f"no rank, stage or link works {MIN_LOST_SHARE:.0%} of the step longer than its peers; {still}: the hosts "
            "of other stages are no faster, but run ahead while they wait"
        )
        return harmless(reason)
    reason = f"{still}, and its hosts are slower than theirs or were not recorded"
    decide = "record the host as well (ProfilerActivity.CPU), and profile the hosts of that stage"
    return left_open(reason, decide, of_stage(case, stage, CPU_LAUNCH))


def faint_node(case: Case) -> Undecided | None:
    """Return the ranks of the node that exceeds the other nodes beyond chance and in every step.

    None without such a node, and where it costs less than the threshold.
    """
    nodes = nodes_of(case)
    members: dict[str | int, list[int]] = {}
    for row, rank in enumerate(case.steps.ranks):
        if rank in nodes and np.isfinite(case.found.mean[row]):
            members.setdefault(nodes[rank], []).append(row)
    groups = [np.array(rows, np.int64) for _, rows in sorted(members.items(), key=str) if len(rows) > 1]
    if len(groups) < STAGE_TELLING_PEERS or len(case.steps.numbers) < 2:
        return None
    worst = max(groups, key=lambda rows: float(case.found.mean[rows].mean()))
    usual, noise = level_of(np.concatenate([case.found.mean[rows] for rows in groups if rows is not worst]))
    over = float(case.found.mean[worst].mean()) - usual
    every = of_rows(np.nanmean, case.found.value[worst].T)
    if not (over > Z_LIMIT * noise / np.sqrt(len(worst)) and (every > 0).all()):
        return None
    price = may_cost_ns(most_ns(case, worst), float(case.found.mean[worst].sum()))
    if price < case.threshold_ns:
        return None
    why = "they are all on one node, and each works longer by too little to be reported"
    decide = "record more steps, and look at what else runs on that node, its clocks and temperatures"
    return replace(bounds_of(case, worst, why, decide), prices=(Price.up_to(price),) * len(worst))


def nearly_costly(case: Case) -> Undecided | None:
    """The ranks with a significant excess and a price below the threshold by less than its uncertainty, or None."""
    rows = case.significant(case.threshold_ns)
    if not len(rows):
        return None
    price = most_ns(case, rows)  # together: ranks that are late at once cost nothing alone
    doubts = ((0.0, NOT_EXACT, _ELSEWHERE), (usually_slow_ns(case), _TOO_SMALL, NAME_GROUPS))
    more, why, decide = max(doubts, key=lambda d: d[0])
    if _may_cost_ns(price, more, float(case.found.mean[rows].sum())) < case.threshold_ns:
        return None
    found = bounds_of(case, rows, why, decide)
    high = [_may_cost_ns(price, more, float(case.found.mean[r])) for r in found.rows]
    prices = tuple(Price.between(p.low, p.low, most) for p, most in zip(found.prices, high, strict=True))
    return replace(found, prices=prices)


_TOO_SMALL: Final = (
    "transfers of most groups last far longer than the transfers of the fastest group, as if their members waited for "
    "a rank that is not counted as a member"
)
_ELSEWHERE: Final = "record a few steps with these ranks on other hosts, and compare the step times"


def _may_cost_ns(price: float, more: float, longer: float) -> float:
    """The bound of `may_cost_ns` plus `more`, ns a step; at most `longer`."""
    return min(may_cost_ns(price, longer) + more, longer)


def usually_slow_ns(case: Case) -> float:
    """Return the extra time of transfers over the fastest comparable channel, ns a step, as the median over ranks.

    Where most channels take twice as long as a few fast ones, their members probably wait for a rank that the inferred
    group lacks: groups inferred from streams may be too small.
    """
    extra = np.zeros(len(case.waits.first_row))
    for channels in comparable(case, message_of(case)[0], {}):
        level = {c: float(np.median(case.waits.transfer[n])) for c, n in channels.items()}
        least = min(level.values())
        for c, numbers in channels.items():
            if level[c] > CLEARLY_MORE * least and np.median(list(level.values())) > CLEARLY_MORE * least:
                extra[numbers] = np.maximum(case.waits.transfer[numbers] - least, 0.0)
    rows = np.flatnonzero((case.ops.instance >= 0) & case.analysed)
    ranks, place = np.unique(case.ops.rank[rows], return_inverse=True)
    spent = np.bincount(place, extra[case.ops.instance[rows]], len(ranks)) / case.steps.count
    return float(np.median(spent)) if len(spent) else 0.0
