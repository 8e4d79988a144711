"""An answer and its suspects: the price of each rank, its cause, and its slow steps."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from tracekit.analysis.mechanisms.host import under_quota
from tracekit.analysis.slowrank.hypotheses.excess_parts import Explained, explain
from tracekit.analysis.slowrank.hypotheses.suspect_work import (
    compute_spared,
    launches_alike,
    pace_beside,
    peers_of,
)
from tracekit.analysis.slowrank.price import Price
from tracekit.axes import LEVELS
from tracekit.case.case import Case
from tracekit.case.cures import alike, taken_by_hosts
from tracekit.causes import CAUSES, DATA_IMBALANCE, NETWORK, STAGE_IMBALANCE
from tracekit.findings import Cause, Cure, Evidence, NetworkPart, PathLevel, Suspect, Verdict
from tracekit.findings.slowrank import CauseShare
from tracekit.step_graph.statistics import confidence
from tracekit.thresholds.slowrank import KIND_RATIO, MAJORITY, MINOR, PEERS_SAMPLED
from tracekit.timing.measured import Measured
from tracekit.units import ms


@dataclass(frozen=True)
class Answer:
    """A verdict with its suspects; `gain` is the saving of a step without their slowness, ns."""

    verdict: Verdict
    cause: Cause | None
    reason: str
    suspects: tuple[Suspect, ...] = ()
    path: tuple[PathLevel, ...] = ()
    gain: float = 0.0
    candidates: tuple[Suspect, ...] = ()  # of an inconclusive verdict
    to_decide: str | None = None  # of an inconclusive verdict: the evidence to record or to add
    unproven: tuple[str, ...] = ()  # of a healthy verdict: what it cannot exclude, with what would decide
    cures: tuple[Cure, ...] = ()  # where faults of several kinds are proven
    network_parts: tuple[NetworkPart, ...] = ()  # what the slow transfers share, the smallest part first
    slow_channels: tuple[int, ...] = ()  # where slow links alone are blamed, or may be: theirs
    rules: tuple[str, ...] = ()  # the rule that gave the answer, and the challenges that changed it
    least: float | None = None  # of `gain` for faults that cost only together; None: as suspects' prices say

    @property
    def blames_data(self) -> bool:
        """Whether work that follows the data is the cause."""
        return self.cause == DATA_IMBALANCE

    @property
    def blames_stage(self) -> bool:
        """Whether the work of a pipeline stage is the cause."""
        return self.cause == STAGE_IMBALANCE


def answer_of(verdict: Verdict, cause: Cause | None, reason: str, gain: float = 0.0) -> Answer:
    """Return an answer: the only place that makes one; `gain` in ns a step. Rules call the functions below."""
    return Answer(verdict, cause, reason, gain=gain)


def blame(
    case: Case,
    reason: str,
    suspects: tuple[Suspect, ...],
    gain: float,
    verdict: Verdict = "slow_rank",
    cause: Cause | None = None,
) -> Answer:
    """Return the answer that blames `suspects`, which cost `gain` (ns a step), with the path to the first one.

    The cause is that of the first suspect unless given.
    """
    path = descend(case, suspects[0].rank) if suspects else ()
    blamed = answer_of(verdict, cause or suspects[0].cause, reason, gain)
    return replace(blamed, suspects=suspects, path=path)


def imbalance(reason: str, gain: float, cause: Cause = DATA_IMBALANCE) -> Answer:
    """Return the answer that no rank is to blame for an imbalance, which costs `gain` (ns a step)."""
    return answer_of("imbalance", cause, reason, gain)


def left_open(reason: str, to_decide: str | None = None, candidates: tuple[Suspect, ...] = ()) -> Answer:
    """Return an open answer, with the evidence that would decide and the ranks that may be slow."""
    return replace(answer_of("inconclusive", "unknown", reason), candidates=candidates, to_decide=to_decide)


def harmless(reason: str, unproven: Sequence[str] = ()) -> Answer:
    """Return the answer that the job is healthy as far as it was compared; `unproven` says what was not."""
    return replace(answer_of("healthy", None, reason), unproven=tuple(unproven))


def cures_of(case: Case, made: Sequence[tuple[Cause, Sequence[int], Price]]) -> tuple[Cure, ...]:
    """Return the cures of causes on ranks with what each saves after those before it, and the step that is left."""
    left, cures = case.step_ns, []
    for cause, ranks, saved in made:
        left -= saved.best
        cures.append(Cure(cause, tuple(ranks), ms(saved.best), ms(saved.low), ms(saved.high), ms(left)))
    return tuple(cures)


def explain_rank(case: Case, row: int, suspects: Sequence[int], *, other_stages: bool = False) -> Explained:
    """Return why the suspect in `row` works longer than unsuspected ranks of its stage or of all stages.

    A few long gaps are not pauses if the host launches slowly throughout: in them the device ran out of work.
    """
    mine = case.features(row)
    peers = peers_of(case, row, suspects, other_stages=other_stages)
    if mine is None:
        return Explained("unknown", _spared_evidence(case, row))
    hosts = partial(launches_slowly, case, row, suspects)
    quota = partial(under_quota, case.run, case.ops, case.steps, case.steps.ranks[row])
    spared = compute_spared(case, row, suspects)
    found = explain(mine, peers, _no_fault(case, row, suspects), spared, hosts, quota)
    return found._replace(evidence=(*found.evidence, *_spared_evidence(case, row)))


def launches_slowly(case: Case, row: int, suspects: Sequence[int]) -> bool:
    """Whether the host of a suspect needs longer between launches than unsuspected peers'; false where unknown."""
    pace = pace_beside(case, row, suspects)
    return pace is not None and pace[0] > KIND_RATIO * pace[1]


