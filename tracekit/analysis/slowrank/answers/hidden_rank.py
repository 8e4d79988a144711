"""A rank that an imbalance hides: it causes most of what uneven data seems to cost, or its steady kernels are longer.

With uneven data, many ranks take turns in being the longest. A rank that stalls in one step, or is slow in a recording
of few steps, looks like one of them. Its price separates it: curing it alone saves most of the loss, which no single
rank of uneven data does.

Most kernels depend on the data, but some do not, such as the optimizer's: they take equally long on all healthy ranks,
and longer on a slow device in every step. A rank that is long in every step although these kernels take as long as on
its peers got more tokens for its experts, and its device is not slow.
"""

import numpy as np

from tracekit.analysis.slowrank.gaps.evidence_gaps import more_steps
from tracekit.analysis.slowrank.hypotheses.shared_documents import dealt_to_its_replica
from tracekit.analysis.slowrank.price import Price
from tracekit.analysis.slowrank.suspects import Answer, explained, imbalance, left_open
from tracekit.case.case import Case
from tracekit.case.cures import saved_ns
from tracekit.case.wording import of_step
from tracekit.causes import GPU_COMPUTE
from tracekit.expected.excess import typical
from tracekit.expected.same_kernels import same_kernels
from tracekit.steps.medians import of_rows
from tracekit.thresholds.slowrank import (
    FAR_MORE,
    MINOR,
    MOSTLY_ONE,
    PEERS_SAMPLED,
    RANKS_SAMPLED,
    STEADY_LEAST,
    USUAL_VARIATION,
)
from tracekit.units import F64, I64, ms


def with_most_of_it(case: Case, answer: Answer) -> Answer:
    """`answer`, or an open one that names a rank which costs more than what `answer` blames.

    `answer` may blame the data, although one rank causes most of their price. A rank with work explained by its tokens
    is not named; where `answer` blames a rank for the tokens of its experts, the data is blamed instead.
    """
    if dealt_to_experts(case, answer):
        gain = max(answer.gain, _levelled(case))
        reason = (
            "tokens are distributed unevenly over experts: ranks differ in every step, but kernels that do not depend "
            f"on the data take equally long on all; ranks wait {of_step(case, gain)}"
        )
        return imbalance(reason, gain)
    tokens = case.met.tokens.lost_ns >= case.threshold_ns
    if not answer.blames_data or answer.suspects or tokens:
        return answer
    over = np.maximum(np.nan_to_num(case.steps.own - typical(case.steps.own, case.met.peers)), 0.0)
    compared = np.concatenate([s for s in case.stages if len(s) >= STEADY_LEAST] or [np.zeros(0, np.int64)])
    longest = sorted(compared.tolist(), key=lambda row: (-over[row].sum(), row))[:PEERS_SAMPLED]
    alone = [row for row in longest if not dealt_to_its_replica(case, row)]
    prices = [(_saved(case, row, case.steps.own[row] - over[row]), row) for row in alone]
    lost, row = max(prices, default=(0.0, -1), key=lambda found: found[0])
    uneven = max(answer.gain, _levelled(case))  # to its peers' median, as the rank is cured
    if lost < max(MOSTLY_ONE * uneven, case.threshold_ns):
        return answer
    (candidate,) = explained(case, (row,), [Price.up_to(lost)], [0.0])
    at = int(np.argmax(over[row]))
    reason = (
        f"work is distributed unevenly and ranks wait {of_step(case, uneven)}, but {ms(lost):.1f} ms of that for rank "
        f"{candidate.rank} alone, which works {ms(float(over[row, at])):.1f} ms longer than its peers in step "
        f"{case.steps.numbers[at]}; with uneven data the longest rank changes from step to step"
    )
    decide = (
        f"{more_steps(case)}: the longest documents move to other ranks, a slow rank stays slow; compare rank "
        f"{candidate.rank} in step {case.steps.numbers[at]} with a peer (tracekit open shows both)"
    )
    return left_open(reason, decide, (candidate,))


def _levelled(case: Case) -> float:
    """The time that a step saves if every rank takes its peers' median time in each part of each step, ns."""
    return case.model.recorded_ns - case.model.levelled_ns(case.stages)


