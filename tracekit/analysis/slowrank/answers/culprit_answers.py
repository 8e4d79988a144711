"""Answers that blame ranks, their hosts or a slow link, with cause and price; open where the evidence proves less."""

from dataclasses import replace
from typing import Final, TypeVar

import numpy as np

from tracekit.analysis.slowrank.answers.imbalance_answers import blame_data
from tracekit.analysis.slowrank.answers.open_answers import blame_peer_copies, leave_rank_open, may_be_design
from tracekit.analysis.slowrank.evidence import Evidence
from tracekit.analysis.slowrank.gaps.evidence_gaps import (
    bounds_of,
    early_use_ns,
    is_shown,
    least_ns,
    most_ns,
    what_would_decide,
    why_open,
)
from tracekit.analysis.slowrank.hypotheses.candidates import Hypothesis, price, those_that_cost
from tracekit.analysis.slowrank.hypotheses.excess_parts import may_be_pace
from tracekit.analysis.slowrank.hypotheses.link_cure import carried_ns
from tracekit.analysis.slowrank.hypotheses.long_stage import LongStage
from tracekit.analysis.slowrank.hypotheses.shared_documents import dealt_to_its_replica, only_attention
from tracekit.analysis.slowrank.hypotheses.slow_launch import SlowLaunch, as_peers, slow_launch
from tracekit.analysis.slowrank.hypotheses.slow_link import SlowLink
from tracekit.analysis.slowrank.price import (
    NOT_EXACT,
    Price,
    beyond_error,
    link_doubt_ns,
    may_cost_ns,
    rank_doubt_ns,
    slower_ns,
)
from tracekit.analysis.slowrank.suspects import (
    Answer,
    blame,
    cures_of,
    explain_rank,
    explained,
    left_open,
    link_ends,
    stands,
    suspect_of,
)
from tracekit.case.case import Case
from tracekit.case.cures import saved_ns, typical_without
from tracekit.case.wording import first_in_words, listed, of_step, slow_transfers
from tracekit.causes import CAUSES, CPU_LAUNCH, NETWORK
from tracekit.expected.excess import recurs_beside
from tracekit.expected.nodes import NAME_NODES, UNPLACED, whole_part
from tracekit.findings import Cause, Cure, Suspect
from tracekit.findings import Evidence as Shown
from tracekit.step_graph.statistics import NORMAL_95
from tracekit.steps.medians import median_by_column
from tracekit.thresholds.slowrank import COVERAGE_WHOLE, LITTLE_SHARE
from tracekit.units import NS_PER_US, Mask, ms


def blame_ranks(case: Case, found: Hypothesis) -> Answer:
    """The answer that blames slow ranks; open where their job's design may explain them or matches are missing."""
    designs = {row: design for row in found.rows if (design := may_be_design(case, row)) is not None}
    if designs:
        kept = [row for row in found.rows if row not in designs]
        rest = those_that_cost(case, np.array(kept)) if kept[:1] == [found.rows[0]] else None
        if rest is None or price(case, rest) < case.threshold_ns:
            open_ = bounds_of(case, np.array(found.rows), *next(iter(designs.values())))
            return leave_rank_open(case, open_.from_zero())
        found = rest
    rows = np.array(found.rows)
    least = least_ns(case, rows)
    if not is_shown(case) and least < case.threshold_ns:
        return leave_rank_open(case, bounds_of(case, rows))
    if least < found.gain < case.residual_ns:  # only the least is proven
        found = replace(found, gain=least, lost=tuple(v * least / found.gain for v in found.lost))
    return _blame_proven(case, found)


def _blame_proven(case: Case, found: Hypothesis) -> Answer:
    """The answer that blames slow ranks, or the data where only attention or their replica's documents are longer."""
    if only_attention(case, found.rows) or all(dealt_to_its_replica(case, row) for row in found.rows):
        return blame_data(case, found.gain)
    suspects = list(explained(case, found.rows, _prices(case, found), found.z))
    proven = np.array([stands(case, s, suspects) and not may_be_pace(case, s) for s in suspects])
    if not proven.all():
        return _without_disagreeing(case, suspects, found, proven)
    suspects, found = _with_transfers(case, suspects, found)
    did = "worked longer" if len(case.steps.numbers) > 1 else "came later"
    reason = (
        f"{first_in_words([s.rank for s in suspects])} {did} than {'their' if len(suspects) > 1 else 'its'} peers in "
        f"step {listed(suspects[0].steps)}, and the others waited: {of_step(case, found.gain)}"
    )
    if part := whole_part(case, [s.rank for s in suspects]):
        reason += f"; they are {part}"
    if found.rows[0] in case.found.throughout:
        lasts = _RECURS if recurs_beside(case, case.found, found.rows[0], found.rows) else _THROUGHOUT
        reason += f"; it is the only such step of {len(case.steps.numbers)} recorded, but {lasts}"
    answer = blame(case, reason, tuple(suspects), found.gain)
    return blame_peer_copies(case, answer) if answer.cause == NETWORK else answer


