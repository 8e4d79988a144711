"""Answers that blame ranks or a slow link, each with cause and price; open ones where the evidence proves less."""

from dataclasses import replace
from typing import TypeVar

import numpy as np

from tracekit.analysis.slowrank.answers.imbalance_answers import blame_data
from tracekit.analysis.slowrank.answers.open_answers import (
    blame_peer_copies,
    leave_disagreeing_open,
    leave_rank_open,
    lone_suspect,
    may_be_design,
)
from tracekit.analysis.slowrank.case import Case
from tracekit.analysis.slowrank.expected.nodes import NAME_NODES, UNPLACED, whole_part
from tracekit.analysis.slowrank.gaps.evidence_gaps import (
    bounds_of,
    early_use_ns,
    is_shown,
    least_ns,
    most_ns,
    what_would_decide,
    why_open,
)
from tracekit.analysis.slowrank.hypotheses.candidates import (
    Hypothesis,
    price,
    saved_ns,
    those_that_cost,
    typical_without,
)
from tracekit.analysis.slowrank.hypotheses.excess_parts import may_be_pace
from tracekit.analysis.slowrank.hypotheses.link_cure import carried_ns
from tracekit.analysis.slowrank.hypotheses.lone_rank import LoneFault
from tracekit.analysis.slowrank.hypotheses.long_stage import LongStage
from tracekit.analysis.slowrank.hypotheses.slow_link import SlowLink
from tracekit.analysis.slowrank.hypotheses.suspect_work import dealt_to_its_replica, only_attention
from tracekit.analysis.slowrank.price import (
    NOT_EXACT,
    Price,
    link_doubt_ns,
    may_cost_ns,
    rank_doubt_ns,
    slower_ns,
)
from tracekit.analysis.slowrank.suspects import (
    Answer,
    blame,
    explain_rank,
    left_open,
    link_end,
    stands,
    suspect_of,
)
from tracekit.analysis.slowrank.wording import first_in_words, listed, of_step, ranks_in_words, slow_transfers
from tracekit.causes import CAUSES, NETWORK
from tracekit.findings import Evidence, Suspect
from tracekit.step_graph.statistics import NORMAL_95
from tracekit.steps.medians import median_by_column
from tracekit.thresholds.slowrank import COVERAGE_WHOLE, LITTLE_SHARE
from tracekit.units import I64, Mask, ms


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


def blame_lone_rank(case: Case, found: LoneFault) -> Answer:
    """The answer that blames a rank for its fault, which ranks of other stages show."""
    suspect = lone_suspect(case, found)
    reason = f"rank {suspect.rank} is slow compared with ranks of other stages: {found.comparison}"
    return blame(case, f"{reason}; {of_step(case, found.gain)}", (suspect,), found.gain)


def _blame_proven(case: Case, found: Hypothesis) -> Answer:
    """The answer that blames slow ranks, or the data where only attention or their replica's documents are longer."""
    if only_attention(case, found.rows) or all(dealt_to_its_replica(case, row) for row in found.rows):
        return blame_data(case, found.gain)
    suspects = [
        suspect_of(case, row, lost, z, *explain_rank(case, row, found.rows))
        for row, lost, z in zip(found.rows, _prices(case, found), found.z, strict=True)
    ]
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
        only = f"it is the only such step of {len(case.steps.numbers)} recorded, but the slowness lasts all of it"
        reason += f"; {only}: nearly all kernels of the device took longer"
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
    if rest is None or price(case, rest) < max(doubt, case.threshold_ns):
        return leave_disagreeing_open(case, suspects)
    return _blame_proven(case, rest)


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
    prices = []
    for row, lost in zip(found.rows, found.lost, strict=True):
        most = may_cost_ns(lost + more, float(case.found.mean[row])) + above
        prices.append(Price.between(lost - unsure - below, lost, most))
    return prices


def _not_saved(case: Case, found: Hypothesis) -> float:
    """What a cure saves less if the cured ranks still work longer than typical peers, as peers do, ns a step.

    Replayed: where other peers are as slow, or there is slack, that costs nothing. A replay does not show it where no
    compute was recorded, nor which gaps of a host would be left: there all of it counts. The error of the replay and
    the differences of devices come on top; where not all is shown, the error of the model that keeps recorded lengths,
    as the lower bound allows for the other one.
    """
    rows, error = np.array(found.rows), case.residual_ns if is_shown(case) else case.pinned_residual_ns
    slower = slower_ns(case, rows)
    if case.concealing is not None:
        return float(np.hypot(error, slower))
    own = typical_without(case, rows)
    own[rows] = np.fmin(own[rows] + slower, case.steps.own[rows])
    replayed = min(max(found.gain - saved_ns(case, rows, own), 0.0), slower)
    replayed += (1.0 - _by_compute(case, rows)) * (slower - replayed)
    return float(np.linalg.norm([error, replayed, min(NORMAL_95 * LITTLE_SHARE * case.step_ns, slower)]))


