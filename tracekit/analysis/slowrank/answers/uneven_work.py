"""Answers that blame no rank: work is distributed unevenly, hosts stall in turn, or work varies without a known cause.

In any job noise makes one of many ranks the longest, which costs something. Chance lengthens single operations, and
averages out over a part of a step. Where whole parts are longer, on changing ranks, there is a cause, although none was
found: such a job is not called healthy. What one rank exceeds in all parts is not counted here.
"""

from dataclasses import replace

import numpy as np

from tracekit.analysis.slowrank.answers.compared_steps import slow_outside_steps
from tracekit.analysis.slowrank.answers.imbalance_answers import (
    blame_data,
    blame_in_turn,
    of_stage,
    stages_in_words,
)
from tracekit.analysis.slowrank.answers.open_answers import more_steps, why_open
from tracekit.analysis.slowrank.case import Case
from tracekit.analysis.slowrank.evidence import Evidence
from tracekit.analysis.slowrank.gaps.evidence_gaps import coverage, what_would_decide
from tracekit.analysis.slowrank.hypotheses.data_imbalance import dispersion
from tracekit.analysis.slowrank.hypotheses.dealt_price import dealt_bounds
from tracekit.analysis.slowrank.hypotheses.suspect_work import only_attention
from tracekit.analysis.slowrank.price import Price
from tracekit.analysis.slowrank.suspects import Answer, harmless, imbalance, left_open
from tracekit.analysis.slowrank.wording import listed
from tracekit.causes import CPU_LAUNCH, HOST_STALL
from tracekit.step_graph.rank_timeline import RankTimeline
from tracekit.step_graph.statistics import spread
from tracekit.thresholds.slowrank import MIN_LOST_SHARE, UNEVEN_RATIO, Z_LIMIT
from tracekit.timing.measured import Rows
from tracekit.units import F64, ms


def work_is_uneven(e: Evidence) -> Answer | None:
    """Work follows the data, so that the longest rank changes from step to step.

    One step cannot show a change; it counts only where nothing but attention is longer.
    """
    if e.tokens or not e.data:
        return None
    changes = e.only_step is None or only_attention(e.case, e.only_step.rows)
    return blame_data(e.case, e.data) if changes else None


def experts_get_uneven_tokens(e: Evidence) -> Answer | None:
    """The token counts of experts explain why ranks differ.

    They do not explain a rank that is slow in one step only or has an open price. A device that was slow outside the
    compared steps is reported first.
    """
    if not e.tokens or e.once_in_doubt or e.only_step is not None or e.undecided is not None:
        return None
    reason = (
        "tokens are distributed unevenly over experts: the work after all-to-alls follows the sizes that ranks "
        f"received, and ranks wait {ms(e.tokens):.1f} ms of {ms(e.case.step_ns):.1f} ms a step; no rank is slow for "
        "the tokens it received"
    )
    return slow_outside_steps(e) or imbalance(reason, e.tokens)


def slow_in_turn(e: Evidence) -> Answer | None:
    """Ranks work longer in turn, each in few steps, so that no rank costs the threshold, and all together do."""
    return blame_in_turn(e.case, e.moving, hosts=False) if e.moving is not None else None


def work_varies(e: Evidence) -> Answer | None:
    """Work varies between ranks by more than chance, and nothing that was recorded explains it."""
    case, lost = e.case, varied_ns(e.case)
    if lost < MIN_LOST_SHARE * case.step_ns:
        return None
    reason = (
        f"no rank, stage or link costs {MIN_LOST_SHARE:.0%} of the step, but typical work on all ranks would save "
        f"{ms(lost):.1f} ms of {ms(case.step_ns):.1f} ms a step more than chance explains: whole parts of steps are "
        "longer, on a different rank each time, and the recording does not show the cause"
    )
    decide = (
        f"{more_steps(case)}, with all ranks that work on the same data: uneven data makes all of them slower "
        "together, an intermittently slow device makes only one slower"
    )
    return left_open(reason, decide)


