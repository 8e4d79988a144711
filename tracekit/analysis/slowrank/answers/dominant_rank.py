"""One rank causes most of what looks like an imbalance or the fault of another, but is not proven to be slow.

With uneven data, many ranks take turns in being the longest. A rank that stalls in one step, or is slow in a recording
of few steps, looks like one of them. Its price separates it: curing it alone saves most of the loss, which no single
rank of uneven data does.
"""

from dataclasses import replace

import numpy as np

from tracekit.analysis.slowrank.answers.open_answers import leave_one_step_open, more_steps
from tracekit.analysis.slowrank.answers.steady_work import dealt_to_experts
from tracekit.analysis.slowrank.case import Case
from tracekit.analysis.slowrank.expected.excess import typical
from tracekit.analysis.slowrank.gaps.recurrence import in_one_step, others_prove_health
from tracekit.analysis.slowrank.hypotheses.candidates import saved_ns
from tracekit.analysis.slowrank.price import Price
from tracekit.analysis.slowrank.suspects import Answer, explain_rank, imbalance, left_open, suspect_of
from tracekit.thresholds.slowrank import MIN_LOST_SHARE, MOSTLY_ONE, PEERS_SAMPLED, STEADY_LEAST
from tracekit.units import F64, ms


def with_most_of_it(case: Case, answer: Answer) -> Answer:
    """`answer`, or an open one that names a rank which costs more than what `answer` blames.

    `answer` may blame the data, although one rank causes most of their price, or a stage or a link that costs less than
    one step of a rank. A rank with work explained by its tokens is not named; where `answer` blames a rank for the
    tokens of its experts, the data is blamed instead.
    """
    if dealt_to_experts(case, answer):
        return _blame_experts(case, max(answer.gain, _levelled(case)))
    if answer.verdict == "slow_link" or answer.blames_stage:
        return _with_dearer_step(case, answer)
    tokens = case.met.tokens.lost_ns >= MIN_LOST_SHARE * case.step_ns
    if not answer.blames_data or answer.suspects or tokens:
        return answer
    over = np.maximum(np.nan_to_num(case.steps.own - typical(case.steps.own, case.stages)), 0.0)
    compared = np.concatenate([s for s in case.stages if len(s) >= STEADY_LEAST] or [np.zeros(0, np.int64)])
    longest = sorted(compared.tolist(), key=lambda row: (-over[row].sum(), row))[:PEERS_SAMPLED]
    prices = [(_saved(case, row, over), row) for row in longest]
    lost, row = max(prices, default=(0.0, -1), key=lambda found: found[0])
    uneven = max(answer.gain, _levelled(case))  # to its peers' median, as the rank is cured
    dear = lost >= max(MOSTLY_ONE * uneven, MIN_LOST_SHARE * case.step_ns)
    return _leave_open(case, row, lost, uneven, over[row]) if dear else answer


def _blame_experts(case: Case, gain: float) -> Answer:
    """The answer that experts got uneven numbers of tokens, by kernels alone, which costs `gain` (ns a step)."""
    reason = (
        "tokens are distributed unevenly over experts: ranks differ in every step, but kernels that do not depend on "
        f"the data take equally long on all; ranks wait {ms(gain):.1f} ms of {ms(case.step_ns):.1f} ms a step"
    )
    return imbalance(reason, gain)


def _levelled(case: Case) -> float:
    """The time that a step saves if every rank takes its peers' median time in each part of each step, ns."""
    return case.model.recorded_ns - case.model.levelled_ns(case.stages)


def _with_dearer_step(case: Case, answer: Answer) -> Answer:
    """`answer`, or an open one that names a rank with one long step that costs more and may recur."""
    once = in_one_step(case)
    if not answer.suspects or once is None or once.gain <= answer.gain or others_prove_health(case, once):
        return answer
    open_ = leave_one_step_open(case, once)
    besides = f"{open_.reason}; another {ms(answer.gain):.1f} ms a step are lost elsewhere: {answer.reason}"
    return replace(open_, reason=besides)


def _saved(case: Case, row: int, over: F64) -> float:
    """The time that a step saves if the rank in `row` works like its peers wherever it works longer, ns."""
    cured = case.steps.own.copy()
    cured[row] -= over[row]
    return saved_ns(case, np.array([row]), cured)


def _leave_open(case: Case, row: int, lost: float, uneven: float, over: F64) -> Answer:
    """The open answer: the rank in `row` causes `lost` of the `uneven` ns a step; `over` is its excess by step, ns."""
    cause, evidence = explain_rank(case, row, (row,))
    candidate = suspect_of(case, row, Price.up_to(lost), 0.0, cause, evidence)
    at = int(np.argmax(over))
    reason = (
        f"work is distributed unevenly and ranks wait {ms(uneven):.1f} ms of {ms(case.step_ns):.1f} ms a step, but "
        f"{ms(lost):.1f} ms of that for rank {candidate.rank} alone, "
        f"which works {ms(float(over[at])):.1f} ms longer than its peers in step {case.steps.numbers[at]}; with uneven "
        "data the longest rank changes from step to step"
    )
    decide = (
        f"{more_steps(case)}: the longest documents move to other ranks, a slow rank stays slow; compare rank "
        f"{candidate.rank} in step {case.steps.numbers[at]} with a peer (tracekit open shows both)"
    )
    return left_open(reason, decide, (candidate,))
