"""The mechanisms of the suspects of an answer: which kernels of their devices, what their hosts did."""

from dataclasses import replace

from tracekit.analysis.mechanisms.device import compared, of_device
from tracekit.analysis.mechanisms.host import of_host
from tracekit.analysis.mechanisms.named import named
from tracekit.analysis.slowrank.case import Case
from tracekit.analysis.slowrank.suspects import Answer
from tracekit.causes import CAUSES
from tracekit.findings import Mechanism, Suspect
from tracekit.steps.medians import sampled
from tracekit.steps.step_kernels import kernels_in_steps
from tracekit.thresholds.slowrank import PEERS_SAMPLED


def refined(case: Case, answer: Answer) -> Answer:
    """Return `answer`, its first suspects with the two mechanisms that explain most of their excess.

    The same answer where the ranks have no GPU, or an operation table holds no events of kernels and hosts.
    """
    if case.table is not None or answer.verdict != "slow_rank":
        return answer
    blamed = {s.rank for s in answer.suspects}
    first = [replace(s, mechanisms=_mechanisms(case, s, blamed)) for s in answer.suspects[:PEERS_SAMPLED]]
    return replace(answer, suspects=(*first, *answer.suspects[PEERS_SAMPLED:]))


def _mechanisms(case: Case, suspect: Suspect, blamed: set[int]) -> tuple[Mechanism, ...]:
    """What may explain the excess of a suspect, the largest share first; the first is named where none rivals it."""
    source = case.ops.per_rank[suspect.rank]
    if not source.on_gpu or not CAUSES[suspect.cause].mechanisms:
        return ()
    if CAUSES[suspect.cause].on_host:
        found = of_host(case.run, case.ops, case.steps, suspect.rank)
    else:
        found = _of_device(case, suspect, blamed)
    return named(found)


def _of_device(case: Case, suspect: Suspect, blamed: set[int]) -> list[Mechanism]:
    """What explains the excess of kernels over those of ranks with the same work that are not blamed."""
    row = case.steps.row(suspect.rank)
    stage = case.stage_of(row)
    peers = [int(r) for r in stage if case.steps.ranks[r] not in blamed]
    if not peers:
        return []
    read = [kernels_in_steps(case.run, case.ops, case.steps, r) for r in (row, *sampled(peers))]
    return of_device(compared(read[0], read[1:]))
