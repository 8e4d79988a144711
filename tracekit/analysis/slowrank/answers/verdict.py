"""The verdict: the dearest significant explanation of a slow step, or that nobody is to blame."""

from dataclasses import replace
from typing import TypeVar

import numpy as np

from tracekit.analysis.slowrank.answers.moving_stalls import moving_stalls, moving_stalls_answer
from tracekit.analysis.slowrank.answers.no_culprit import nobody, uneven_answer
from tracekit.analysis.slowrank.answers.open_answers import (
    disagreeing_answer,
    link_suspects,
    only_step_answer,
    open_answer,
    open_link_answer,
    open_tokens_answer,
    unproven_answer,
    unseen_answer,
)
from tracekit.analysis.slowrank.answers.slow_launch import launched_late
from tracekit.analysis.slowrank.answers.stage_answers import (
    beside,
    elsewhere,
    loader_answer,
    lonely_stage_answer,
    long_stage_answer,
    open_stage_answer,
)
from tracekit.analysis.slowrank.case import Case
from tracekit.analysis.slowrank.descent import descend
from tracekit.analysis.slowrank.gaps.evidence_gaps import (
    bounds_of,
    coverage,
    in_the_only_step,
    least_ns,
    most_ns,
    proven_pinned,
    tokens_may_explain,
    told_by_steps,
    undecided,
)
from tracekit.analysis.slowrank.gaps.recurrence import costs_in_others
from tracekit.analysis.slowrank.hypotheses.candidates import (
    Hypothesis,
    price,
    slow_ranks,
    those_that_cost,
)
from tracekit.analysis.slowrank.hypotheses.data_imbalance import data_explains, uneven_data
from tracekit.analysis.slowrank.hypotheses.lone_rank import lone_fault
from tracekit.analysis.slowrank.hypotheses.long_stage import LongStage, long_stage
from tracekit.analysis.slowrank.hypotheses.slow_link import SlowLink, slow_link
from tracekit.analysis.slowrank.hypotheses.suspect_work import by_role, dealt_to_its_replica, only_attention
from tracekit.analysis.slowrank.hypotheses.table_shares import everybody_ns, share_in_words
from tracekit.analysis.slowrank.hypotheses.usual_pace import may_be_pace
from tracekit.analysis.slowrank.suspects import Answer, explain_rank, in_gaps, stands, suspect_of
from tracekit.analysis.slowrank.unrecorded.unseen_replay import waited_for_unseen
from tracekit.analysis.slowrank.wording import listed
from tracekit.causes import CAUSES
from tracekit.findings import Evidence, Suspect
from tracekit.thresholds.slowrank import (
    CANDIDATE_SHARE,
    MAJORITY,
    MIN_LOST_SHARE,
    ROLE_SHARE,
    STAGE_GAIN,
)
from tracekit.units import ms


def decide(case: Case) -> Answer:
    """The dearest significant explanation of `case`, or that there is none."""
    if len(case.ops.ranks) < 2:
        reason = (
            f"only rank {case.ops.ranks[0]} was read, with nobody to compare it with; add the others' traces"
        )
        return Answer("inconclusive", "unknown", reason)
    slow = slow_ranks(case)
    once = slow is not None and not _no_accident(case, slow)
    ranks = told_by_steps(case, None if once else slow)
    stage = long_stage(case)
    link = slow_link(case)
    prices = {
        "ranks": price(case, ranks) if ranks else 0.0,
        "stage": stage.gain if stage and not stage.idle else 0.0,
        "link": link.gain if link else 0.0,
    }
    if prices["stage"] < STAGE_GAIN * prices["ranks"]:  # one slow rank explains as much
        prices["stage"] = 0.0
    best = max(prices, key=lambda k: prices[k])
    unseen = waited_for_unseen(case)
    least = min(MIN_LOST_SHARE * case.step_ns, MAJORITY * prices[best])
    bound = unseen.undecided if unseen.awaited >= max(least, CANDIDATE_SHARE * case.step_ns) else 0.0
    if max(unseen.known, bound) >= max(MIN_LOST_SHARE * case.step_ns, prices[best]):
        return unseen_answer(case, unseen)
    if prices[best] < MIN_LOST_SHARE * case.step_ns:
        return nobody(case, unseen, stage, link)
    if best == "link" and link:
        return _link_answer(case, _least(case, link)) if _shown(case, link) else open_link_answer(case, link)
    if best == "stage" and stage:
        fault = _slow_beside(case, stage, ranks, prices["ranks"]) or _link_beside(case, stage, link)
        fault = fault or _lone_beside(case, stage)
        return fault or _long_stage(case, stage, "" if once else elsewhere(case, stage, slow))
    if ranks is None:
        return nobody(case, unseen, stage, link)
    dear = prices["stage"] >= MIN_LOST_SHARE * case.step_ns
    return beside(case, _of_ranks(case, ranks), stage if dear else None)


