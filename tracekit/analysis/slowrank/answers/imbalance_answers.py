"""Answers that a long pipeline stage, uneven data or stalls in turn cost the step: blamed, or open."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from tracekit import findings
from tracekit.analysis.slowrank.gaps.evidence_gaps import what_would_decide, why_open
from tracekit.analysis.slowrank.hypotheses.candidates import Hypothesis, price
from tracekit.analysis.slowrank.hypotheses.long_stage import LongStage
from tracekit.analysis.slowrank.hypotheses.moving_stalls import MovingStalls, cause_of
from tracekit.analysis.slowrank.price import Price, everybody_ns, share_in_words, stage_doubt_ns
from tracekit.analysis.slowrank.suspects import Answer, blame, explain_rank, imbalance, left_open, suspect_of
from tracekit.case.case import Case
from tracekit.case.wording import first_in_words, listed, of_step, ranks_in_words
from tracekit.causes import CAUSES, DATALOADER, STAGE_IMBALANCE
from tracekit.expected.nodes import nodes_of
from tracekit.findings import Cause, Suspect
from tracekit.steps.medians import sampled
from tracekit.thresholds.slowrank import (
    CHANCE,
    MAJORITY,
    RANKS_LISTED,
    STAGE_TELLING_PEERS,
)
from tracekit.units import ms


def beside(case: Case, answer: Answer, found: LongStage | None) -> Answer:
    """`answer`, extended by the price of a long stage where it names other suspects."""
    if found is None or not answer.suspects:
        return answer
    long = f"{stages_in_words(case, found, 'has', 'have')} more work than the others"
    besides = f"in addition, {long}, which costs {ms(found.price.best):.1f} ms a step"
    return replace(answer, reason=f"{answer.reason}; {besides}")


def blame_stage(case: Case, found: LongStage, besides: str) -> Answer:
    """The answer that blames long stages, or the slow node that they make up; `besides` ends the reason."""
    ranks, stages = case.ranks_of(found.rows), _stages(case, found)
    mine, others = spent_ns(case, found)
    long = f"{stages_in_words(case, found, 'has', 'have')} more work than the others"
    of = " of compute" if found.by_compute else ""
    than = f"{ms(mine):.1f} ms{of} against {ms(others):.1f} ms a step"
    if mine < others:
        than += f", but {ms(found.over):.1f} ms more at the pace of the others and without communication beside it"
    node = node_of(case, found.rows)
    if node and len(stages) > 1 and not runs_more(case, found.rows):
        head = f"all ranks of {node} take longer ({than}), and they make up several whole stages: the node is slow, or"
        return _blame_node(case, found, f"{head} {long}, in an equal number of kernels{besides}")
    (row,) = CAUSES[STAGE_IMBALANCE].signs[0].rows
    named = listed(stages)
    what = f"compute of stage {named} a step" if found.by_compute else row.what.format(stage=named)
    evidence = (findings.Evidence(what, ms(mine), ms(others), "ms"),)
    cost = doubted(case, found)
    suspects = tuple(suspect_of(case, row, cost, found.z, STAGE_IMBALANCE, evidence) for row in found.rows)
    shared = f"; or {node} is slow: all these ranks run on it" if node else ""
    if found.pace:
        long = f"{stages_in_words(case, found, 'takes', 'take')} {found.pace:.2f} times as long as the others for the "
        long += "same kernels or operators, which more layers do not explain"
        text = f"its kernels take {found.pace:.2f} times as long as the same kernels of other stages"
        by_clock = (findings.Mechanism("clock", 1.0, text),) if case.on_gpu(found.rows[0]) else ()
        suspects = tuple(replace(s, mechanisms=by_clock) for s in suspects)
    reason = f"{long} ({than}); {_beside_each_other(case, ranks)}{shared}{besides}"
    return blame(case, reason, suspects, found.price.best, "imbalance")


def spent_ns(case: Case, found: LongStage) -> tuple[float, float]:
    """Return the mean own time of the stages `found` and the median of the other stages, ns a step; or compute."""
    spent, stages = case.computed if found.by_compute else case.steps.own, case.compared_stages
    levels = [float(np.nanmean(spent[g])) if np.isfinite(spent[g]).any() else np.nan for g in stages]
    mine = np.array([np.isin(found.rows, g).any() for g in stages])
    return float(np.nanmean(np.array(levels)[mine])), float(np.nanmedian(np.array(levels)[~mine]))


def _blame_node(case: Case, found: LongStage, reason: str) -> Answer:
    """The answer that blames all ranks of a node, which take longer than the ranks of other stages."""
    suspects, cost = [], doubted(case, found)
    for row in found.rows:
        why = explain_rank(case, row, found.rows, other_stages=True)
        suspects.append(suspect_of(case, row, cost, found.z, *why, every=True))
    return blame(case, reason, tuple(suspects), found.price.best)


def doubted(case: Case, stage: LongStage) -> Price:
    """The price of a stage, widened by the error of the replay and the differences of other stages."""
    price, rows = stage.price, np.array(stage.rows)
    low, high = price.low - stage_doubt_ns(case, rows, least=True), price.high + stage_doubt_ns(case, rows)
    return Price.between(low, price.best, high)


def _beside_each_other(case: Case, ranks: Sequence[int]) -> str:
    """The words on the ranks of a long stage among each other: few ranks cannot separate its work from their speed."""
    slow = sorted({case.steps.ranks[row] for row in case.significant(case.threshold_ns)} & set(ranks))
    if slow:
        return f"in addition, rank {listed(slow)} of it works longer than its peers"
    each = max(Counter(case.mesh.stage(rank) for rank in ranks).values())
    if each >= STAGE_TELLING_PEERS:
        return "no rank of it is slower than its peers"
    if each < len(ranks):
        few = "only two ranks do" if each > 1 else "no other rank does"
        return f"or {ranks_in_words(sorted(ranks))} are all slow: {few} the same work, so the traces cannot show which"
    if each > 1:
        both = " and ".join(map(str, sorted(ranks)))
        return f"or its ranks {both} are both slow: two ranks that do the same work cannot show which"
    alone = "no other rank does the same work, so the traces cannot show which"
    return f"or its rank {ranks[0]} is slow: {alone}"


def elsewhere(case: Case, stage: LongStage, slow: Hypothesis | None) -> str:
    """The words on ranks with an excess in other stages and its small price; empty where there are none.

    slow: the ranks that cost something.
    """
    rows = [r for r in case.significant(case.threshold_ns).tolist() if r not in stage.rows]
    if not rows:
        return ""
    cost = f"{ms(price(case, slow)):.1f} ms" if slow is not None else "nothing"
    work = "works" if len(rows) == 1 else "work up to"
    longer = f"{ms(float(case.found.mean[rows].max())):.1f} ms a step longer than peers"
    return f"; {ranks_in_words(case.ranks_of(rows))} {work} {longer}, which costs {cost} beside that"


def blame_loaders(case: Case, found: LongStage) -> Answer:
    """The answer that blames data loaders for a long stage, instead of its partition."""
    suspects, cost = [], doubted(case, found)
    for row in found.loaders:
        evidence = explain_rank(case, row, found.rows, other_stages=True).evidence
        suspects.append(suspect_of(case, row, cost, found.z, DATALOADER, evidence))
    named = ", ".join(str(s.rank) for s in suspects[:RANKS_LISTED])
    reason = f"rank {named} waits for its data loader, and the others wait for it: {ms(found.price.best):.1f} ms a step"
    return blame(case, reason, tuple(suspects), found.price.best)


def leave_stage_open(case: Case, stage: LongStage, why: str = "", decide: str = "") -> Answer:
    """The open answer about a long stage: what it may cost, why that is not known more exactly, and what would decide.

    why, decide: those of communication that was not matched, if not given.
    """
    reason = (
        f"{stages_in_words(case, stage, 'works', 'work')} {of_step(case, stage.over)} longer than the others; they "
        f"lose between {ms(stage.price.low):.1f} and {ms(stage.price.high):.1f} ms by it, because "
        f"{why or why_open(case)}"
    )
    return left_open(reason, decide or what_would_decide(case), of_stage(case, stage))


def of_stage(case: Case, stage: LongStage, cause: Cause = STAGE_IMBALANCE) -> tuple[Suspect, ...]:
    """The ranks of a stage as candidates, each with the price interval of the stage."""
    return tuple(suspect_of(case, row, stage.price, stage.z, cause, ()) for row in stage.rows)


def stages_in_words(case: Case, found: LongStage, of_one: str = "", of_several: str = "") -> str:
    """`pipeline stage 1`, or `pipeline stages 0, 1`, with the verb of one stage, or of several."""
    stages = _stages(case, found)
    many, verb = ("", of_one) if len(stages) == 1 else ("s", of_several)
    return f"pipeline stage{many} {listed(stages)} {verb}".rstrip()


def _stages(case: Case, found: LongStage) -> list[int]:
    """The indices of the stages in their program."""
    return sorted({case.mesh.of_program(rank).stage(rank) for rank in case.ranks_of(found.rows)})


def node_of(case: Case, rows: Sequence[int]) -> str | None:
    """Return the node with exactly `rows` as its recorded ranks; None where no node has them, or there is one node."""
    nodes = nodes_of(case)
    ranks = case.ranks_of(rows)
    mine = {nodes.get(rank) for rank in ranks}
    here = {rank for rank in case.steps.ranks if nodes.get(rank) in mine}
    several = len({nodes.get(rank) for rank in case.steps.ranks}) > 1
    if None in mine or len(mine) > 1 or here != set(ranks) or not several:
        return None
    (node,) = mine
    return f"node {node}" if isinstance(node, int) else f"host {node}"


def runs_more(case: Case, rows: Sequence[int]) -> bool:
    """Whether the ranks of `rows` run more kernels than other stages, by more than half of their relative excess.

    True as well where no kernels were recorded.
    """
    others = np.setdiff1d(np.arange(len(case.steps.ranks)), rows)
    mine, theirs = _kernels(case, list(rows)), _kernels(case, others.tolist())
    if not mine or not theirs:
        return True
    longer = float(np.nanmedian(case.steps.own[list(rows)]) / np.nanmedian(case.steps.own[others])) - 1.0
    return mine / theirs - 1.0 > MAJORITY * longer


def _kernels(case: Case, rows: Sequence[int]) -> float:
    """The median number of compute kernels a step on a sample of `rows`; 0 where none was recorded."""
    found = []
    for row in sampled(rows):
        if case.on_gpu(row):
            column = case.kernels(row).column
            found.append(float(np.median(np.bincount(column, minlength=len(case.steps.numbers)))))
    return float(np.median(found)) if found else 0.0


def blame_data(case: Case, gain: float, stage: LongStage | None = None) -> Answer:
    """The answer that uneven work costs `gain` (ns a step); a long `stage` costs less and is mentioned.

    For an operation table the price is that of typical work on all ranks, as for every imbalance.
    """
    whole = everybody_ns(case, gain)
    besides = {} if stage is None else {f"typical work on {stages_in_words(case, stage)}": stage.price.best}
    reason = (
        f"work is distributed unevenly and {_longest(case)}: ranks wait {of_step(case, whole)}, and no rank is slow "
        f"throughout{share_in_words(case, 'even work', gain, besides)}"
    )
    return imbalance(reason, whole)


def _longest(case: Case) -> str:
    """Where the longest rank of each step is: at one place of an axis, if that is no chance, or changing.

    Along an axis with other work at each index, as a pipeline's, ranks are not compared.
    """
    rows = np.nan_to_num(case.found.value, nan=-np.inf).argmax(axis=0).tolist()
    peers = [case.mesh.coords(case.steps.ranks[row]) for row in case.stage_of(rows[0])]
    for axis in peers[0]:
        places = {case.mesh.coords(case.steps.ranks[row])[axis] for row in rows}
        compared = len({coords[axis] for coords in peers})
        if len(places) == 1 and compared ** (1 - len(rows)) < CHANCE:
            return f"the longest rank of every step is at {axis} {places.pop()}"
    return "the longest rank changes"


def blame_in_turn(case: Case, found: MovingStalls, *, hosts: bool = True) -> Answer:
    """The answer that hosts stall, or ranks work longer, in turn; or that all data loaders are late, with the steps."""
    cost = f"{of_step(case, found.gain)}"
    struck = [case.steps.numbers[c] for c in np.flatnonzero((found.over > 0).any(axis=0)).tolist()]
    longest = first_in_words(case.ranks_of(found.rows), RANKS_LISTED)
    does, moves = f"{longest} work longer than their peers", "slowness moves"
    if hosts:
        does, moves = f"the hosts of {longest} stall", "stalls move"
    reason = (
        f"{does} in turn, in {len(struck)} of {len(case.steps.numbers)} steps, and the other ranks wait: {cost}; the "
        f"{moves} from rank to rank, so no single rank is slow"
    )
    if found.together:
        ranks = "all ranks" if len(found.rows) == len(case.steps.ranks) else longest
        reason = (
            f"the data loaders of {ranks} are late in step {listed(struck)}: {cost}; every rank waits for its own "
            "batch, so no single rank is slow"
        )
    return imbalance(reason, found.gain, cause_of(case, found))