def _no_fault(case: Case, row: int, suspects: Sequence[int]) -> float:
    """The part of a rank's gaps beyond its peers' that its role, chance, or the pace of all hosts explains, ns a step.

    The device behind a late host is idle at every later launch, while the other devices wait for it: its gaps add up to
    more than any cure of the suspects saves.
    """
    return case.steps.mean(case.met.gaps[row]) + taken_by_hosts(
        case, np.union1d(suspects, [row]).astype(np.int64)
    )


def _spared_evidence(case: Case, row: int) -> tuple[Evidence, ...]:
    """The evidence that communication adds less to the compute of the rank in `row` than to its peers'; else empty."""
    if (spared := max(-case.steps.mean(case.met.beside[row]), 0.0)) < case.suspect_ns:
        return ()
    mine, what = case.steps.mean(case.met.spun.longer[row]), "compute added by overlapping communication"
    return (Evidence(what, ms(mine), ms(mine + spared), "ms"),)


def suspect_of(
    case: Case,
    row: int,
    price: Price,
    z: float,
    cause: Cause,
    evidence: tuple[Evidence, ...],
    causes: tuple[CauseShare, ...] = (),
    *,
    every: bool = False,
) -> Suspect:
    """Return the suspect in `row`, which costs `price`; with `every` it names all steps, else slow ones.

    causes: the shares of its excess that causes explain, where they decide which one is named.
    """
    rank = case.steps.ranks[row]
    value = np.nan_to_num(case.found.value[row], nan=0.0)
    long = (value >= MINOR * max(value.max(), 0.0)) | every
    slow = [case.steps.numbers[column] for column in np.flatnonzero(long).tolist()]
    sure = confidence(z, len(case.steps.ranks))
    return Suspect(
        rank, case.run.record(rank).host, case.mesh.coords(rank), ms(price.best), round(sure, 3), tuple(slow),
        cause, evidence, ms(price.low), ms(price.high), (), causes,
    )  # fmt: skip


def explained(
    case: Case, rows: Sequence[int], prices: Sequence[Price], z: Sequence[float], *, every: bool = False
) -> tuple[Suspect, ...]:
    """Return `rows` as suspects with the causes of their excess beyond unsuspected ranks; one price and z for each."""
    return tuple(
        suspect_of(case, row, price, at, *explain_rank(case, row, rows), every=every)
        for row, price, at in zip(rows, prices, z, strict=True)
    )


def up_to(case: Case, most: Mapping[int, float], cause: Cause = "unknown") -> tuple[Suspect, ...]:
    """Return the candidates, the dearest first; `most` holds by row what each costs at most, ns a step."""
    rows = sorted(most, key=lambda row: (-most[row], row))
    return tuple(suspect_of(case, row, Price.up_to(most[row]), 0.0, cause, ()) for row in rows)


def rows_named(case: Case, answer: Answer) -> list[int]:
    """Return the rows of the recorded ranks that `answer` names, suspects before candidates."""
    named = [s.rank for s in (*answer.suspects, *answer.candidates)]
    return [case.steps.row(rank) for rank in named if rank in case.steps.ranks]


def maybe_slow(case: Case, rows: Sequence[int], most: float) -> tuple[Suspect, ...]:
    """Return `rows` as candidates, which are slow together and cost nothing or up to `most`, ns; a few with causes."""
    price, why = Price.up_to(most, most), [explain_rank(case, row, rows) for row in rows[:PEERS_SAMPLED]]
    why += [Explained("unknown", ())] * (len(rows) - len(why))
    return tuple(suspect_of(case, row, price, 0.0, *w) for row, w in zip(rows, why, strict=True))


def link_ends(
    case: Case, ranks: Iterable[int], price: Price, z: float = 0.0, evidence: tuple[Evidence, ...] = ()
) -> tuple[Suspect, ...]:
    """Return the recorded ones of `ranks` as ends of a slow link that costs `price`, in all steps."""
    rows = [case.steps.row(rank) for rank in ranks if rank in case.steps.ranks]
    return tuple(suspect_of(case, row, price, z, NETWORK, evidence, every=True) for row in rows)


