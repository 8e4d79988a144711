"""The answer about a job whose mesh nothing tells: all ranks were compared with each other, and it stays open.

Ranks of different pipeline stages do different work, so a rank that works longer than the others is a candidate only.
"""

from dataclasses import replace

from tracekit.analysis.slowrank.answers.open_answers import open_answer
from tracekit.analysis.slowrank.case import Case
from tracekit.analysis.slowrank.gaps.evidence_gaps import undecided
from tracekit.analysis.slowrank.suspects import Answer, left_open
from tracekit.findings import Suspect
from tracekit.inference.mesh.unknown_mesh import KIND


def doubted(case: Case, answer: Answer) -> Answer:
    """The answer that an unknown mesh allows: whoever is named is a candidate; any other is returned as it is."""
    rows = [q.detail for q in case.run.quality if q.kind == KIND]
    if not rows or len(case.ops.ranks) < 2:  # that a rank is alone is said first
        return answer
    reason, _, remedy = rows[0].rpartition("; ")
    open_ = None if answer.suspects else undecided(case)
    answer = open_answer(case, open_) if open_ is not None else answer
    found = answer.suspects or answer.candidates
    told = answer.reason if found else "no rank stands out from all others"
    return left_open(
        f"{reason}, and ranks of different stages do different work; {told}",
        remedy,
        tuple(_candidate(s) for s in found),
    )


def _candidate(suspect: Suspect) -> Suspect:
    """The suspect with the interval from nothing to what it may cost, and without a place in a mesh."""
    most = suspect.lost_ms_high if suspect.lost_ms_high is not None else suspect.lost_ms_per_step
    return replace(
        suspect, lost_ms_low=0.0, lost_ms_high=max(most, suspect.lost_ms_per_step), confidence=0.0, coords={}
    )