def _saved(case: Case, row: int, own: F64) -> float:
    """The time that a step saves if the rank in `row` has the `own` times (by step, ns), ns."""
    cured = case.steps.own.copy()
    cured[row] = own
    return saved_ns(case, np.array([row]), cured)


def with_hidden_rank(case: Case, answer: Answer) -> Answer:
    """`answer`; if it blames only the data, an open one that names a rank which is slow as well.

    Its price is the saving if all its own time is divided by the factor by which its steady kernels are longer.
    """
    if answer.verdict != "imbalance" or answer.suspects:
        return answer
    for rows in (stage for stage in case.stages if STEADY_LEAST <= len(stage) <= RANKS_SAMPLED):
        found = _longer(case, rows)
        if found is None:
            continue
        row, factor = found
        lost = _saved(case, row, case.steps.own[row] / factor)
        if lost < case.threshold_ns:
            continue
        (candidate,) = explained(case, (row,), [Price.up_to(lost, lost)], [0.0], every=True)
        reason = (
            f"work is distributed unevenly, which costs {of_step(case, answer.gain)}, but rank "
            f"{candidate.rank} seems slow as well: kernels that take equally long on its peers take {factor - 1:.0%} "
            f"longer on it in every step, which costs up to {ms(lost):.1f} ms"
        )
        decide = "swap this rank's host with another one, and check whether these kernels stay long on the same device"
        return left_open(reason, decide, (candidate,))
    return answer


def dealt_to_experts(case: Case, answer: Answer) -> bool:
    """Whether the suspects' excess comes from the tokens of their experts, by the evidence of their kernels.

    That is: the job exchanges tokens, other ranks deviate as much, and kernels that do not depend on data are not
    longer on the suspects.
    """
    by_compute = (answer.verdict, answer.cause) == ("slow_rank", GPU_COMPUTE)
    if not by_compute or not case.ops.among(("all_to_all",)).any():
        return False
    blamed = [case.steps.row(s.rank) for s in answer.suspects]
    for rows in (stage for stage in case.stages if set(blamed) <= set(stage.tolist())):
        over = _steady_excess(case, rows) if STEADY_LEAST <= len(rows) <= RANKS_SAMPLED else None
        off = np.abs(np.nan_to_num(case.found.mean[rows]))
        mine = np.isin(rows, blamed)
        if over is None or mine.all() or off[~mine].max() < off[mine].max():
            return False
        longer = case.found.mean[rows][mine] / of_rows(np.nanmean, case.steps.own[rows][mine])
        return bool((over[mine].mean(axis=1) < MINOR * longer).all())
    return False


def _longer(case: Case, rows: I64) -> tuple[int, float] | None:
    """(the row with longer steady kernels in every step, the factor); None where no single row is far from the rest."""
    over = _steady_excess(case, rows)
    if over is None:
        return None
    worst = int(np.argmax(over.min(axis=1)))
    others = np.abs(np.delete(over, worst, axis=0)).max()
    if over[worst].min() < max(FAR_MORE * others, USUAL_VARIATION):
        return None
    return int(rows[worst]), 1.0 + float(over[worst].mean())


def _steady_excess(case: Case, rows: I64) -> F64 | None:
    """The relative excess of the steady kernels, rows × steps; None where too few kernels are steady."""
    mine, many = rows.tolist(), len(case.steps.numbers)
    if not np.isfinite(case.steps.own[rows]).all() or many < 2 or not all(map(case.on_gpu, mine)):
        return None
    same = same_kernels([case.kernels(row) for row in mine], mine, many)
    if not same:
        return None
    took = np.concatenate([kernels.lasted for kernels in same.values()], axis=2)
    usual = np.median(took, axis=0)
    varied = np.median(np.abs(took / np.maximum(usual, 1.0) - 1.0), axis=0).max(axis=0, initial=0.0)
    steady = varied < USUAL_VARIATION
    if int(steady.sum()) < STEADY_LEAST:
        return None
    lasted = took[:, :, steady].sum(axis=2)
    return np.asarray(lasted / np.maximum(usual[:, steady].sum(axis=1), 1.0) - 1.0, np.float64)
