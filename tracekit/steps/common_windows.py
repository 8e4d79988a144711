"""Pairs up the windows of ranks that lack some: operations that ranks share lie in the same window."""

from collections import defaultdict
from itertools import pairwise

import numpy as np

from tracekit.disjoint_sets import DisjointSets
from tracekit.matching.match import Operations
from tracekit.rank_events.kernel_order import window_of
from tracekit.thresholds.tables import REPEATING_SHARE
from tracekit.units import I64


def common_windows(ops: Operations) -> dict[int, tuple[int, ...]] | None:
    """Return rank → the common number of each of its windows; None if shared operations do not show it in order.

    The windows of the rank with most windows are the common ones. Their order must agree on all ranks.
    """
    nodes = [(r, n) for r in ops.ranks for n in range(len(ops.per_rank[r].begins))]
    first = {r: nodes.index((r, 0)) for r in ops.ranks}
    parts = [first[r] + window_of(o.start, o.begins) for r, o in ((r, ops.per_rank[r]) for r in ops.ranks)]
    joined = _joined(ops, np.concatenate(parts), nodes)
    fullest = max(ops.ranks, key=lambda r: (len(ops.per_rank[r].begins), -r))
    most = len(ops.per_rank[fullest].begins)
    number = {joined.find(first[fullest] + n): n for n in range(most)}
    numbers = [number.get(joined.find(i)) for i in range(len(nodes))]
    known = [n for n in numbers if n is not None]
    if len(number) < most or len(known) < len(numbers):
        return None
    found = {r: tuple(known[at : at + len(ops.per_rank[r].begins)]) for r, at in first.items()}
    return found if all(a < b for mine in found.values() for a, b in pairwise(mine)) else None


def _joined(ops: Operations, node: I64, nodes: list[tuple[int, int]]) -> DisjointSets:
    """Return sets of equal windows (indices into `nodes`, `node` by operation), by most operations of two ranks."""
    rows = np.flatnonzero(ops.instance >= 0)
    rows = rows[np.argsort(ops.instance[rows], kind="stable")]
    one, two = rows[:-1], rows[1:]
    both = ops.instance[one] == ops.instance[two]
    pairs, often = np.unique(np.stack([node[one], node[two]], axis=1)[both], axis=0, return_counts=True)
    total: dict[tuple[int, int], int] = defaultdict(int)
    for (a, b), n in zip(pairs.tolist(), often.tolist(), strict=True):
        total[a, nodes[b][0]] += n
    sets = DisjointSets(range(len(nodes)))
    for (a, b), n in zip(pairs.tolist(), often.tolist(), strict=True):
        if n >= REPEATING_SHARE * total[a, nodes[b][0]]:
            sets.join(a, b)
    return sets
