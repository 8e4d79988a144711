"""Long stages that make up all ranks of one node: the partition may be uneven, or the node slow.

A stage with more layers runs more kernels; on a slow node each kernel takes longer, or its host launches it later.
"""

from collections.abc import Sequence

import numpy as np

from tracekit.analysis.slowrank.case import Case
from tracekit.analysis.slowrank.expected.nodes import nodes_of
from tracekit.analysis.slowrank.expected.sampling import sampled
from tracekit.steps.step_kernels import kernels_in_steps
from tracekit.thresholds.slowrank import MAJORITY


def node_of(case: Case, rows: Sequence[int]) -> str | None:
    """Return the node with exactly `rows` as its recorded ranks; None where there is none, or it is the only node."""
    nodes = nodes_of(case)
    ranks = [case.steps.ranks[row] for row in rows]
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
        if case.ops.per_rank[case.steps.ranks[row]].on_gpu:
            column = kernels_in_steps(case.run, case.ops, case.steps, row).column
            found.append(float(np.median(np.bincount(column, minlength=len(case.steps.numbers)))))
    return float(np.median(found)) if found else 0.0
