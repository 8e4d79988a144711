"""The verdict: the dearest significant explanation of a slow step, or that nobody is to blame."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from tracekit.analysis.slowrank.candidates import Hypothesis, long_stage, significant_rows, slow_ranks
from tracekit.analysis.slowrank.case import Case
from tracekit.analysis.slowrank.data_imbalance import uneven_data
from tracekit.analysis.slowrank.descent import descend
from tracekit.analysis.slowrank.evidence_gaps import (
    bounds_of,
    coverage,
    in_the_only_step,
    least_ns,
    most_ns,
    proven_pinned,
    undecided,
    unread,
)
from tracekit.analysis.slowrank.open_answers import (
    one_step_answer,
    only_step_answer,
    open_answer,
    unproven_answer,
    unread_answer,
    unseen_answer,
)
from tracekit.analysis.slowrank.recurrence import costs_in_others, in_one_step, others_prove_health, told
from tracekit.analysis.slowrank.slow_link import SlowLink, slow_link
from tracekit.analysis.slowrank.suspect_work import by_role, late_loaders, only_attention
from tracekit.analysis.slowrank.suspects import Answer, explain_rank, suspect_of
from tracekit.analysis.slowrank.unrecorded import Unseen, waited_for_missing
from tracekit.analysis.slowrank.wording import listed
from tracekit.causes import CAUSES
from tracekit.findings import Evidence, Suspect
from tracekit.thresholds.slowrank import (
    LEVELLING_GAIN,
    MIN_LOST_SHARE,
    RANKS_LISTED,
    ROLE_SHARE,
    STAGE_TELLING_PEERS,
)
from tracekit.units import ms


def decide(case: Case) -> Answer:
    """The dearest significant explanation of `case`, or that there is none."""
    if len(case.ops.ranks) < 2:
        reason = (
            f"only rank {case.ops.ranks[0]} was read, with nobody to compare it with; add the others' traces"
        )
        return Answer("inconclusive", "unknown", reason)
    ranks = slow_ranks(case)
    if ranks and not costs_in_others(case, np.array(ranks.rows), ranks.gain):
        ranks = None
    stage = long_stage(case)
    link = slow_link(case)
    prices = {
        "ranks": ranks.lost[0] if ranks else 0.0,  # several that cost little each are no culprit
        "stage": stage.gain if stage else 0.0,
        "link": link.gain if link else 0.0,
    }
    best = max(prices, key=lambda k: prices[k])
    unseen = waited_for_missing(case)
    if unseen.known >= max(MIN_LOST_SHARE * case.step_ns, prices[best]):
        return unseen_answer(case, unseen)
    if prices[best] < MIN_LOST_SHARE * case.step_ns:
        return _nobody(case, unseen)
    pinned = best == "ranks" and ranks is not None and proven_pinned(case, np.array(ranks.rows))
    if prices[best] < case.residual_ns and not pinned:
        return unproven_answer(case, prices[best])
    if best == "link" and link:
        return _link_answer(case, link)
    if best == "stage" and stage:
        return _long_stage(case, stage)
    return _proven(case, ranks) if ranks else _nobody(case, unseen)


def _long_stage(case: Case, stage: Hypothesis) -> Answer:
    """A stage is long, unless levelling saves more, its loaders are late, or a rank may cost more in the only step."""
    alone = in_the_only_step(case)
    if alone is not None and alone.high[0] > stage.gain:
        return only_step_answer(case, alone)
    uneven = uneven_data(case)
    if uneven > stage.gain:
        return _uneven_answer(case, uneven)
    loading = late_loaders(case, stage.rows)
    return _loader_answer(case, stage, loading) if loading else _stage_answer(case, stage)


def _proven(case: Case, found: Hypothesis) -> Answer:
    """Slow ranks are to blame, unless levelling the work would save more, or too little was matched to tell."""
    uneven = uneven_data(case)
    if uneven > LEVELLING_GAIN * found.gain:
        return _uneven_answer(case, uneven)
    rows = np.array(found.rows)
    if coverage(case).matched != 1 and least_ns(case, rows) < MIN_LOST_SHARE * case.step_ns:
        return open_answer(case, bounds_of(case, rows))
    return _rank_answer(case, found)


def _rank_answer(case: Case, found: Hypothesis) -> Answer:
    """Slow ranks are to blame, unless only their attention is longer: that depends on the documents they were dealt."""
    if only_attention(case, found.rows):
        return _uneven_answer(case, found.gain)
    suspects = []
    for row, lost, z in zip(found.rows, found.lost, found.z, strict=True):
        cause, evidence = explain_rank(case, row, found.rows)
        suspects.append(suspect_of(case, row, lost, z, cause, evidence))
    suspects = _with_bounds(case, suspects, found)
    first = suspects[0]
    others = f" and {len(suspects) - 1} more" if len(suspects) > 1 else ""
    did = "worked longer than its peers" if len(case.steps.numbers) > 1 else "came later than its peers"
    reason = (
        f"rank {first.rank}{others} {did} in step {listed(first.steps)}, and the others waited: "
        f"{ms(found.gain):.1f} ms of {ms(case.step_ns):.1f} ms a step"
    )
    path = descend(case, first.rank)
    on_host = all(CAUSES[s.cause].on_host for s in suspects)
    if on_host and found.gain < ROLE_SHARE * case.step_ns and by_role(case, found.rows):
        told = "by design, it seems: every rank of tensor index 0 does, on its host, and nobody else"
        return Answer("healthy", None, f"{reason}; {told}")
    return Answer("slow_rank", first.cause, reason, tuple(suspects), path, found.gain)


def _with_bounds(case: Case, suspects: list[Suspect], found: Hypothesis) -> list[Suspect]:
    """The suspects with the least and the most that each may cost, given what could not be matched."""
    rows = np.array(found.rows)
    beyond = max(most_ns(case, rows) - found.gain, 0.0)
    unsure = max(found.gain - least_ns(case, rows), 0.0) if coverage(case).matched != 1 else 0.0
    return [
        replace(
            s,
            lost_ms_low=ms(max(lost - unsure, 0.0)),
            lost_ms_high=ms(max(lost, min(lost + beyond, float(case.found.mean[row])))),
        )
        for s, row, lost in zip(suspects, found.rows, found.lost, strict=True)
    ]


def _stage_answer(case: Case, found: Hypothesis) -> Answer:
    """A pipeline stage has more work than the others."""
    ranks = [case.steps.ranks[r] for r in found.rows]
    stage = case.mesh.coords(ranks[0])["pp"]
    levels = {i: float(np.nanmean(case.steps.own[g])) for i, g in enumerate(case.stages) if len(g)}
    others = float(np.median([v for i, v in levels.items() if i != stage]))
    (row,) = CAUSES["stage_imbalance"].signs[0].rows
    evidence = (Evidence(row.what.format(stage=stage), ms(levels[stage]), ms(others), "ms"),)
    suspects = tuple(
        suspect_of(case, row, lost, z, "stage_imbalance", evidence)
        for row, lost, z in zip(found.rows, found.lost, found.z, strict=True)
    )
    reason = (
        f"pipeline stage {stage} has more work than the others ({ms(levels[stage]):.1f} ms against "
        f"{ms(others):.1f} ms a step); {_beside_each_other(ranks)}"
    )
    path = descend(case, suspects[0].rank)
    return Answer("imbalance", "stage_imbalance", reason, suspects, path, found.gain)


def _beside_each_other(ranks: Sequence[int]) -> str:
    """What the ranks of a long stage tell of each other: too few of them cannot tell its work from their speed."""
    if len(ranks) >= STAGE_TELLING_PEERS:
        return "no rank of it is slower than its peers"
    if len(ranks) > 1:
        both = " and ".join(str(r) for r in sorted(ranks))
        return f"or its ranks {both} are both slow: two that do the same work cannot tell which"
    return f"or its rank {ranks[0]} is slow: nobody else does the same work, so the traces cannot tell which"


def _loader_answer(case: Case, found: Hypothesis, rows: Sequence[int]) -> Answer:
    """A stage is long because its ranks wait for data: the loaders are at fault, not the partition."""
    suspects = []
    for row in rows:
        _, evidence = explain_rank(case, row, found.rows, other_stages=True)
        suspects.append(suspect_of(case, row, found.gain, found.z[0], "dataloader", evidence))
    named = ", ".join(str(s.rank) for s in suspects[:RANKS_LISTED])
    reason = (
        f"rank {named} waits for its data loader, and the others wait for it: {ms(found.gain):.1f} ms a step"
    )
    path = descend(case, suspects[0].rank)
    return Answer("slow_rank", "dataloader", reason, tuple(suspects), path, found.gain)


def _link_answer(case: Case, link: SlowLink) -> Answer:
    """Transfers are slow, and the ranks at the link are named."""
    (row,) = CAUSES["network"].signs[0].rows
    evidence = (Evidence(row.what, ms(link.slow_ns), ms(link.peers_ns), "ms"),)
    suspects = tuple(
        suspect_of(case, case.steps.row(r), link.gain, link.z, "network", evidence, every=True)
        for r in link.ranks
        if r in case.steps.ranks
    )
    named = ", ".join(str(s.rank) for s in suspects)
    reason = (
        f"transfers of rank {named} take {link.ratio:.1f} times as long as their peers' though everybody arrived "
        "in time"
    )
    path = descend(case, suspects[0].rank) if suspects else ()
    return Answer("slow_link", "network", reason, suspects, path, link.gain)


def _nobody(case: Case, unseen: Unseen) -> Answer:
    """No explanation costs enough: the job is healthy, the data is uneven, or ranks without a trace leave it open."""
    step = case.step_ns
    if unseen.undecided >= MIN_LOST_SHARE * step:
        return unseen_answer(case, unseen)
    uneven = uneven_data(case)
    if uneven:
        return _uneven_answer(case, uneven)
    once = in_one_step(case)
    if once is not None and not others_prove_health(case, once):
        return one_step_answer(case, once)
    open_ = undecided(case)
    if open_ is not None:
        return open_answer(case, open_)
    alone = in_the_only_step(case)
    if alone is not None:
        return only_step_answer(case, alone)
    if once is not None and not unread(case):
        accident = f"an accident and no slow rank, for nothing costs {MIN_LOST_SHARE:.0%} in the others"
        return Answer("healthy", None, f"{told(case, once)}: {accident}")
    free = significant_rows(case, MIN_LOST_SHARE)
    if len(free):
        return Answer("healthy", None, _costs_nothing(case, int(free[np.argmax(case.found.mean[free])])))
    if unread(case):
        return unread_answer(case)
    worst = int(np.nanargmax(np.nan_to_num(case.found.mean, nan=-np.inf)))
    reason = (
        f"no rank, stage or link costs {MIN_LOST_SHARE:.0%} of the step beyond chance (largest excess: rank "
        f"{case.steps.ranks[worst]}, {ms(max(float(np.nan_to_num(case.found.mean[worst])), 0.0)):.2f} ms of "
        f"{ms(step):.1f} ms, "
        f"z {float(np.nan_to_num(case.found.z[worst])):.1f})"
    )
    return Answer("healthy", None, reason)


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


def _uneven_answer(case: Case, gain: float) -> Answer:
    reason = (
        f"work is dealt unevenly and the longest rank changes: {ms(gain):.1f} ms of {ms(case.step_ns):.1f} ms "
        "a step go into waiting, no rank is slow throughout"
    )
    return Answer("imbalance", "data_imbalance", reason, gain=gain)
