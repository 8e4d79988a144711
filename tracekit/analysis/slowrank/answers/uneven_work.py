"""Answers that blame no rank: work is distributed unevenly, hosts stall in turn, or work varies without a known cause.

In any job noise makes one of many ranks the longest, which costs something. Chance lengthens single operations, and
averages out over a part of a step. Where whole parts are longer, on changing ranks, there is a cause, although none was
found: such a job is not called healthy. What one rank exceeds in all parts is not counted here.
"""

import numpy as np

from tracekit.analysis.slowrank.answers.compared_steps import slow_outside_steps
from tracekit.analysis.slowrank.answers.open_answers import more_steps, why_open
from tracekit.analysis.slowrank.answers.stage_answers import stages_in_words
from tracekit.analysis.slowrank.case import Case
from tracekit.analysis.slowrank.evidence import Evidence
from tracekit.analysis.slowrank.gaps.evidence_gaps import coverage, what_would_decide
from tracekit.analysis.slowrank.hypotheses.data_imbalance import dispersion
from tracekit.analysis.slowrank.hypotheses.dealt_price import dealt_bounds
from tracekit.analysis.slowrank.hypotheses.long_stage import LongStage
from tracekit.analysis.slowrank.hypotheses.moving_stalls import MovingStalls, cause_of
from tracekit.analysis.slowrank.hypotheses.suspect_work import only_attention
from tracekit.analysis.slowrank.price import everybody_ns, share_in_words
from tracekit.analysis.slowrank.suspects import Answer, imbalance, left_open
from tracekit.analysis.slowrank.wording import listed
from tracekit.step_graph.rank_timeline import RankTimeline
from tracekit.step_graph.statistics import spread
from tracekit.thresholds.slowrank import MIN_LOST_SHARE, RANKS_LISTED, UNEVEN_RATIO, Z_LIMIT
from tracekit.timing.measured import Rows
from tracekit.units import F64, ms


def blame_data(case: Case, gain: float, stage: LongStage | None = None) -> Answer:
    """The answer that uneven work costs `gain` (ns a step); a long `stage` costs less and is mentioned.

    For an operation table the price is that of typical work on all ranks, as for every imbalance.
    """
    whole = everybody_ns(case, gain)
    besides = {} if stage is None else {f"typical work on {stages_in_words(case, stage)}": stage.price.best}
    reason = (
        f"work is distributed unevenly and the longest rank changes: ranks wait {ms(whole):.1f} ms of "
        f"{ms(case.step_ns):.1f} ms a step, and no rank is slow throughout"
        f"{share_in_words(case, 'even work', gain, besides)}"
    )
    return imbalance(reason, whole)


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


def blame_stalls(case: Case, found: MovingStalls) -> Answer:
    """The answer that hosts stall in turn, with the longest ranks, or all data loaders are late, with the steps."""
    cause = cause_of(case, found)
    if found.together:
        late = [case.steps.numbers[c] for c in np.flatnonzero((found.over > 0).any(axis=0)).tolist()]
        reason = (
            f"the data loaders of all ranks are late in step {listed(late)}: {ms(found.gain):.1f} ms of "
            f"{ms(case.step_ns):.1f} ms a step; every rank waits for its own batch, so no single rank is slow"
        )
        return imbalance(reason, found.gain, cause)
    struck = int((found.over > 0).any(axis=0).sum())
    reason = (
        f"the hosts of {_longest_of(case, found)} stall in turn, in {struck} of {len(case.steps.numbers)} steps, and "
        f"the other ranks wait: {ms(found.gain):.1f} ms of {ms(case.step_ns):.1f} ms a step; the stalls move from rank "
        "to rank, so no single rank is slow"
    )
    return imbalance(reason, found.gain, cause)


def slow_in_turn(e: Evidence) -> Answer | None:
    """Ranks work longer in turn, each in few steps, so that no rank costs the threshold, and all together do."""
    case, found = e.case, e.moving
    if found is None:
        return None
    struck = int((found.over > 0).any(axis=0).sum())
    reason = (
        f"{_longest_of(case, found)} work longer than their peers in turn, in {struck} of {len(case.steps.numbers)} "
        f"steps, and the other ranks wait: {ms(found.gain):.1f} ms of {ms(case.step_ns):.1f} ms a step; the slowness "
        "moves from rank to rank, so no single rank is slow"
    )
    return imbalance(reason, found.gain, cause_of(case, found))


def _longest_of(case: Case, found: MovingStalls) -> str:
    """The ranks that `found` names, longest first, as many as a reason lists."""
    first = [case.steps.ranks[row] for row in found.rows[:RANKS_LISTED]]
    more = len(found.rows) - len(first)
    return f"rank {listed(first)}{f' and {more} more' if more else ''}"


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
