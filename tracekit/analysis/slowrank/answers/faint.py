"""An excess that is unlikely to be chance but not significant: it leaves the answer open instead of healthy."""

from dataclasses import replace

import numpy as np

from tracekit.analysis.slowrank.answers.open_answers import candidates_of, more_steps
from tracekit.analysis.slowrank.answers.stage_answers import (
    of_stage,
    stage_of,
)
from tracekit.analysis.slowrank.case import Case
from tracekit.analysis.slowrank.evidence import Evidence
from tracekit.analysis.slowrank.expected.nodes import nodes_of
from tracekit.analysis.slowrank.gaps.evidence_gaps import bounds_of, most_ns
from tracekit.analysis.slowrank.hypotheses.long_stage import faint_stage
from tracekit.analysis.slowrank.price import may_cost_ns
from tracekit.analysis.slowrank.suspects import Answer, left_open
from tracekit.analysis.slowrank.wording import ranks_in_words
from tracekit.step_graph.statistics import MAD_TO_SIGMA, confidence
from tracekit.thresholds.slowrank import CHANCE, MIN_LOST_SHARE, STAGE_TELLING_PEERS, Z_LIMIT
from tracekit.units import I64, ms


def excess_is_faint(e: Evidence) -> Answer | None:
    """The excess of a rank, a stage or a node is unlikely to be chance, but not significant."""
    return rank_is_faint(e.case) or stage_is_faint(e.case) or node_is_faint(e.case)


def rank_is_faint(case: Case) -> Answer | None:
    """Return the answer that names ranks with an excess that is unlikely to be chance; None where there are none."""
    z = np.nan_to_num(case.found.z, nan=0.0)
    sure = np.array([confidence(v, len(z)) for v in z.tolist()])
    hardly = (sure > 1.0 - CHANCE) & (z <= case.found.limit)
    longer = np.nan_to_num(case.found.mean, nan=0.0) > MIN_LOST_SHARE * case.step_ns
    rows = np.flatnonzero(hardly & longer)
    if len(case.steps.numbers) == 1 or not len(rows) or most_ns(case, rows) < MIN_LOST_SHARE * case.step_ns:
        return None
    found = bounds_of(case, rows)
    first = found.rows[0]
    reason = (
        f"rank {case.steps.ranks[first]} works {ms(float(case.found.mean[first])):.1f} ms of "
        f"{ms(case.step_ns):.1f} ms a step longer than its peers; with the noise of {len(case.steps.numbers)} steps "
        f"that is unlikely to be chance (z {z[first]:.1f}), but not proven (z {case.found.limit:.1f} needed)"
    )
    decide = f"{more_steps(case)} on every rank"
    return left_open(reason, decide, candidates_of(case, found))


def stage_is_faint(case: Case) -> Answer | None:
    """Return the open answer about a stage that may be too long; None where chance explains the longest one."""
    stage = faint_stage(case)
    if stage is None:
        return None
    reason = (
        f"pipeline stage {stage_of(case, stage)} works {ms(stage.over):.1f} ms of "
        f"{ms(case.step_ns):.1f} ms a step longer than the others, which costs {ms(stage.price.best):.1f} ms; with the "
        f"noise of {len(case.steps.numbers)} steps that is unlikely to be chance (z {stage.z:.1f}), but not proven "
        f"(z {Z_LIMIT:.1f} needed)"
    )
    decide = f"{more_steps(case)} on every rank"
    candidates = of_stage(case, stage)
    return left_open(reason, decide, candidates)


def node_is_faint(case: Case) -> Answer | None:
    """Return the answer that names the ranks of one node, which all work longer; None where no node may cost 2 %."""
    rows = faint_node(case)
    if rows is None:
        return None
    excess = float(case.found.mean[rows].sum())
    price = may_cost_ns(most_ns(case, rows), excess)
    if price < MIN_LOST_SHARE * case.step_ns:
        return None
    ranks = [case.steps.ranks[row] for row in rows.tolist()]
    reason = (
        f"{ranks_in_words(ranks)}, all on one node, work {ms(excess / len(rows)):.1f} ms of {ms(case.step_ns):.1f} ms "
        f"a step longer than their peers, each by too little to be reported; together they may cost {ms(price):.1f} ms"
    )
    decide = "record more steps, and look at what else runs on that node, its clocks and temperatures"
    found = [
        replace(c, lost_ms_low=0.0, lost_ms_high=ms(price))
        for c in candidates_of(case, bounds_of(case, rows))
    ]
    return left_open(reason, decide, tuple(found))


def faint_node(case: Case) -> I64 | None:
    """Return the rows of the node that exceeds the other nodes beyond chance and in every step; None without one."""
    nodes = nodes_of(case)
    members: dict[str | int, list[int]] = {}
    for row, rank in enumerate(case.steps.ranks):
        if rank in nodes and np.isfinite(case.found.mean[row]):
            members.setdefault(nodes[rank], []).append(row)
    groups = [np.array(rows, np.int64) for _, rows in sorted(members.items(), key=str) if len(rows) > 1]
    if len(groups) < STAGE_TELLING_PEERS or len(case.steps.numbers) < 2:
        return None
    worst = max(groups, key=lambda rows: float(case.found.mean[rows].mean()))
    others = np.concatenate([case.found.mean[rows] for rows in groups if rows is not worst])
    usual = float(np.median(others))
    noise = MAD_TO_SIGMA * float(np.median(np.abs(others - usual))) / np.sqrt(len(worst))
    over = float(case.found.mean[worst].mean()) - usual
    every = np.nanmean(case.found.value[worst], axis=0)
    return worst if over > Z_LIMIT * noise and (every > 0).all() else None
