"""Which rank makes the job slow: from an ingested run to a finding.

`opened` reads a `case`, which holds the measurements and the step model, `expected` the excess of each rank over
comparable ranks. `hypotheses` price explanations by replaying the model, `decision` chooses one or leaves the answer
open, and `suspects` gives its path DP → PP → CP → TP.
"""

from dataclasses import replace

import numpy as np

from tracekit.analysis.slowrank.answers.compared_steps import without_odd_steps
from tracekit.analysis.slowrank.answers.expert_waits import expert_waits
from tracekit.analysis.slowrank.answers.harmless import role_in_words
from tracekit.analysis.slowrank.answers.network_parts import located
from tracekit.analysis.slowrank.case import Case
from tracekit.analysis.slowrank.decision.decide import concluded
from tracekit.analysis.slowrank.expected.nodes import with_hosts
from tracekit.analysis.slowrank.explanation import explanation_of
from tracekit.analysis.slowrank.mechanisms import refined, unlike_recordings
from tracekit.analysis.slowrank.opened import (
    Order,
    Progress,
    Ranges,
    Sizes,
    enter,
    quality_of,
    ranks_of,
    read_ranks,
    stepped,
)
from tracekit.analysis.slowrank.picture import picture_of
from tracekit.analysis.slowrank.suspects import Answer
from tracekit.analysis.slowrank.wording import Remedy
from tracekit.errors import InputError, MeshUnknownError
from tracekit.findings import Quality, SlowRankFinding, StepsFinding, WhatIf
from tracekit.findings.picture import SlowRankPicture
from tracekit.inference.mesh.mesh_choice import MeshChoice, without_mesh
from tracekit.mesh.hardware import Hardware
from tracekit.placement import HostList, HostsFile
from tracekit.steps.recorded_windows import last_windows
from tracekit.store import Run
from tracekit.thresholds.slowrank import LITTLE_SHARE
from tracekit.units import NS_PER_US, ms


def analyse(
    run: Run,
    mesh: Sizes = None,
    order: Order = None,
    steps: Ranges = None,
    progress: Progress = None,
    *,
    explain: bool = False,
    hosts: HostsFile | HostList | None = None,
    hardware: Hardware | None = None,
) -> SlowRankFinding:
    """Return the slow-rank finding of `run`: verdict, suspects with causes and evidence, and the cost of the step (ms).

    `mesh` (axis → size, inner to outer as written) and `order` override what the process groups say; `steps` are
    half-open ranges of step numbers; `hosts` is a file with the host, switch and rail of ranks (`tracekit.placement`),
    over the hosts that traces name; `hardware` bounds sound transfers (`tracekit.mesh.hardware`); `progress` is
    called with (ranks read, all ranks), and its method `enter`, if it has one, with the name of each later stage. With
    `explain` the finding holds its working as well. Where nothing determines the mesh, the answer is open. Raises
    UsageError where mesh, order or `run.job` contradict the input, MeshError where process groups do, InputError if
    nothing can be compared.
    """
    run = replace(with_hosts(run, hosts), hardware=hardware)
    return _finding(*_answered(run, mesh, order, steps, progress), explain=explain)


def illustrated(
    run: Run,
    mesh: Sizes = None,
    order: Order = None,
    steps: Ranges = None,
    progress: Progress = None,
    *,
    explain: bool = False,
    hosts: HostsFile | HostList | None = None,
    hardware: Hardware | None = None,
) -> tuple[SlowRankFinding, SlowRankPicture]:
    """Return the finding of `analyse` and the charts of its HTML page. Arguments and errors as there."""
    run = replace(with_hosts(run, hosts), hardware=hardware)
    case, choice, answer = _answered(run, mesh, order, steps, progress)
    return _finding(case, choice, answer, explain=explain), picture_of(case, answer)


def _answered(
    run: Run, mesh: Sizes, order: Order, steps: Ranges, progress: Progress
) -> tuple[Case, MeshChoice, Answer]:
    """The case, its mesh, and the answer about it."""
    run, ranks = read_ranks(last_windows(run, steps), mesh, progress)
    enter(progress, f"matching the operations of {len(ranks)} ranks")
    try:
        case, choice = stepped(run, ranks, mesh, order, steps)
    except MeshUnknownError as error:
        if not ranks:
            raise
        world = range(max(run.world_size or 0, max(r.rank for r in ranks) + 1))
        case, choice = stepped(*without_mesh(run, ranks, world, str(error)), mesh, order, steps)
    except InputError as error:
        raise _of_one_rank(run, error) from error.__cause__
    enter(progress, f"pricing what each of {len(ranks)} ranks costs")
    found, answer = concluded(case if steps else without_odd_steps(case))
    return found, choice, located(found, refined(found, answer))


def _of_one_rank(run: Run, error: InputError) -> InputError:
    """Return `error`; if only one rank was read, behind the sentence that it cannot be compared with another."""
    if len(run.ranks) > 1:
        return error
    if run.world_size == 1:
        alone = "the job has one process, so there is no rank to compare it with"
        if any(row.kind == "rank_assumed" for row in run.quality):
            alone = (
                "the trace names neither its rank nor any communication, so it is of a job with one process, or of no "
                "training job, and no rank can be compared with it: give the traces of all ranks, or for one process"
            )
            return type(error)(f"{alone} use tracekit breakdown, diff or trend")
        return type(error)(f"{alone}; use tracekit breakdown, diff or trend")
    alone = f"only rank {run.ranks[0].rank} was read, so it cannot be compared: add the other ranks' traces"
    return type(error)(f"{alone}; {error}")


def _finding(case: Case, choice: MeshChoice, answer: Answer, *, explain: bool) -> SlowRankFinding:
    """The finding of `case`: the answer, the evidence it rests on, and the step with and without the suspects."""
    step, base = case.step_ns, case.base_ns
    cured = step * (1.0 - min(max(answer.gain / base, 0.0), 1.0 - LITTLE_SHARE)) if base > 0 else step
    residual = f"model residual {ms(case.residual_ns):.2f} ms of {ms(step):.1f} ms a step"
    unproven = (Quality("unproven_transfers", None, 1, detail) for detail in answer.unproven)
    clocks = f"clock residual {case.clocks.residual_ns / NS_PER_US:.1f} µs"
    return SlowRankFinding(
        ranks_of(case), choice.finding,
        StepsFinding(case.steps.numbers, ms(float(np.nanmedian(case.steps.whole)))),
        answer.verdict, answer.cause, answer.reason, answer.path, answer.suspects,
        WhatIf(ms(step), ms(cured), step / cured if cured > 0 else 1.0),
        (*quality_of(case, choice), *unlike_recordings(case, answer), *unproven),
        tuple(filter(None, (*choice.notes, residual, clocks, role_in_words(case)))),
        case.coverage, answer.candidates, answer.to_decide, explanation_of(case, answer) if explain else None,
        answer.to_decide.ranks if isinstance(answer.to_decide, Remedy) else (),
        case.table is not None or any(o.on_gpu for o in case.ops.per_rank.values()), answer.cures,
        answer.network_parts, expert_waits(case, answer),
    )  # fmt: skip
