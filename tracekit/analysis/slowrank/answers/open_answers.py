"""Open answers: the reason, the ranks that may be slow, and what to record to decide."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from tracekit.analysis.slowrank.gaps.evidence_gaps import REPEAT, Undecided, tokens_may_explain, undecided
from tracekit.analysis.slowrank.gaps.lone_transfers import LoneTransfers, all_could_hide_ns
from tracekit.analysis.slowrank.gaps.recurrence import OneStep, in_one_step, step_in_words
from tracekit.analysis.slowrank.hypotheses.loading_role import unrecorded_role
from tracekit.analysis.slowrank.hypotheses.lone_rank import LoneFault
from tracekit.analysis.slowrank.hypotheses.shared_documents import may_be_documents
from tracekit.analysis.slowrank.price import Price, rank_doubt_ns
from tracekit.analysis.slowrank.suspects import (
    Answer,
    explain_rank,
    explained,
    launches_slowly,
    left_open,
    link_ends,
    maybe_slow,
    suspect_of,
)
from tracekit.analysis.slowrank.unrecorded.unrecorded import Unseen, reason_of
from tracekit.axes import LEVELS
from tracekit.case.case import Case
from tracekit.case.wording import add_traces, fewest_traces, first_in_words, of_step, ranks_in_words
from tracekit.findings import Suspect
from tracekit.units import ms


def leave_unseen_open(
    case: Case, unseen: Unseen, lone: LoneFault | None = None, peerless: Sequence[LoneTransfers] = ()
) -> Answer:
    """The open answer where a rank without a trace may be the culprit.

    The ranks without a trace are candidates; each costs at most what the others spend in its groups. A recorded rank
    that works longer than its peers comes first; behind unrecorded ranks it may cost as much more. So does one that is
    alone on its stage with a fault of its own (`lone`). A rank that all `peerless` messages pass may be at a slow link.
    """
    high, steps, mesh = ms(unseen.most), case.steps.numbers, case.mesh
    placed = [(r, mesh.coords(r) if r in mesh.coordinates else {}) for r in unseen.ranks]
    candidates = tuple(Suspect(r, None, at, 0.0, 0.0, steps, "unknown", (), 0.0, high) for r, at in placed)
    reason, recorded = reason_of(case, unseen), tuple[Suspect, ...]()
    if (open_ := undecided(case)) is not None:
        longer = case.found.mean[[*open_.rows]].tolist()
        each = zip(open_.prices, longer, strict=True)
        prices = [Price.between(p.low, p.best, min(p.high + unseen.most, ns)) for p, ns in each]
        recorded = explained(case, open_.rows, prices, case.found.z[[*open_.rows]].tolist())
        reason += f"; rank {recorded[0].rank} works {ms(longer[0]):.1f} ms longer than its peers"
    elif lone is not None:
        recorded = (lone_suspect(case, lone),)
        reason += f"; rank {recorded[0].rank} is slow itself: {lone.comparison}"
    elif (once := in_one_step(case)) is not None:
        recorded = maybe_slow(case, once.rows, once.gain)
        reason += f"; {step_in_words(case, once)}"
    both = recorded + candidates
    hubs = sorted({r for one in peerless for r in one.hub} & set(case.steps.ranks) - {c.rank for c in both})
    if hubs:
        reason += f"; messages without others like them pass {ranks_in_words(hubs)}: a link there may be slow"
    for rank in hubs:
        most = all_could_hide_ns(case, (rank,)) + unseen.most
        both += link_ends(case, [rank], Price.up_to(most))
    return left_open(reason, fewest_traces(case, unseen.ranks), both)


def lone_suspect(case: Case, found: LoneFault) -> Suspect:
    """Return the rank with the fault `found`, which ranks of other stages show, at its price."""
    evidence = explain_rank(case, found.row, (found.row,), other_stages=True).evidence
    price = found.price.widened(rank_doubt_ns(case, np.array([found.row])))
    suspect = suspect_of(case, found.row, price, found.z, found.cause, evidence)
    return replace(suspect, steps=tuple(case.steps.numbers[c] for c in found.struck))


def leave_one_step_open(case: Case, found: OneStep | LoneFault) -> Answer:
    """The open answer about a rank that was slow in one step; too few others were recorded to know if it recurs."""
    if isinstance(found, LoneFault):
        suspect, most = lone_suspect(case, found), found.price.high
        candidates: tuple[Suspect, ...] = (replace(suspect, confidence=0.0, lost_ms_low=0.0),)
        late = f"rank {suspect.rank} is late in step {suspect.steps[0]} only, compared with ranks of other stages"
        what = f"{late} ({found.comparison})"
    else:
        what, most = step_in_words(case, found), found.gain
        candidates = maybe_slow(case, found.rows, found.gain)
    costs = f"which costs up to {ms(most):.1f} ms a step"
    reason = f"{what}, {costs}: one step cannot separate a fault from chance"
    return left_open(reason, "record more steps: a fault recurs", candidates)


def leave_rank_open(case: Case, found: Undecided) -> Answer:
    """The open answer about ranks with an excess: what they may cost, why that is open, and what would decide."""
    candidates = explained(case, found.rows, found.prices, case.found.z[list(found.rows)].tolist())
    works, its = ("work", "their") if len(candidates) > 1 else ("works", "its")
    least, most = ms(found.prices[0].low), ms(found.most)
    reason = (
        f"{first_in_words([c.rank for c in candidates])} {works} "
        f"{of_step(case, float(case.found.mean[found.rows[0]]))} longer than {its} peers; the others lose between "
        f"{least:.1f} and {most:.1f} ms by it, because {found.why}"
    )
    return left_open(reason, found.decide, candidates)


def may_be_design(case: Case, row: int) -> tuple[str, str] | None:
    """Return how the job's design may explain the excess of a rank, and what would decide; None where it may not."""
    if tokens_may_explain(case, row):
        return _TOKENS, _SIZES
    if may_be_documents(case, row):
        return _DOCUMENTS, REPEAT
    if not launches_slowly(case, row, (row,)) and (others := unrecorded_role(case, row)):
        return _ROLE, add_traces(others, "whether they are idle as long decides")
    return None


