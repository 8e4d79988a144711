"""Who makes the job slow: from an ingested run to a finding.

Own times of comparable ranks are compared (analysis.excess), every significant explanation is priced by replay
(analysis.candidates, analysis.link), and the dearest one is the verdict (analysis.verdict); the descent
DP → PP → CP → TP (analysis.descent) tells where.
"""

from collections.abc import Callable, Sequence

import numpy as np

from tracekit.analysis.slowrank.case import Case, StepRange, build
from tracekit.analysis.slowrank.mesh_choice import MeshChoice, choose, world_of
from tracekit.analysis.slowrank.timed_dumps import tempered
from tracekit.analysis.slowrank.verdict import Answer, decide, listed
from tracekit.findings import Quality, RankCoverage, SlowRankFinding, StepsFinding, WhatIf
from tracekit.store import Run
from tracekit.tables.match import match
from tracekit.tables.operations import RankOps, read_rank
from tracekit.units import ms


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
    case = build(run, ops, choice.mesh, steps)
    return _finding(case, choice, tempered(case, decide(case)))


def _finding(case: Case, choice: MeshChoice, answer: Answer) -> SlowRankFinding:
    world = world_of(case.run, case.ops)
    step = case.step_ns
    base = case.replayer.step_ns(case.steps.own, case.steps.own)
    cured = step * (1.0 - min(max(answer.gain / base, 0.0), 0.99)) if base > 0 else step
    notes = [*choice.notes, f"clock residual {case.clocks.residual_ns / 1000:.1f} µs"]
    quality = (*case.run.quality, *choice.quality, *_doubts(case))
    return SlowRankFinding(
        RankCoverage(len(world), len(case.ops.ranks), case.missing, case.run.rejected), choice.finding,
        StepsFinding(case.steps.numbers, ms(float(np.nanmedian(case.steps.wall)))),
        answer.verdict, answer.cause, answer.reason, answer.path, answer.suspects,
        WhatIf(ms(step), ms(cured), step / cured if cured > 0 else 1.0), quality, tuple(notes),
    )  # fmt: skip


def _doubts(case: Case) -> list[Quality]:
    """What the analysis left out or assumed, as quality rows."""
    rows = []
    if case.steps.partial:
        told = f"not recorded whole on enough ranks: {listed(case.steps.partial)}"
        rows.append(Quality("partial_steps", None, len(case.steps.partial), told))
    if not case.steps.labelled:
        rows.append(
            Quality("no_step_marks", None, 0, "the traces mark no steps: all they hold counts as one step")
        )
    if case.ops.mismatched:
        told = "members disagree about the operation; left out"
        rows.append(Quality("mismatched_operations", None, case.ops.mismatched, told))
    if case.ops.unmatched:
        rows.append(Quality("unmatched_operations", None, case.ops.unmatched, "no other rank recorded them"))
    return rows