def _of_ranks(case: Case, ranks: Hypothesis) -> Answer:
    """Slow ranks are to blame, unless the model misses more than they cost."""
    if ranks.gain < case.residual_ns and not proven_pinned(case, np.array(ranks.rows)):
        return unproven_answer(case, ranks.gain)
    return _proven(case, ranks)


def _slow_beside(case: Case, stage: LongStage, ranks: Hypothesis | None, gain: float) -> Answer | None:
    """The answer that names slow ranks beside a stage that costs more; None where none is proven to cost enough.

    A stage is long by design, and of all who work on it; a rank that does the same work as its peers in more time is
    a fault, and who looks for one must not stop at the design.
    """
    if ranks is None or gain < MIN_LOST_SHARE * case.step_ns or stage.loaders:
        return None
    answer = beside(case, _of_ranks(case, ranks), stage)
    return answer if answer.suspects else None


def _link_beside(case: Case, stage: LongStage, link: SlowLink | None) -> Answer | None:
    """The answer that names a slow link beside a stage that costs more; None where none is proven to cost enough."""
    if link is None or stage.loaders or not _shown(case, link):
        return None
    proven = _least(case, link)
    if proven.gain < MIN_LOST_SHARE * case.step_ns:
        return None
    return beside(case, _link_answer(case, proven), stage)


def _lone_beside(case: Case, stage: LongStage) -> Answer | None:
    """The answer that names a rank which its stage holds alone, if its device or host is slow beside other stages'."""
    found = lone_fault(case, stage)
    if found is None or found.gain < max(MIN_LOST_SHARE * case.step_ns, case.residual_ns):
        return None
    _, evidence = explain_rank(case, found.row, stage.rows, other_stages=True)
    suspect = suspect_of(case, found.row, found.gain, stage.z, found.cause, evidence)
    reason = (
        f"rank {suspect.rank} is slow beside ranks of other stages: {found.told}; {ms(found.gain):.1f} ms of "
        f"{ms(case.step_ns):.1f} ms a step"
    )
    answer = Answer("slow_rank", found.cause, reason, (suspect,), descend(case, suspect.rank), found.gain)
    rest = replace(stage, gain=stage.gain - found.gain)
    return beside(case, answer, rest if rest.gain >= MIN_LOST_SHARE * case.step_ns else None)


def _no_accident(case: Case, found: Hypothesis) -> bool:
    """Whether slowness of ranks costs something in several steps, or filled the one step in which it was seen."""
    return found.rows[0] in case.found.throughout or costs_in_others(case, np.array(found.rows), found.gain)


def _shown(case: Case, found: LongStage | SlowLink) -> bool:
    """Whether the evidence proves that `found` costs something: the model gives the recording, or the least is enough.

    Where much is unmatched, the model that keeps recorded lengths follows the recording closer than any other.
    """
    least = MIN_LOST_SHARE * case.step_ns
    if isinstance(found, SlowLink) and (found.guessed or found.layout):
        return False
    if found.gain < case.residual_ns:
        return found.low >= max(least, case.pinned_residual_ns)
    return coverage(case).matched == 1 or found.low >= least


_Found = TypeVar("_Found", LongStage, SlowLink)


def _least(case: Case, found: _Found) -> _Found:
    """`found` at the least price where only that is proven."""
    return replace(found, gain=min(found.gain, found.low)) if found.gain < case.residual_ns else found


def _long_stage(case: Case, stage: LongStage, besides: str) -> Answer:
    """A stage is long, unless levelling saves more, its loaders are late, or too little was matched or recorded."""
    alone = in_the_only_step(case)
    if alone is not None and alone.high[0] > stage.gain:
        return only_step_answer(case, alone)
    rank = undecided(case)
    if rank is not None and coverage(case).matched != 1 and rank.high[0] > stage.gain:
        return open_answer(case, rank)  # its waits are unknown: it alone may be what makes the stage long
    uneven = uneven_data(case)
    if uneven > stage.gain:
        return uneven_answer(case, uneven, stage)
    if not _shown(case, stage):
        return open_stage_answer(case, stage)
    stage = _least(case, stage)
    if stage.loaders:
        return loader_answer(case, stage)
    mesh, mine = case.mesh, case.mesh.stage(case.steps.ranks[stage.rows[0]])
    unseen = [r for r in case.missing if r in mesh.coordinates and mesh.stage(r) == mine]
    if len(stage.rows) == 1 and unseen:
        return lonely_stage_answer(case, stage, unseen)
    shares = share_in_words(case, "typical work on that stage", stage.gain, {"even micro-batches": uneven})
    answer = long_stage_answer(case, stage, shares + besides)
    return replace(answer, gain=everybody_ns(case, answer.gain))