_ROLE: Final = (
    "it is idle longer, as a rank that loads data for its group is, and no other rank with that place in its group was "
    "recorded"
)
_TOKENS: Final = (
    "it works longer mostly after some all-to-alls alone, like an expert that receives many tokens, and the traces "
    "hold no sizes of all-to-alls"
)
_DOCUMENTS: Final = (
    "all ranks with the same documents are longer in the same steps, and none is in the others"
)
_SIZES: Final = (
    "record the sizes of all-to-alls: torch 2.2 or newer, with ProfilerActivity.CPU and record_shapes=True"
)


def blame_peer_copies(case: Case, answer: Answer) -> Answer:
    """`answer` about ranks with longer copies between devices, as one about their link.

    Such a copy is a transfer that the rank carries out alone, among its compute, and the recording does not name its
    other end. The answer is open where a rank that may be there left no trace.
    """
    ranks = [s.rank for s in answer.suspects]
    reason = (
        f"copies between devices take longer on {ranks_in_words(ranks)} than on other ranks, and the others wait for "
        f"them: {of_step(case, answer.gain)}"
    )
    inner = next(axis for axis in reversed(LEVELS) if case.mesh.size(axis) > 1)  # copies stay inside a node
    ends = sorted({mate for rank in ranks for mate in case.mesh.line(rank, [inner])} & set(case.missing))
    if not ends:
        return replace(answer, verdict="slow_link", reason=reason)
    unknown = replace(answer.suspects[0], host=None, confidence=0.0, lost_ms_low=0.0, evidence=())
    others = tuple(replace(unknown, rank=rank, coords=case.mesh.coords(rank)) for rank in ends)
    recorded = tuple(replace(s, lost_ms_low=0.0) for s in answer.suspects)
    reason += f"; their other end may be {ranks_in_words(ends)}, which left no trace"
    return left_open(reason, fewest_traces(case, ends), (*recorded, *others))
