"""The mechanisms of the suspects of an answer: which kernels of their devices, what their hosts did."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from tracekit.analysis.mechanisms.device import compared, named, of_device, of_products, of_work, surplus
from tracekit.analysis.mechanisms.host import of_host
from tracekit.analysis.slowrank.case import Case
from tracekit.analysis.slowrank.hypotheses.suspect_work import features_of
from tracekit.analysis.slowrank.suspects import Answer
from tracekit.causes import CAUSES
from tracekit.findings import Mechanism, Suspect
from tracekit.mechanisms import MORE_WORK, OF_HOST
from tracekit.steps.host_need import products_in_steps
from tracekit.steps.medians import sampled
from tracekit.steps.step_kernels import kernels_in_steps
from tracekit.thresholds.slowrank import PEERS_SAMPLED


def refined(case: Case, answer: Answer) -> Answer:
    """Return `answer`, its first suspects with the two mechanisms that explain most of their excess.

    The same answer for an operation table, which holds no events of kernels and hosts.
    """
    if case.table is not None or answer.verdict != "slow_rank":
        return answer
    blamed = {s.rank for s in answer.suspects}
    first = [replace(s, mechanisms=_mechanisms(case, s, blamed)) for s in answer.suspects[:PEERS_SAMPLED]]
    return replace(answer, suspects=(*first, *answer.suspects[PEERS_SAMPLED:]))


def _mechanisms(case: Case, suspect: Suspect, blamed: set[int]) -> tuple[Mechanism, ...]:
    """What may explain the excess of a suspect, the largest share first; the first is named where none rivals it."""
    entry, source = CAUSES[suspect.cause], case.ops.per_rank[suspect.rank]
    peers = _peers(case, suspect, blamed)
    added = _of_work(case, suspect, peers) if MORE_WORK in entry.mechanisms else []
    found: list[Mechanism] = []
    if source.on_gpu and entry.on_host:
        found = of_host(case.run, case.ops, case.steps, suspect.rank) if entry.mechanisms == OF_HOST else []
    elif source.on_gpu and entry.mechanisms and peers:
        rows = case.steps.row(suspect.rank), *peers
        read = [kernels_in_steps(case.run, case.ops, case.steps, row) for row in rows]
        found = of_device(compared(read[0], read[1:]))
    rest = 1.0 - sum(m.share for m in added)
    return named([*added, *(replace(m, share=rest * m.share) for m in found)])


def _peers(case: Case, suspect: Suspect, blamed: set[int]) -> list[int]:
    """Rows of a sample of ranks with the same work that are not blamed."""
    stage = case.stage_of(case.steps.row(suspect.rank))
    return sampled([int(row) for row in stage if case.steps.ranks[row] not in blamed])


def _of_work(case: Case, suspect: Suspect, peers: Sequence[int]) -> list[Mechanism]:
    """The work that a suspect runs and its peers do not: more pieces of it, or larger ones, where there are any."""
    row = case.steps.row(suspect.rank)
    mine = features_of(case, row)
    theirs = [f for other in peers if (f := features_of(case, other)) is not None]
    if mine is None or not theirs:
        return []
    excess = mine.own - float(np.median([f.own for f in theirs]))
    pieces = of_work(surplus(mine, theirs), excess)
    flops = [products_in_steps(case.run, case.ops, case.steps, f.rank) for f in (mine, *theirs)]
    known = [f for f in flops if f is not None]
    if len(known) < len(flops):
        return pieces
    larger = of_products(
        known[0], float(np.median(known[1:])), float(np.median([f.busy for f in theirs])), excess
    )
    return max(pieces, larger, key=lambda found: sum(m.share for m in found))