def _without_disagreeing(case: Case, suspects: list[Suspect], found: Hypothesis, proven: Mask) -> Answer:
    """The answer about the suspects that are `proven`; open where they cost little, or less than the others do.

    A cheaper rank is not blamed while a dearer one is in doubt.
    """
    rows = np.array(found.rows)
    sides = rows[proven], rows[~proven]
    rest, dearer = (those_that_cost(case, side) if len(side) else None for side in sides)
    doubt = price(case, dearer) if dearer is not None else 0.0
    if rest is not None and price(case, rest) >= max(doubt, case.threshold_ns):
        return _blame_proven(case, rest)
    first = suspects[int(np.argmin(proven))]
    reason = f"without rank {first.rank} a step would save {first.lost_ms_per_step:.1f} ms of {ms(case.step_ns):.1f} ms"
    reason += f", but {_PACE if may_be_pace(case, first) else _DISAGREE}"
    candidates = tuple(replace(s, confidence=0.0, lost_ms_low=0.0) for s in suspects)
    return left_open(reason, what_would_decide(case), candidates)


_DISAGREE: Final = "its own time exceeds its peers' by less: excess, cost and cause disagree"
_PACE: Final = (
    "its gaps may be the usual pace of hosts: where hosts set the pace, only the device of the last host is idle, and "
    "nothing shows that this host is slower than others"
)


def _with_transfers(
    case: Case, suspects: list[Suspect], found: Hypothesis
) -> tuple[list[Suspect], Hypothesis]:
    """The suspects and their hypothesis with what transfers cost that their processes hold up, each by its share."""
    if not all(CAUSES[s.cause].holds_threads for s in suspects):
        return suspects, found
    best, most = carried_ns(case, np.array(found.rows))
    dearer = []
    for s, lost in zip(suspects, found.lost, strict=True):
        cost = s.lost_ms_per_step + ms(best) * lost / found.gain
        high = None if s.lost_ms_high is None else s.lost_ms_high + ms(most)
        dearer.append(replace(s, lost_ms_per_step=cost, lost_ms_high=high))
    return dearer, replace(found, gain=found.gain + best)


def _prices(case: Case, found: Hypothesis) -> list[Price]:
    """The price of each rank of `found`, with all that it may cost: a replay does not show all that its peers save.

    Their kernels overlap with less communication once nothing waits for the rank.
    """
    rows = np.array(found.rows)
    unsure, more = early_use_ns(case, rows), 0.0
    if not is_shown(case):
        unsure = max(found.gain - least_ns(case, rows), 0.0)
        more = max(most_ns(case, rows) - found.gain, 0.0)
    below, above = _not_saved(case, found), rank_doubt_ns(case, rows)
    return [
        Price.between(lost - unsure - below, lost, may_cost_ns(lost + more, longer) + above)
        for lost, longer in zip(found.lost, case.found.mean[rows].tolist(), strict=True)
    ]


def _not_saved(case: Case, found: Hypothesis) -> float:
    """What a cure saves less if the cured ranks still work longer than typical peers, as peers do, ns a step.

    Replayed: where other peers are as slow, or there is slack, that costs nothing. A replay does not show it where no
    compute was recorded, nor which gaps of a host would be left: there all of it counts. Waits may add as much to the
    others' kernels as before, where it delays the step. The error of the replay, at least the drift of ranks, and the
    differences of devices come on top; where not all is shown, the error of the model that keeps recorded lengths, as
    the lower bound allows for the other one.
    """
    rows, drift = np.array(found.rows), abs(case.base_ns - case.step_ns) if case.timeline else 0.0
    error = max(case.residual_ns, drift) if is_shown(case) else case.pinned_residual_ns
    slower, own = slower_ns(case, rows), case.steps.own.copy()
    if case.concealing is not None:
        return float(np.hypot(error, slower))
    own[rows] = np.fmin(typical_without(case, rows)[rows] + slower, own[rows])
    replayed = max(found.gain - saved_ns(case, rows, own), 0.0)
    usual = np.stack([median_by_column(case.computed[case.stage_of(row)]) for row in rows.tolist()])
    computing = np.nansum(case.computed[rows] - usual) / max(np.nansum(case.found.value[rows]), 1.0)
    replayed += (1.0 - float(np.clip(computing, 0.0, 1.0))) * max(slower - replayed, 0.0)
    return float(np.linalg.norm([error, replayed, min(NORMAL_95 * LITTLE_SHARE * case.step_ns, slower)]))


_THROUGHOUT: Final = "the slowness lasts all of it: nearly all kernels of the device took longer"
_RECURS: Final = "the rank works as much longer in what was recorded beside the compared steps"
_Found = TypeVar("_Found", LongStage, SlowLink)


def proven(case: Case, found: _Found) -> _Found | None:
    """`found` where the evidence proves its price: the model reproduces the recording, or the lower bound suffices.

    The lower bound is the price where the model's error exceeds the likely one. None where nothing is proven.
    """
    price = found.price
    if (isinstance(found, SlowLink) and found.doubted) or not beyond_error(case, price.best, price.low):
        return None
    if price.best < case.residual_ns:
        return replace(found, price=Price(price.low, price.low, price.high))
    return found if case.coverage.matched == 1 or price.low >= case.threshold_ns else None


