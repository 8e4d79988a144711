"""Answers that blame no rank: work is distributed unevenly, or the hosts stall in turn."""

import numpy as np

from tracekit.analysis.slowrank.answers.stage_answers import stages_in_words
from tracekit.analysis.slowrank.case import Case
from tracekit.analysis.slowrank.hypotheses.long_stage import LongStage
from tracekit.analysis.slowrank.hypotheses.moving_stalls import MovingStalls, cause_of
from tracekit.analysis.slowrank.hypotheses.table_shares import everybody_ns, share_in_words
from tracekit.analysis.slowrank.suspects import Answer
from tracekit.analysis.slowrank.wording import listed
from tracekit.thresholds.stalls import RANKS_EXPLAINED
from tracekit.units import ms


def uneven_answer(case: Case, gain: float, stage: LongStage | None = None) -> Answer:
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
    return Answer("imbalance", "data_imbalance", reason, gain=whole)


def uneven_tokens_answer(case: Case, gain: float) -> Answer:
    """The answer that experts got uneven numbers of tokens, which costs `gain` (ns a step)."""
    reason = (
        "tokens are distributed unevenly over experts: the work after all-to-alls follows the sizes that ranks "
        f"received, and ranks wait {ms(gain):.1f} ms of {ms(case.step_ns):.1f} ms a step; no rank is slow for the "
        "tokens it received"
    )
    return Answer("imbalance", "data_imbalance", reason, gain=gain)


def uneven_experts_answer(case: Case, gain: float) -> Answer:
    """The answer that experts got uneven numbers of tokens, by kernels alone, which costs `gain` (ns a step)."""
    reason = (
        "tokens are distributed unevenly over experts: ranks differ in every step, but kernels that do not depend on "
        f"the data take equally long on all; ranks wait {ms(gain):.1f} ms of {ms(case.step_ns):.1f} ms a step"
    )
    return Answer("imbalance", "data_imbalance", reason, gain=gain)


def moving_stalls_answer(case: Case, found: MovingStalls) -> Answer:
    """The answer that hosts stall in turn, with the longest ranks, or all data loaders are late, with the steps."""
    cause = cause_of(case, found)
    if found.together:
        late = [case.steps.numbers[c] for c in np.flatnonzero((found.over > 0).any(axis=0)).tolist()]
        reason = (
            f"the data loaders of all ranks are late in step {listed(late)}: {ms(found.gain):.1f} ms of "
            f"{ms(case.step_ns):.1f} ms a step; every rank waits for its own batch, so no single rank is slow"
        )
        return Answer("imbalance", cause, reason, gain=found.gain)
    rows = found.rows
    first = [case.steps.ranks[row] for row in rows[:RANKS_EXPLAINED]]
    others = f" and {len(rows) - len(first)} more" if len(rows) > len(first) else ""
    struck = int((found.over > 0).any(axis=0).sum())
    reason = (
        f"the hosts of rank {listed(first)}{others} stall in turn, in {struck} of {len(case.steps.numbers)} steps, and "
        f"the other ranks wait: {ms(found.gain):.1f} ms of {ms(case.step_ns):.1f} ms a step; the stalls move from rank "
        "to rank, so no single rank is slow"
    )
    return Answer("imbalance", cause, reason, gain=found.gain)
