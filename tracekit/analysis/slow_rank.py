"""Who makes the job slow: from an ingested run to a finding.

Own times of comparable ranks are compared (analysis.excess), every significant explanation is priced by replay
(analysis.candidates, analysis.link), and the dearest one is the verdict; the descent DP → PP → CP → TP tells where.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from tracekit.analysis.candidates import Hypothesis, everybody, long_stage, slow_ranks
from tracekit.analysis.cause import explain
from tracekit.analysis.descent import descend
from tracekit.analysis.excess import dispersion, rank_excess, stage_rows, with_late_start
from tracekit.analysis.link import SlowLink, slow_link
from tracekit.analysis.mesh_choice import MeshChoice, choose, world_of
from tracekit.analysis.replay import Replayer, prepare
from tracekit.analysis.robust import IMBALANCE_LIMIT, MIN_LOST_SHARE, STEP_SHARE, Excess, confidence
from tracekit.errors import InputError
from tracekit.findings import (
    Cause,
    Evidence,
    PathLevel,
    Quality,
    RankCoverage,
    SlowRankFinding,
    StepsFinding,
    Suspect,
    Verdict,
    WhatIf,
)
from tracekit.mesh import Mesh
from tracekit.store import Run
from tracekit.tables.clock import Clocks, align
from tracekit.tables.features import Features, read_features
from tracekit.tables.match import Operations, match
from tracekit.tables.operations import RankOps, read_rank
from tracekit.tables.steps import F64, Steps, measure
from tracekit.tables.waits import Waits, eager_sends, measure_waits
from tracekit.units import ms

StepRange = tuple[int | None, int | None]
_PEERS_READ = 6
_RANKS_READ = 16


@dataclass(frozen=True)
class _Case:
    """Everything the verdict rests on."""

    run: Run
    ops: Operations
    waits: Waits
    steps: Steps
    clocks: Clocks
    mesh: Mesh
    replayer: Replayer
    found: Excess

    @property
    def step_ns(self) -> float:
        return float(np.nanmean(self.steps.wall))


@dataclass(frozen=True)
class _Answer:
    verdict: Verdict
    cause: Cause | None
    reason: str
    suspects: tuple[Suspect, ...] = ()
    path: tuple[PathLevel, ...] = ()
    gain: float = 0.0


def analyse(
    run: Run,
    mesh: dict[str, int] | None = None,
    order: Sequence[str] | None = None,
    steps: Sequence[StepRange] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> SlowRankFinding:
    """The slow-rank finding of `run`.

    `mesh` (sizes, inner to outer as written) and `order` override what the process groups say; `steps` are
    half-open ranges. Raises UsageError for flags that contradict the input, InputError where there is too little.
    """
    ranks: list[RankOps] = []
    for i, record in enumerate(run.ranks):
        ranks.append(read_rank(run, record.rank))
        if progress:
            progress(i + 1, len(run.ranks))
    ops = match(ranks, run.groups)
    choice = choose(run, ops, mesh, order)
    case = _case(run, ops, choice.mesh, steps)
    answer = _answer(case)
    return _finding(case, choice, answer)


def _case(run: Run, ops: Operations, mesh: Mesh, wanted: Sequence[StepRange] | None) -> _Case:
    if not len(ops.start):
        raise InputError(
            "no communication operation in any trace, so ranks cannot be compared; record communication as well"
        )
    steps = measure(ops, wanted)
    if not steps.numbers:
        known = sorted({int(n) for n in np.unique(ops.step) if n >= 0})
        told = f"steps {known[0]} to {known[-1]} were found" if known else "no step was found"
        raise InputError(
            f"no step was recorded whole on enough ranks ({told}); record more steps or widen --steps"
        )
    clocks = align(ops)
    eager = eager_sends(ops)
    waits = measure_waits(ops, clocks, eager=eager)
    if len(steps.numbers) == 1:
        steps = with_late_start(ops, steps, clocks)
    replayer = prepare(ops, waits, steps, clocks, eager=eager)
    return _Case(run, ops, waits, steps, clocks, mesh, replayer, rank_excess(ops, waits, steps, mesh))


def _answer(case: _Case) -> _Answer:
    """The dearest significant explanation, or that there is none."""
    step = case.step_ns
    ranks = slow_ranks(case.found, case.steps, case.mesh, case.replayer)
    stage = long_stage(case.steps, case.mesh, case.replayer)
    link = slow_link(case.ops, case.waits, case.steps, case.mesh, case.replayer)
    prices = {
        "ranks": ranks.lost[0] if ranks else 0.0,  # several that cost little each are no culprit
        "stage": stage.gain if stage else 0.0,
        "link": link.gain if link else 0.0,
    }
    best = max(prices, key=lambda k: prices[k])
    if prices[best] < MIN_LOST_SHARE * step:
        return _nobody(case)
    if best == "link" and link:
        return _link_answer(case, link)
    if best == "stage" and stage:
        return _stage_answer(case, stage)
    assert ranks is not None
    return _rank_answer(case, ranks)


def _rank_answer(case: _Case, found: Hypothesis) -> _Answer:
    suspects = []
    for row, lost, z in zip(found.rows, found.lost, found.z, strict=True):
        cause, evidence = _explain(case, row, found.rows)
        suspects.append(_suspect(case, row, lost, z, cause, evidence))
    first = suspects[0]
    others = f" and {len(suspects) - 1} more" if len(suspects) > 1 else ""
    reason = (
        f"rank {first.rank}{others} worked longer than its peers in steps {_listed(first.steps)}, and the others waited: "
        f"{ms(found.gain):.1f} ms of {ms(case.step_ns):.1f} ms a step"
    )
    path = descend(case.ops, case.waits, case.steps, case.mesh, first.rank)
    return _Answer("slow_rank", first.cause, reason, tuple(suspects), path, found.gain)


def _stage_answer(case: _Case, found: Hypothesis) -> _Answer:
    ranks = [case.steps.ranks[r] for r in found.rows]
    stage = case.mesh.coords(ranks[0])["pp"]
    levels = [float(np.nanmean(case.steps.own[g])) for g in stage_rows(case.steps, case.mesh) if len(g)]
    others = float(np.median([v for i, v in enumerate(levels) if i != stage]))
    evidence = (Evidence(f"own time of stage {stage} a step", ms(levels[stage]), ms(others), "ms"),)
    suspects = tuple(
        _suspect(case, row, lost, z, "stage_imbalance", evidence)
        for row, lost, z in zip(found.rows, found.lost, found.z, strict=True)
    )
    reason = (
        f"pipeline stage {stage} has more work than the others ({ms(levels[stage]):.1f} ms against {ms(others):.1f} ms a step); "
        "no rank of it is slower than its peers"
    )
    path = descend(case.ops, case.waits, case.steps, case.mesh, suspects[0].rank)
    return _Answer("imbalance", "stage_imbalance", reason, suspects, path, found.gain)


def _link_answer(case: _Case, link: SlowLink) -> _Answer:
    evidence = (
        Evidence("transfer of one message, all members present", ms(link.slow_ns), ms(link.peers_ns), "ms"),
    )
    suspects = tuple(
        _suspect(case, case.steps.row(r), link.gain, link.z, "network", evidence, every=True)
        for r in link.ranks
        if r in case.steps.ranks
    )
    named = ", ".join(str(s.rank) for s in suspects)
    reason = f"transfers of rank {named} take {link.ratio:.1f} times as long as their peers' though everybody arrived in time"
    path = descend(case.ops, case.waits, case.steps, case.mesh, suspects[0].rank) if suspects else ()
    return _Answer("slow_link", "network", reason, suspects, path, link.gain)


def _nobody(case: _Case) -> _Answer:
    """Healthy, an imbalance that moves, or no answer for want of evidence."""
    step = case.step_ns
    absent = _waited_for_missing(case)
    if absent >= MIN_LOST_SHARE * step:
        gone = sorted(set(world_of(case.run, case.ops)) - set(case.ops.ranks))
        return _Answer(
            "inconclusive", "unknown",
            f"the ranks read wait {ms(absent):.1f} ms a step in groups whose rank {_listed(gone)} has no trace; add its trace",
        )  # fmt: skip
    uneven = dispersion(case.ops, case.steps, case.mesh)
    gain = everybody(case.steps, case.mesh, case.replayer)
    if uneven.ratio > IMBALANCE_LIMIT and gain >= MIN_LOST_SHARE * step and _follows_data(case):
        reason = (
            f"work is dealt unevenly and the longest rank changes: {ms(gain):.1f} ms of {ms(step):.1f} ms a step go into "
            "waiting, no rank is slow throughout"
        )
        return _Answer("imbalance", "data_imbalance", reason, gain=gain)
    worst = int(np.nanargmax(np.nan_to_num(case.found.mean, nan=-np.inf)))
    reason = (
        f"no rank, stage or link costs {MIN_LOST_SHARE:.0%} of the step beyond chance (largest excess: rank "
        f"{case.steps.ranks[worst]}, {ms(max(float(np.nan_to_num(case.found.mean[worst])), 0.0)):.2f} ms of {ms(step):.1f} ms, "
        f"z {float(np.nan_to_num(case.found.z[worst])):.1f})"
    )
    return _Answer("healthy", None, reason)


def _follows_data(case: _Case) -> bool:
    """Whether uneven work is the data's doing: attention varies between peers more than the rest of compute does.

    Host scheduling can deal time unevenly as well, but only where compute runs on the host; a GPU trace without
    named attention is believed.
    """
    stage = max(stage_rows(case.steps, case.mesh), key=len)
    rows = [int(r) for r in stage[:: max(1, len(stage) // _RANKS_READ)]][:_RANKS_READ]
    read = [f for r in rows if (f := read_features(case.run, case.ops, case.steps, case.steps.ranks[r])) is not None]
    if len(read) < 2:
        return False
    attention = np.array([f.attention_by_step for f in read])
    rest = np.array([f.busy_by_step for f in read]) - attention
    if attention.mean() < 0.02 * rest.mean():
        return read[0].on_gpu
    return bool(_variation(attention) > 2 * _variation(rest))


def _variation(values: F64) -> float:
    """Median over steps of the coefficient of variation between ranks."""
    mean = np.maximum(values.mean(axis=0), 1.0)
    return float(np.median(values.std(axis=0) / mean))


def _waited_for_missing(case: _Case) -> float:
    """Exposed time a step, on the rank most hit, that operations with unseen members last longer than they should.

    Should: the transfer, plus what the others wait when one member is left out of a complete operation, because
    members wait for each other in every job. ns.
    """
    waits, ops = case.waits, case.ops
    missing = set(world_of(case.run, ops)) - set(ops.ranks)
    if not missing or not len(ops.start):
        return 0.0
    usual = _usual_least(ops, waits)
    lost = dict.fromkeys(ops.ranks, 0.0)
    analysed = np.isin(ops.step, case.steps.numbers) if case.steps.labelled else np.ones(len(ops.step), bool)
    absent = np.array([bool(missing & set(c.members)) for c in ops.channels] or [False])
    partial = (ops.channel >= 0) & absent[np.maximum(ops.channel, 0)]
    for i in np.flatnonzero(partial & analysed):
        least = waits.transfer[ops.instance[i]] if ops.instance[i] >= 0 else ops.end[i] - ops.start[i]
        lost[int(ops.rank[i])] += min(float(least), float(ops.exposed[i])) - usual.get(ops.token[i], float(least))
    return max(lost.values(), default=0.0) / len(case.steps.numbers)


def _usual_least(ops: Operations, waits: Waits) -> dict[str, float]:
    """Mean duration of the quickest member, by message, when one member of a complete operation goes unseen; ns."""
    duration = (ops.end - ops.start).astype(np.float64)
    second = np.full(len(waits.members), np.inf)
    rows = np.flatnonzero((ops.instance >= 0) & (waits.last[np.maximum(ops.instance, 0)] != np.arange(len(ops.start))))
    np.minimum.at(second, ops.instance[rows], duration[rows])
    least = waits.transfer + (second - waits.transfer) / np.maximum(waits.members, 1)
    token = ops.token[waits.first_row]
    good = waits.complete & np.isfinite(least)
    return {t: float(np.mean(least[good & (token == t)])) for t in set(token[good])}


def _explain(case: _Case, row: int, suspects: Sequence[int]) -> tuple[Cause, tuple[Evidence, ...]]:
    rank = case.steps.ranks[row]
    stage = next(g for g in stage_rows(case.steps, case.mesh) if row in g)
    others = [int(r) for r in stage if r not in suspects and np.isfinite(case.steps.own[r]).any()]
    others = others[:: max(1, len(others) // _PEERS_READ)][:_PEERS_READ]
    mine = read_features(case.run, case.ops, case.steps, rank)
    peers = [
        f
        for r in others
        if (f := read_features(case.run, case.ops, case.steps, case.steps.ranks[r])) is not None
    ]
    if mine is None:
        return "unknown", ()
    return _explained(mine, peers)


def _explained(mine: Features, peers: Sequence[Features]) -> tuple[Cause, tuple[Evidence, ...]]:
    return explain(mine, peers)


def _suspect(
    case: _Case,
    row: int,
    lost: float,
    z: float,
    cause: Cause,
    evidence: tuple[Evidence, ...],
    *,
    every: bool = False,
) -> Suspect:
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


def _listed(numbers: Sequence[int]) -> str:
    shown = ", ".join(map(str, numbers[:6]))
    return shown + (f", … ({len(numbers)} in all)" if len(numbers) > 6 else "")


def _finding(case: _Case, choice: MeshChoice, answer: _Answer) -> SlowRankFinding:
    world = world_of(case.run, case.ops)
    missing = tuple(sorted(set(world) - set(case.ops.ranks)))
    step = case.step_ns
    base = case.replayer.step_ns(case.steps.own, case.steps.own)
    cured = step * (1.0 - min(max(answer.gain / base, 0.0), 0.99)) if base > 0 else step
    notes = [*choice.notes, f"clock residual {case.clocks.residual_ns / 1000:.1f} µs"]
    quality = [*case.run.quality, *choice.quality]
    if case.steps.partial:
        quality.append(
            Quality(
                "partial_steps",
                None,
                len(case.steps.partial),
                f"not recorded whole on all ranks: {_listed(case.steps.partial)}",
            )
        )
    if not case.steps.labelled:
        quality.append(
            Quality(
                "no_step_marks", None, 0, "the traces mark no steps: everything recorded counts as one step"
            )
        )
    if case.ops.mismatched:
        quality.append(
            Quality(
                "mismatched_operations",
                None,
                case.ops.mismatched,
                "members disagree about the operation; left out",
            )
        )
    if case.ops.unmatched:
        quality.append(
            Quality("unmatched_operations", None, case.ops.unmatched, "no other rank recorded them")
        )
    return SlowRankFinding(
        RankCoverage(len(world), len(case.ops.ranks), missing, case.run.rejected), choice.finding,
        StepsFinding(case.steps.numbers, ms(float(np.nanmedian(case.steps.wall)))),
        answer.verdict, answer.cause, answer.reason, answer.path, answer.suspects,
        WhatIf(ms(step), ms(cured), step / cured if cured > 0 else 1.0), tuple(quality), tuple(notes),
    )  # fmt: skip
