"""Work that varies between ranks by more than chance, without a known cause: such a job is not called healthy.

In any job noise makes one of many ranks the longest, which costs something. Chance lengthens single operations, and
averages out over a part of a step. Where whole parts are longer, on changing ranks, there is a cause, although none was
found. What one rank exceeds in all parts is not counted here: other rules look for it.
"""

import numpy as np

from tracekit.analysis.slowrank.answers.open_answers import why_open
from tracekit.analysis.slowrank.case import Case
from tracekit.analysis.slowrank.gaps.evidence_gaps import coverage, what_would_decide
from tracekit.analysis.slowrank.hypotheses.data_imbalance import dispersion
from tracekit.analysis.slowrank.hypotheses.dealt_price import dealt_bounds
from tracekit.analysis.slowrank.suspects import Answer, left_open
from tracekit.step_graph.rank_timeline import RankTimeline
from tracekit.step_graph.statistics import spread
from tracekit.steps.steps import F64
from tracekit.thresholds.slowrank import MIN_LOST_SHARE, UNEVEN_RATIO, Z_LIMIT
from tracekit.timing.measured import Rows
from tracekit.units import ms


def varied_answer(case: Case) -> Answer | None:
    """The answer that work varies without a known cause; None where typical work saves less than 2 % beyond chance."""
    lost = varied_ns(case)
    if lost < MIN_LOST_SHARE * case.step_ns:
        return None
    reason = (
        f"no rank, stage or link costs {MIN_LOST_SHARE:.0%} of the step, but typical work on all ranks would save "
        f"{ms(lost):.1f} ms of {ms(case.step_ns):.1f} ms a step more than chance explains: whole parts of steps are "
        "longer, on a different rank each time, and the recording does not show the cause"
    )
    decide = (
        "record ten steps or more, with all ranks that work on the same data: uneven data makes all of them slower "
        "together, an intermittently slow device makes only one slower"
    )
    return left_open(reason, decide)


def open_imbalance_answer(case: Case) -> Answer | None:
    """The open answer that uneven data may reach the threshold; None where it cannot, or all waits were matched."""
    dealt = dealt_bounds(case)
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