def _by_compute(case: Case, rows: I64) -> float:
    """The share of the excess of `rows` that is compute, 0 to 1."""
    computed = case.computed
    longer = computed[rows] - np.stack([median_by_column(computed[case.stage_of(r)]) for r in rows.tolist()])
    return float(np.clip(np.nansum(longer) / max(np.nansum(case.found.value[rows]), 1.0), 0.0, 1.0))


def shown(case: Case, found: LongStage | SlowLink) -> bool:
    """Whether the evidence proves a price of `found`: the model reproduces the recording, or the lower bound suffices.

    Where much is unmatched, the model that keeps recorded lengths reproduces the recording best.
    """
    least = case.threshold_ns
    if isinstance(found, SlowLink) and found.doubted:
        return False
    if found.price.best < case.residual_ns:
        return found.price.low >= max(least, case.pinned_residual_ns)
    return case.coverage.matched == 1 or found.price.low >= least


_Found = TypeVar("_Found", LongStage, SlowLink)


def least_proven(case: Case, found: _Found) -> _Found:
    """`found` with its lower bound as the price where the model's error exceeds its likely price."""
    price = found.price
    if price.best >= case.residual_ns:
        return found
    return replace(found, price=Price(price.low, price.low, price.high))


def blame_link(case: Case, link: SlowLink) -> Answer:
    """The answer that blames a slow link and names its ranks."""
    (row,) = CAUSES[NETWORK].signs[0].rows
    evidence = (Evidence(row.what, ms(link.slow_ns), ms(link.peers_ns), "ms"),)
    price = link.price.widened(link_doubt_ns(case, link.price.best, link.z))
    suspects = link_suspects(case, link, price, evidence)
    named = ", ".join(str(s.rank) for s in suspects)
    took = f"transfers of rank {named} take {link.ratio:.1f} times as long as their peers'"
    reason, gain = f"{took} although all members arrived in time", link.price.best
    answer = blame(case, reason, suspects, gain, "slow_link", NETWORK)
    return replace(answer, slow_channels=link.channels)


def blame_both(case: Case, ranks: Answer, link: SlowLink, price: Price, alone: tuple[Price, Price]) -> Answer:
    """The answer `ranks` with a slow link, which hides them as they hide it.

    `price` is what the link costs once the ranks are cured; `alone` what the cure of either saves first.
    """
    each = max(one.best for one in alone)
    gain = alone[0].best + price.best
    reason = (
        f"{first_in_words([s.rank for s in ranks.suspects])} worked longer than its peers, and transfers of "
        f"{ranks_in_words(link.ranks)} take {link.ratio:.1f} times as long as their peers'; each hides the other: both "
        f"cures save {of_step(case, gain)}, and either alone {ms(each):.1f} ms or less"
    )
    low = ms(alone[0].low)
    hidden = tuple(replace(s, lost_ms_low=min(low, s.lost_ms_per_step)) for s in ranks.suspects)
    return replace(ranks, reason=reason, suspects=(*hidden, *link_suspects(case, link, price, ())), gain=gain)


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
    candidates = link_suspects(case, link, Price.between(link.price.low, link.price.best, high), ())
    return replace(left_open(reason, decide, candidates), slow_channels=link.channels)


_GUESSED = "only the end times show which ranks take part in its transfers"
_BESIDE = "communication that waits for it slows the compute that overlaps with it, by an unknown amount"
_WITHOUT_LINK = (
    "record a few steps with these ranks on other hosts, or with another cable, and compare the step times"
)


def link_suspects(
    case: Case, link: SlowLink, price: Price, evidence: tuple[Evidence, ...]
) -> tuple[Suspect, ...]:
    """The recorded ranks at a slow link, each with the `price` of the link."""
    rows = [case.steps.row(rank) for rank in link.ranks if rank in case.steps.ranks]
    return tuple(link_end(case, row, price, link.z, evidence) for row in rows)