def _proven(case: Case, found: Hypothesis) -> Answer:
    """Slow ranks are to blame, unless levelling the work would save more, or too little was matched to tell."""
    uneven = uneven_data(case)
    if data_explains(case, uneven, found.rows, found.gain) and not in_gaps(case, found.rows):
        return uneven_answer(case, uneven)
    moving = moving_stalls(case)
    if moving is not None and moving.explains(case, found.rows):
        return moving_stalls_answer(case, moving)
    kept = [row for row in found.rows if not tokens_may_explain(case, row)]
    if len(kept) < len(found.rows):
        rest = those_that_cost(case, np.array(kept)) if kept[:1] == [found.rows[0]] else None
        if rest is None or price(case, rest) < MIN_LOST_SHARE * case.step_ns:
            return open_tokens_answer(case, bounds_of(case, np.array(found.rows)))
        found = rest
    rows = np.array(found.rows)
    least = least_ns(case, rows)
    if coverage(case).matched != 1 and least < MIN_LOST_SHARE * case.step_ns:
        return open_answer(case, bounds_of(case, rows))
    if least < found.gain < case.residual_ns:  # only the least is proven
        found = replace(found, gain=least, lost=tuple(v * least / found.gain for v in found.lost))
    return launched_late(case, _rank_answer(case, found))


def _rank_answer(case: Case, found: Hypothesis) -> Answer:
    """Slow ranks are to blame, unless only their attention is longer: that depends on the documents they were dealt."""
    if only_attention(case, found.rows) or all(dealt_to_its_replica(case, row) for row in found.rows):
        return uneven_answer(case, found.gain)
    suspects = []
    for row, lost, z in zip(found.rows, found.lost, found.z, strict=True):
        cause, evidence = explain_rank(case, row, found.rows)
        suspects.append(suspect_of(case, row, lost, z, cause, evidence))
    suspects = _with_bounds(case, suspects, found)
    if not all(_proves(case, s, suspects) for s in suspects):
        return _without_disagreeing(case, suspects, found)
    first = suspects[0]
    others = f" and {len(suspects) - 1} more" if len(suspects) > 1 else ""
    did = "worked longer than its peers" if len(case.steps.numbers) > 1 else "came later than its peers"
    reason = (
        f"rank {first.rank}{others} {did} in step {listed(first.steps)}, and the others waited: "
        f"{ms(found.gain):.1f} ms of {ms(case.step_ns):.1f} ms a step"
    )
    if found.rows[0] in case.found.throughout:
        only = f"of {len(case.steps.numbers)} recorded it is the only such step, but fills it"
        reason += f"; {only}: nearly all kernels of the device took longer"
    path = descend(case, first.rank)
    on_host = all(CAUSES[s.cause].on_host for s in suspects)
    if on_host and found.gain < ROLE_SHARE * case.step_ns and by_role(case, found.rows):
        told = "by design, it seems: every rank of tensor index 0 does, on its host, and nobody else"
        return Answer("healthy", None, f"{reason}; {told}")
    return Answer("slow_rank", first.cause, reason, tuple(suspects), path, found.gain)


def _proves(case: Case, suspect: Suspect, suspects: list[Suspect]) -> bool:
    """Whether the suspect's evidence agrees, and tells more than the usual pace of a host."""
    return stands(case, suspect) and not may_be_pace(case, suspect, suspects)


def _without_disagreeing(case: Case, suspects: list[Suspect], found: Hypothesis) -> Answer:
    """The answer about the suspects whose evidence agrees; open where they alone do not cost enough."""
    kept = [row for row, s in zip(found.rows, suspects, strict=True) if _proves(case, s, suspects)]
    rest = those_that_cost(case, np.array(kept)) if kept else None
    if rest is None or price(case, rest) < MIN_LOST_SHARE * case.step_ns:
        return disagreeing_answer(case, suspects)
    return _rank_answer(case, rest)


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


def _link_answer(case: Case, link: SlowLink) -> Answer:
    """Transfers are slow, and the ranks at the link are named."""
    (row,) = CAUSES["network"].signs[0].rows
    evidence = (Evidence(row.what, ms(link.slow_ns), ms(link.peers_ns), "ms"),)
    suspects = link_suspects(case, link, evidence)
    named = ", ".join(str(s.rank) for s in suspects)
    took = f"transfers of rank {named} take {link.ratio:.1f} times as long as their peers'"
    path = descend(case, suspects[0].rank) if suspects else ()
    return Answer(
        "slow_link", "network", f"{took} though everybody arrived in time", suspects, path, link.gain
    )