def data_may_cost(e: Evidence) -> Answer | None:
    """The interval of what uneven data costs reaches the threshold, and not all waits were matched."""
    case, dealt = e.case, dealt_bounds(e.case)
    if dealt.high < MIN_LOST_SHARE * case.step_ns or coverage(case).matched == 1:
        return None
    reason = (
        "work is distributed unevenly, because kernels vary together on all ranks that work on the same data; the cost "
        f"is between {ms(dealt.low):.1f} and {ms(dealt.high):.1f} ms of {ms(case.step_ns):.1f} ms a step and is not "
        f"known more exactly: {why_open(case)}"
    )
    return left_open(reason, what_would_decide(case))


def varied_ns(case: Case) -> float:
    """The time that a step saves if only chance varies between ranks that do the same work, ns; 0 if only it does.

    The model's error is subtracted, and single outlying parts are left out as accidents. Returns 0 for ranks on CPUs,
    because their threads get unequal shares of a processor.
    """
    model = case.timeline
    if model is None or not all(o.on_gpu for o in case.ops.per_rank.values()):
        return 0.0
    ratio = dispersion(case).ratio
    if ratio <= UNEVEN_RATIO:
        return 0.0
    cuts: dict[tuple[int, int], tuple[F64, F64]] = {}
    for n, (_, lines) in enumerate(model.runs):
        cuts |= {(n, row): found for row, found in _by_chance(lines, case.stages, ratio).items()}
    return max(model.recorded_ns - model.rescaled_ns(cuts) - case.residual_ns, 0.0)


def _by_chance(lines: tuple[RankTimeline, ...], stages: Rows, ratio: float) -> dict[int, tuple[F64, F64]]:
    """Row → (cuts of own time, a factor for each part) after which parts vary only as much as chance explains.

    Chance makes up 1 / `ratio` of the variance of whole parts.
    """
    by_row = {line.row: line for line in lines}
    found: dict[int, tuple[F64, F64]] = {}
    for stage in stages:
        rows = [row for row in stage.tolist() if row in by_row]
        if len(rows) < 2:
            continue
        took = np.stack([np.diff(by_row[row].blocks) for row in rows])
        usual = np.median(took, axis=0)
        lasting = (took - usual).sum(axis=1, keepdims=True) / max(float(usual.sum()), 1.0)
        off = took - usual * (1.0 + lasting)
        whim = np.abs(off) > Z_LIMIT * spread(off)
        wanted = took - np.where(whim, 0.0, off) * (1.0 - np.sqrt(1.0 / ratio))
        factor = np.maximum(wanted, 0.0) / np.maximum(took, 1.0)
        found |= {row: (by_row[row].blocks, f) for row, f in zip(rows, factor, strict=True)}
    return found


def stage_stands_still(e: Evidence) -> Answer | None:
    """The devices of a stage are idle between kernels for longer than those of other stages.

    That is healthy by design or with equal hosts, otherwise open.
    """
    if e.stage is None:
        return None
    case, stage = e.case, e.stage
    still = (
        f"the devices of {stages_in_words(case, stage)} are idle {ms(stage.over):.1f} ms of "
        f"{ms(case.step_ns):.1f} ms a step longer than other devices, waiting for launches from their hosts"
    )
    if stage.by_design:
        reason = (
            f"{still}: the processes of all its ranks pause equally, on every node, as if they loaded data"
        )
        return harmless(reason)
    if stage.paused:
        # the price of the stage scales all its work; without the pause, in its place, a step may save all of the pause
        price = Price.between(stage.price.low, stage.price.best, max(stage.price.high, stage.over))
        few = replace(stage, rows=stage.paused, price=price)
        named = listed([case.steps.ranks[row] for row in stage.paused])
        decide = "record its peers in the other replicas, and check what else that process does"
        reason = f"{still}, because the process of rank {named} pauses"
        return left_open(reason, decide, of_stage(case, few, HOST_STALL))
    if stage.hosts_alike:
        reason = (
            f"no rank, stage or link works {MIN_LOST_SHARE:.0%} of the step longer than its peers; {still}: the hosts "
            "of other stages are no faster, but run ahead while they wait"
        )
        return harmless(reason)
    reason = f"{still}, and its hosts are slower than theirs or were not recorded"
    decide = "record the host as well (ProfilerActivity.CPU), and profile the hosts of that stage"
    return left_open(reason, decide, of_stage(case, stage, CPU_LAUNCH))
