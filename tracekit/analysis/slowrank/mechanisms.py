"""The causes that an answer names, and their mechanisms: which kernels of the devices, what the hosts did."""

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
from tracekit.findings.slowrank import CauseShare
from tracekit.mechanisms import MORE_WORK, OF_HOST
from tracekit.steps.host_need import products_in_steps
from tracekit.steps.medians import sampled
from tracekit.steps.step_kernels import kernels_in_steps
from tracekit.thresholds.slowrank import LEAST_KIND, MECHANISMS_LISTED, NAMED_SHARE, PEERS_SAMPLED


def refined(case: Case, answer: Answer) -> Answer:
    """Return `answer`, its suspects with a cause only where that explains most of their excess.

    The first ones have the two mechanisms that explain most of it as well, but for an operation table, which holds no
    events of kernels and hosts.
    """
    suspects = list(answer.suspects)
    if case.table is None and answer.verdict == "slow_rank":
        blamed = {s.rank for s in suspects}
        first = suspects[:PEERS_SAMPLED]
        suspects[:PEERS_SAMPLED] = [replace(s, mechanisms=_mechanisms(case, s, blamed)) for s in first]
    named = tuple(map(_named, suspects))
    answer = replace(answer, suspects=named, candidates=tuple(map(_named, answer.candidates)))
    if not named or named[0].cause == suspects[0].cause or answer.cause != suspects[0].cause:
        return answer
    return replace(answer, cause=named[0].cause)


def _named(suspect: Suspect) -> Suspect:
    """`suspect` with its cause if that explains most of its excess, else `unknown`, and the two causes that do best.

    Work that it alone runs is one reason for the compute and for the gaps that belong to it.
    """
    added = sum(m.share for m in suspect.mechanisms if m.name == MORE_WORK.name)
    least = {
        c.name: max(c.share, added) if c.name == suspect.cause else min(c.share, 1 - added)
        for c in suspect.causes
    }
    causes = tuple(
        CauseShare(c.name, least[c.name], c.sure or (c.name == suspect.cause and added >= NAMED_SHARE))
        for c in suspect.causes
        if least[c.name] >= LEAST_KIND
    )[:MECHANISMS_LISTED]
    if not suspect.causes or any(c.sure for c in causes):
        return replace(suspect, causes=causes)
    return replace(suspect, cause="unknown", causes=causes, mechanisms=())


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