def blame_link(case: Case, link: SlowLink) -> Answer:
    """The answer that blames a slow link and names its ranks."""
    (row,) = CAUSES[NETWORK].signs[0].rows
    evidence = (Shown(row.what, ms(link.slow_ns), ms(link.peers_ns), "ms"),)
    price = link.price.widened(link_doubt_ns(case, link.price.best, link.z))
    suspects = link_ends(case, link.ranks, price, link.z, evidence)
    named = ", ".join(str(s.rank) for s in suspects)
    took = f"transfers of rank {named} take {link.ratio:.1f} times as long as their peers'"
    reason, gain = f"{took} although all members arrived in time", link.price.best
    answer = blame(case, reason, suspects, gain, "slow_link", NETWORK)
    return replace(answer, slow_channels=link.channels)


def leave_link_open(case: Case, link: SlowLink) -> Answer:
    """The open answer that a link is slow at an unproven price."""
    near = link.price.high < case.threshold_ns
    high = may_cost_ns(link.price.high, link.late) if near else link.price.high
    reason = (
        f"{slow_transfers(link.ranks, link.ratio)}; the others lose between {ms(link.price.low):.1f} and "
        f"{of_step(case, high)} by it, because "
    )
    matched = case.coverage.matched
    beside = matched is not None and matched >= COVERAGE_WHOLE
    why = NOT_EXACT if near else _BESIDE if beside else why_open(case)
    reason += link.layout or (_GUESSED if link.guessed else why)
    unproven = beside or near or link.doubted
    decide = NAME_NODES if link.layout == UNPLACED else _WITHOUT_LINK if unproven else what_would_decide(case)
    price = Price.between(link.price.low, link.price.best, high)
    candidates = link_ends(case, link.ranks, price, link.z)
    return replace(left_open(reason, decide, candidates), slow_channels=link.channels)


_GUESSED = "only the end times show which ranks take part in its transfers"
_BESIDE = "communication that waits for it slows the compute that overlaps with it, by an unknown amount"
_WITHOUT_LINK = (
    "record a few steps with these ranks on other hosts, or with another cable, and compare the step times"
)


def host_launches_slowly(e: Evidence) -> Answer | None:
    """A host launches more slowly than its peers' hosts at a proven price, although its device works no longer."""
    found = slow_launch(e.case)
    return None if found is None else _blame_host(e.case, found)


def launched_late(case: Case, answer: Answer) -> Answer:
    """`answer`; if it names one rank for its gaps, the answer with a higher price that its host launches too slowly.

    Gaps in its own time are one part of what a slow host costs; waits of the others on other streams are the rest.
    """
    by_gaps = [CAUSES[s.cause].by_shape for s in answer.suspects] == [True]
    found = slow_launch(case) if by_gaps else None
    if found is None or found.price.best <= answer.gain:
        return answer
    return _blame_host(case, found) if case.steps.ranks[found.row] == answer.suspects[0].rank else answer


def _blame_host(case: Case, found: SlowLaunch) -> Answer:
    """The answer that names the rank of `found`."""
    rank = case.steps.ranks[found.row]
    (row,) = CAUSES[CPU_LAUNCH].signs[-1].rows
    evidence = explain_rank(case, found.row, (found.row,)).evidence
    mine, theirs = (pace / NS_PER_US for pace in found.pace)
    shown = (*evidence, Shown(row.what, mine, theirs, "µs"))
    suspect = suspect_of(case, found.row, found.price, np.inf, CPU_LAUNCH, shown, every=True)
    reason = (
        f"the host of rank {rank} launches more slowly than its peers' hosts, and the other ranks wait for it: "
        f"launching as fast as they do would save {of_step(case, found.price.best)}"
    )
    return replace(blame(case, reason, (suspect,), found.price.best), cures=_cures(case, found))


def _cures(case: Case, found: SlowLaunch) -> tuple[Cure, ...]:
    """Return the cure of the host and then of ranks that it hides, which cost the threshold then; empty without any."""
    rows = np.setdiff1d(case.significant(case.suspect_ns), [found.row])
    quick = next(as_peers(case, found.row), None)
    behind = those_that_cost(case, rows, quick) if quick is not None and len(rows) else None
    answer = blame_ranks(case, behind) if behind is not None else None
    if behind is None or answer is None or answer.verdict != "slow_rank":
        return ()
    gain = Price.exactly(behind.gain).widened(rank_doubt_ns(case, np.array(behind.rows)))
    hidden = sorted(suspect.rank for suspect in answer.suspects)
    named: tuple[Cause, Cause] = CPU_LAUNCH, answer.suspects[0].cause
    made = (named[0], case.ranks_of([found.row]), found.price), (named[1], hidden, gain)
    return cures_of(case, made) if gain.low >= case.threshold_ns else ()
