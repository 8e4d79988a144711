"""An answer and its suspects: what each rank costs, why, and in which steps."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tracekit.analysis.slowrank.case import Case
from tracekit.analysis.slowrank.hypotheses.explain import explained
from tracekit.analysis.slowrank.hypotheses.host_bound import most_saved_ns
from tracekit.analysis.slowrank.hypotheses.suspect_work import (
    features_of,
    launches_alike,
    pace_beside,
    peers_of,
)
from tracekit.causes import SPARED, Order
from tracekit.findings import Cause, Evidence, PathLevel, Suspect, Verdict
from tracekit.step_graph.statistics import confidence
from tracekit.thresholds.launches import HOST_PACE
from tracekit.thresholds.slowrank import CANDIDATE_SHARE, MAJORITY, STEP_SHARE
from tracekit.units import ms


@dataclass(frozen=True)
class Answer:
    """A verdict with its suspects; `gain` is the time that the step would save without their slowness, ns."""

    verdict: Verdict
    cause: Cause | None
    reason: str
    suspects: tuple[Suspect, ...] = ()
    path: tuple[PathLevel, ...] = ()
    gain: float = 0.0
    candidates: tuple[Suspect, ...] = ()  # of an inconclusive verdict
    to_decide: str | None = None  # of an inconclusive verdict: what to record or to add
    rules: tuple[
        str, ...
    ] = ()  # of the decision: the one that spoke first, and those that spoke against its answer


def left_open(reason: str, to_decide: str | None = None, candidates: tuple[Suspect, ...] = ()) -> Answer:
    """Return the answer that the evidence leaves open, with what would decide it and the ranks that may be slow."""
    return Answer("inconclusive", "unknown", reason, candidates=candidates, to_decide=to_decide)


def healthy(reason: str) -> Answer:
    """Return the answer that the job is healthy."""
    return Answer("healthy", None, reason)


def explain_rank(
    case: Case, row: int, suspects: Sequence[int], *, other_stages: bool = False
) -> tuple[Cause, tuple[Evidence, ...]]:
    """(cause, evidence) of the suspect in `row`, beside unsuspected ranks of its stage or of all stages.

    A few long gaps are no pauses of a host that launches slowly throughout: they are where its device ran dry.
    """
    mine = features_of(case, row)
    peers = peers_of(case, row, suspects, other_stages=other_stages)
    told = _no_fault(case, row), _spared(case, row)
    if mine is None:
        return "unknown", _spared_evidence(case, row)
    cause, evidence, order = explained(mine, peers, *told)
    if cause == "host_stall" and order == Order.SHAPE_OF_GAPS and _launches_slowly(case, row):
        cause = "cpu_launch"
    return cause, (*evidence, *_spared_evidence(case, row))


def _launches_slowly(case: Case, row: int) -> bool:
    """Whether the host of the rank in `row` needs longer between launches than its peers; false where nothing tells."""
    pace = pace_beside(case, row)
    return pace is not None and pace[0] > HOST_PACE * pace[1]


def _no_fault(case: Case, row: int) -> float:
    """Gaps a step of the rank in `row` beyond its peers' that its role or chance makes, ns, or the pace of all hosts.

    The device of a host that is late stands still at every launch behind that, where others' devices wait for it: its
    gaps add up to more than any cure of the host saves.
    """
    beyond = float(np.nan_to_num(case.found.mean[row])) - most_saved_ns(case, np.array([row]))
    return float(np.nanmean(case.met.gaps[row])) + max(beyond, 0.0)


def _spared(case: Case, row: int) -> float:
    """By how much longer kernels of the rank in `row` would be if it waited beside its work as its peers do, ns."""
    return max(-float(np.nanmean(case.met.beside[row])), 0.0)


def _spared_evidence(case: Case, row: int) -> tuple[Evidence, ...]:
    """What communication adds to the compute of the rank in `row` and of its peers, where they differ by much."""
    if _spared(case, row) < CANDIDATE_SHARE * case.step_ns:
        return ()
    mine = float(np.nanmean(case.met.spun[row]))
    return (Evidence(SPARED.what, ms(mine), ms(mine + _spared(case, row)), "ms"),)


def suspect_of(
    case: Case,
    row: int,
    lost: float,
    z: float,
    cause: Cause,
    evidence: tuple[Evidence, ...],
    *,
    every: bool = False,
) -> Suspect:
    """The suspect in `row`, which costs `lost` ns a step; with `every` all steps are named, else the slow ones."""
    rank = case.steps.ranks[row]
    value = np.nan_to_num(case.found.value[row], nan=0.0)
    slow = [
        n
        for n, v in zip(case.steps.numbers, value, strict=True)
        if every or v >= STEP_SHARE * max(value.max(), 0.0)
    ]
    host = next((r.host for r in case.run.ranks if r.rank == rank), None)
    sure = confidence(z, len(case.steps.ranks))
    return Suspect(rank, host, case.mesh.coords(rank), ms(lost), round(sure, 3), tuple(slow), cause, evidence)


def agrees(suspect: Suspect, no_fault_ms: float = 0.0, spared_ms: float = 0.0) -> bool:
    """Whether the suspect's excess, its price and its cause tell the same, by the evidence that is shown.

    Its own time exceeds its peers', and what its cause lies in (compute, gaps, or own time where the cause is unknown)
    exceeds theirs by half of the price or more. True where there was nobody to compare it with. `no_fault_ms` a step
    of its gaps count for nothing, and its kernels would be `spared_ms` longer if it waited as its peers do.
    """
    rows = [e for e in suspect.evidence if e.quantity and e.peers_median is not None]
    over = {e.quantity: e.value - (e.peers_median or 0.0) for e in reversed(rows)}
    if not {"own", "busy", "gap"} <= over.keys():
        return True
    own, busy, gaps = (
        over["own"] - no_fault_ms + spared_ms,
        over["busy"] + spared_ms,
        over["gap"] - no_fault_ms,
    )
    part = {"gpu_compute": busy, "unknown": own}.get(suspect.cause, gaps)
    return own > 0 and part >= MAJORITY * suspect.lost_ms_per_step


def in_gaps(case: Case, rows: tuple[int, ...]) -> bool:
    """Whether the first of `rows` is longer by gaps between a GPU's kernels, not by these: no data make such gaps."""
    cause = explain_rank(case, rows[0], rows)[0]
    return case.ops.per_rank[case.steps.ranks[rows[0]]].on_gpu and cause not in {"gpu_compute", "unknown"}


def stands(case: Case, suspect: Suspect) -> bool:
    """Whether the suspect's evidence agrees, and its host launches no faster than it is said to.

    Where hosts are hardly quicker than devices, one of them is the last to launch in any step, and without it another
    one would be: a host that launches as fast as its peers' is not slow.
    """
    row = case.steps.row(suspect.rank)
    others = np.setdiff1d(next(g for g in case.stages if row in g), row).tolist()
    slow = suspect.cause != "cpu_launch" or not launches_alike(case, (row,), others)
    return slow and agrees(suspect, ms(_no_fault(case, row)), ms(_spared(case, row)))