def agrees(suspect: Suspect, no_fault_ms: float = 0.0, spared_ms: float = 0.0) -> bool:
    """Whether the suspect's excess, price and cause agree, by the evidence shown.

    Its own time must exceed its peers', and the quantity of its cause (compute, gaps, or own time where the cause is
    unknown) by half of the price or more. True where there were no peers. `no_fault_ms` a step of its gaps are ignored,
    and `spared_ms` are added to its kernels for the waits that it is spared.
    """
    rows = [e for e in suspect.evidence if e.quantity and e.peers_median is not None]
    over = {e.quantity: e.value - (e.peers_median or 0.0) for e in reversed(rows)}
    if not {"own", "busy", "gap"} <= over.keys():
        return True
    own, gaps = over["own"] - no_fault_ms + spared_ms, over["gap"] - no_fault_ms
    busy = over["busy"] + spared_ms
    part = {"busy": busy, "own": own}.get(CAUSES[suspect.cause].quantity, gaps)
    if "typical" in over:
        part = own  # it was stopped within operators as well
    return own > 0 and part >= MAJORITY * suspect.lost_ms_per_step


def in_gaps(case: Case, rows: tuple[int, ...]) -> bool:
    """Whether gaps between kernels of a GPU, which no data cause, explain the excess of the first of `rows`."""
    cause = explain_rank(case, rows[0], rows).cause
    return case.on_gpu(rows[0]) and CAUSES[cause].quantity == "gap"


def longest_takes_turns(case: Case) -> bool:
    """Return whether the rank with the largest lasting excess over its peers waits for its turn on its core."""
    row = int(np.argmax(np.nan_to_num(case.found.mean)))
    return CAUSES[explain_rank(case, row, (row,)).cause].takes_turns


def stands(case: Case, suspect: Suspect, suspects: Sequence[Suspect]) -> bool:
    """Whether the suspect's evidence agrees, and a host blamed for slow launches is slower than unsuspected hosts.

    Where hosts are hardly faster than devices, some host is the last to launch in any step; without it another one
    would be. A host that launches as fast as its peers' hosts, and needs no longer for a step, is not slow.
    """
    row, rows = case.steps.row(suspect.rank), [case.steps.row(s.rank) for s in suspects]
    usual = CAUSES[suspect.cause].needs_slow_host and launches_alike(
        case, (row,), case.unsuspected(row, rows)
    )
    usual = usual and alike(case, row, np.array(rows))
    return not usual and agrees(suspect, ms(_no_fault(case, row, rows)), ms(compute_spared(case, row, rows)))


# The path down the axes, DP → EP → PP → CP → TP: at each level, how long the other indices waited for this
# one.


def descend(run: Measured, rank: int) -> tuple[PathLevel, ...]:
    """Return the path to `rank`: for each axis its index, and the mean exposed wait that it caused along it, ms a step.

    Axes of size one are left out. Raises KeyError for a rank outside the mesh.
    """
    mesh = run.mesh.of_program(rank)
    return tuple(
        PathLevel(axis, mesh.coords(rank)[axis], ms(_caused(run, rank, axis)))
        for axis in LEVELS
        if mesh.size(axis) > 1
    )


def _caused(run: Measured, rank: int, axis: str) -> float:
    """The mean wait of other members, ns a step, in the rank's channels along `axis`, for operations it joined last."""
    ops, waits = run.ops, run.waits
    spans = {c.number: run.axes_of(c) for c in ops.channels if rank in c.members}
    pure = [c for c, axes in spans.items() if axes == (axis,)]
    chosen = pure or [c for c, axes in spans.items() if axis in axes]
    inside = run.inside
    if axis in run.mesh.parts:
        chosen = [c for c in spans if (inside[ops.channel == c] == axis).any()]
    usable = (ops.instance >= 0) & run.analysed & (ops.rank != rank)
    usable &= inside == (axis if axis in run.mesh.parts else "")
    worst = 0.0
    for p2p in (False, True):
        by_rank: dict[int, float] = {}
        for channel in (c for c in chosen if ops.channels[c].p2p == p2p):
            rows = np.flatnonzero((ops.channel == channel) & usable)
            rows = rows[ops.rank[waits.last[ops.instance[rows]]] == rank]
            for other, waited in zip(ops.rank[rows].tolist(), waits.exposed_wait[rows].tolist(), strict=True):
                by_rank[other] = by_rank.get(other, 0.0) + float(waited)
        if by_rank:
            known = [ops.channels[c].members for c in chosen if ops.channels[c].p2p == p2p]
            others = max(len(set().union(*known)) - 1, 1)
            worst = max(worst, max(by_rank.values()) if p2p else sum(by_rank.values()) / others)
    return worst / run.steps.count
