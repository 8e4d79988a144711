"""Which rank makes the job slow: from an ingested run to a finding, with its working.

`opened` reads a `case`, which holds the measurements and the step model, `expected` the excess of each rank over
comparable ranks. `hypotheses` price explanations by replaying the model, `decision` chooses one or leaves the answer
open, and `suspects` gives its path DP → PP → CP → TP.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

import numpy as np

from tracekit.analysis.slowrank.answers.compared_steps import without_odd_steps
from tracekit.analysis.slowrank.answers.expert_waits import expert_waits
from tracekit.analysis.slowrank.answers.harmless import role_in_words
from tracekit.analysis.slowrank.answers.network_parts import located
from tracekit.analysis.slowrank.decision.decide import concluded
from tracekit.analysis.slowrank.decision.gaps import widest_first
from tracekit.analysis.slowrank.evidence import Evidence, evidence_of
from tracekit.analysis.slowrank.gaps.evidence_gaps import bounds_of, least_ns, most_ns
from tracekit.analysis.slowrank.hypotheses.uneven_work import uneven_work
from tracekit.analysis.slowrank.mechanisms import refined, unlike_recordings
from tracekit.analysis.slowrank.picture import picture_of
from tracekit.analysis.slowrank.price import Price
from tracekit.analysis.slowrank.suspects import Answer, rows_named
from tracekit.case.case import Case
from tracekit.case.cures import beside_waits, likely_saved_ns
from tracekit.case.opened import (
    Order,
    Progress,
    Ranges,
    Sizes,
    enter,
    quality_of,
    ranks_of,
    read_ranks,
    stepped,
    with_hosts,
)
from tracekit.case.wording import Remedy, ranks_in_words
from tracekit.causes import NETWORK
from tracekit.errors import InputError, MeshUnknownError
from tracekit.findings import Quality, SlowRankFinding, StepsFinding, WhatIf
from tracekit.findings.picture import SlowRankPicture
from tracekit.findings.slowrank import Considered, EvidenceGap, Explanation, Outcome
from tracekit.inference.mesh.mesh_choice import MeshChoice, without_mesh
from tracekit.mesh.hardware import Hardware
from tracekit.placement import HostList, HostsFile
from tracekit.steps.recorded_windows import last_windows
from tracekit.store import Run
from tracekit.thresholds.report import RANKS_SHOWN
from tracekit.thresholds.slowrank import LITTLE_SHARE, MIN_LOST_SHARE
from tracekit.units import NS_PER_MS, NS_PER_US, ms


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
    del ranks  # the case holds their columns once
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


# The working of an answer: hypotheses with their intervals, gaps with what they could hide, the rule that decided. The
# functions of the decision measure everything, so that the table and the verdict cannot differ.


_RULES: Final = {
    "slow_rank": "the most expensive significant hypothesis is named if its lowest price reaches the threshold",
    "slow_link": "the most expensive significant hypothesis is named if its lowest price reaches the threshold",
    "imbalance": "a stage, the data or moving stalls cost more than any single rank, and no rank is slow by itself",
    "healthy": "no significant hypothesis costs as much as the threshold",
    "inconclusive": "a hypothesis or a gap may cost as much as the threshold, and its lowest price does not prove it",
}


def explanation_of(case: Case, answer: Answer) -> Explanation:
    """Return the working of `answer` about `case`; the same case and answer give the same table."""
    least = case.threshold_ns
    evidence = evidence_of(case)
    found = [*_ranks(evidence, answer), *_others(evidence, answer)]
    found.sort(key=lambda c: (-c.high_ms, c.kind, c.ranks))
    gaps = tuple(EvidenceGap(g.what, ms(g.could_hide), g.to_decide) for g in widest_first(evidence))
    decided = ", then ".join(rule.replace("_", " ") for rule in answer.rules)
    rule = (
        f"{_RULES[answer.verdict]} ({MIN_LOST_SHARE:.0%} of the step, {ms(least):.2f} ms); decided by the rule "
        f'"{decided}": {answer.reason}'
    )
    return Explanation(tuple(found), gaps, ms(least), rule)


def _ranks(measured: Evidence, answer: Answer) -> Iterator[Considered]:
    """The ranks with the largest excess or named in the answer, each alone, and the ranks that are slow together."""
    case, limit = measured.case, measured.case.found.limit
    excess = np.nan_to_num(case.found.mean, nan=-np.inf)
    longest = np.argsort(-excess, kind="stable")[:RANKS_SHOWN].tolist()
    for row in dict.fromkeys([*longest, *rows_named(case, answer)[:RANKS_SHOWN]]):
        if excess[row] > 0:
            rank, z = case.steps.ranks[row], float(np.nan_to_num(case.found.z[row]))
            price, subject = _priced(answer, rank) or _measured(case, row), "{} works longer than its peers"
            found = _considered(case, answer, "rank", subject, [rank], price, z=z, limit=limit)
            yield replace(found, longer_ms=ms(float(excess[row])))
    together = measured.slow
    if together is not None and len(together.rows) > 1:
        rows, ranks = np.array(together.rows), case.ranks_of(together.rows)
        each = [one for rank in ranks if (one := _priced(answer, rank)) is not None]
        best = answer.gain if set(ranks) == {s.rank for s in answer.suspects} else together.gain
        most = max([most_ns(case, rows), *(one.high for one in each)])  # a set costs what a member does
        price, subject = Price.between(least_ns(case, rows), best, most), "{} work longer than their peers"
        yield _considered(case, answer, "ranks", subject, ranks, price, z=max(together.z), limit=limit)


def _priced(answer: Answer, rank: int) -> Price | None:
    """The price of the work of `rank` in the answer; None where it has none."""
    ranks = answer.suspects if answer.verdict == "slow_rank" else answer.candidates
    found = next((s for s in ranks if s.rank == rank and s.cause != NETWORK), None)
    if found is None or found.lost_ms_low is None or found.lost_ms_high is None:
        return None
    return Price(*(v * NS_PER_MS for v in (found.lost_ms_low, found.lost_ms_per_step, found.lost_ms_high)))


def _measured(case: Case, row: int) -> Price:
    """The price of the rank in `row` alone."""
    rows = np.array([row])
    (bounds,) = bounds_of(case, rows).prices
    _, likely = beside_waits(case, rows, likely_saved_ns(case, rows))
    return Price.between(bounds.low, likely, bounds.high)


def _others(measured: Evidence, answer: Answer) -> Iterator[Considered]:
    """The hypotheses beside single ranks: a stage, a link, stalls in turn, uneven data, ranks without a trace."""
    case, unseen, always = measured.case, measured.unseen, bool(answer.suspects)
    considered = partial(_considered, case, answer)
    if (stage := measured.stage) is not None:
        subject, named = (
            f"the stage of {{}} {'is idle' if stage.idle else 'works'} longer",
            answer.blames_stage,
        )
        yield considered("stage", subject, case.ranks_of(stage.rows), stage.price, z=stage.z, named=named)
    if (lone := measured.lone) is not None:
        subject = f"{{}} is slow compared with ranks of other stages: {lone.comparison}"
        price = Price.exactly(lone.gain).widened(case.residual_ns)
        yield considered("rank", subject, case.ranks_of([lone.row]), price, z=lone.z)
    if (link := measured.link) is not None:
        subject = f"transfers at {{}} take {link.ratio:.1f} times as long as their peers'"
        named = answer.verdict == "slow_link"
        yield considered("link", subject, link.ranks, link.price, z=link.z, named=named)
    for kind, found in (("stalls in turn", measured.stalls), ("slow in turn", measured.moving)):
        if found is not None:
            subject = "{} work longer in turn"
            if found is measured.stalls:
                subject = f"hosts of {{}} stall {'at once' if found.together else 'in turn'}"
            price = Price.exactly(found.gain).widened(case.residual_ns)
            named = answer.verdict == "imbalance" and answer.gain == found.gain
            yield considered(kind, subject, case.ranks_of(found.rows), price, named=named)
    if (data := max(measured.data, measured.tokens)) > 0:
        subject, named = (
            "work follows the data, and the longest rank changes",
            answer.blames_data and not always,
        )
        yield considered("uneven data", subject, (), Price.exactly(data), named=named)
    if (more := uneven_work(case)) is not None:
        subject, named = "{} have more work than others of their stage", answer.blames_data and always
        yield considered("more work", subject, case.ranks_of(more.rows), more.price, z=more.z, named=named)
    if unseen.most > 0:
        subject = "the ranks read wait for {}, and there is no trace of these"
        price = Price.up_to(unseen.most, unseen.awaited)
        yield considered("ranks without a trace", subject, unseen.ranks, price, named=False)


def _considered(
    case: Case, answer: Answer, kind: str, subject: str, ranks: Sequence[int], price: Price, *,
    z: float | None = None, limit: float | None = None, named: bool | None = None,
) -> Considered:  # fmt: skip
    """A hypothesis with its outcome; `subject` holds `{}` for `ranks`.

    named: whether the answer is it, by default whether it blames `ranks`.
    """
    if named is None:
        named = answer.verdict == "slow_rank" and set(ranks) <= {s.rank for s in answer.suspects}
    least = case.threshold_ns
    outcome: Outcome = "not proven" if price.low < least else "not first"
    if named:
        outcome = "named"
    elif ranks and set(ranks) <= {s.rank for s in answer.candidates}:
        outcome = "candidate"
    elif price.high < least:
        outcome = "below the threshold"
    elif z is not None and limit is not None and z <= limit:
        outcome = "not significant"
    price_ms = ms(price.low), ms(price.best), ms(price.high)
    subject = subject.replace("{}", ranks_in_words(ranks))
    return Considered(kind, subject, tuple(ranks), None, z, limit, *price_ms, outcome)
