"""Clocks of the ranks of an operation table, aligned by operations that end on several ranks at once.

Members leave a collective together, and both ends of a message end when it has arrived. So the median difference of
the ends that two ranks share is the difference of their clocks. A table with clocks that agree stays as it is.
"""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from tracekit.disjoint_sets import DisjointSets
from tracekit.findings import Quality
from tracekit.ingest.operation_table.communication import Communication
from tracekit.ingest.operation_table.table import OperationTable
from tracekit.thresholds.ingest import CLOCK_GAIN
from tracekit.units import NS_PER_MS, NS_PER_US


@dataclass(frozen=True)
class _Link:
    """The link of two ranks: `later`, the lead of the second clock (ns), and the number of `ends` that show it."""

    later: float
    ends: int


def on_one_clock(
    table: OperationTable, found: Communication, label: str
) -> tuple[OperationTable, list[Quality]]:
    """Return the table with all starts on one clock, and a quality row with the difference of the clocks.

    label: the file. Unchanged where one constant a rank does not bring common ends nearer to each other.
    """
    links = _links(table, found)
    ahead = _along_tree(table.ranks, links)
    before = _miss(links, dict.fromkeys(ahead, 0.0))
    after = _miss(links, ahead)
    if not links or after >= CLOCK_GAIN * before:
        return table, []
    ranks = np.array(sorted(ahead), np.int64)
    shift = np.rint([ahead[r] for r in ranks.tolist()]).astype(np.int64)
    start = table.start - shift[np.searchsorted(ranks, table.rank)]
    if np.ptp(shift) < NS_PER_MS:
        return replace(table, start=start), []
    sentence = (
        f"clocks of ranks differ by up to {np.ptp(shift) / NS_PER_MS:.1f} ms; set to one by common ends of "
        f"collectives and messages, which then differ by {after / NS_PER_US:.1f} µs"
    )
    return replace(table, start=start), [Quality("clocks_aligned", label, int((shift != 0).sum()), sentence)]


def _links(table: OperationTable, found: Communication) -> dict[tuple[int, int], _Link]:
    """Return the links between neighbouring members of matched operations.

    Both directions of messages count equally, since one of them ends later.
    """
    channel = np.unique([k.channel for k in table.kinds], return_inverse=True)[1][table.kind]
    rows = np.flatnonzero(found.group >= 0)
    rows = rows[np.lexsort((table.rank[rows], found.seq[rows], found.group[rows]))]
    one, two = rows[:-1], rows[1:]
    meet = (found.group[one] == found.group[two]) & (found.seq[one] == found.seq[two])
    one, two = one[meet], two[meet]
    end = table.start + table.dur
    order = np.lexsort((channel[one], table.rank[two], table.rank[one]))
    one, two = one[order], two[order]
    keys = np.stack([table.rank[one], table.rank[two], channel[one]], axis=1)
    cuts = np.flatnonzero((np.diff(keys, axis=0) != 0).any(axis=1)) + 1
    later: dict[tuple[int, int], list[tuple[float, int]]] = defaultdict(list)
    for a, b in zip(np.split(one, cuts), np.split(two, cuts), strict=True):
        if len(a):
            pair = int(table.rank[a[0]]), int(table.rank[b[0]])
            later[pair].append((float(np.median(end[b] - end[a])), len(a)))
    return {p: _Link(float(np.mean([v for v, _ in s])), sum(n for _, n in s)) for p, s in later.items()}


def _along_tree(ranks: list[int], links: Mapping[tuple[int, int], _Link]) -> dict[int, float]:
    """Return the lead of each rank's clock over that of the first rank it is linked with, ns.

    The links with the most ends make the tree.
    """
    joined, beside = DisjointSets(ranks), defaultdict(list)
    for a, b in sorted(links, key=lambda pair: (-links[pair].ends, pair)):
        if joined.join(a, b):
            beside[a].append((b, links[a, b].later))
            beside[b].append((a, -links[a, b].later))
    ahead: dict[int, float] = {}
    for root in ranks:
        todo = [] if root in ahead else [root]
        ahead.setdefault(root, 0.0)
        while todo:
            here = todo.pop()
            for there, later in beside[here]:
                if there not in ahead:
                    ahead[there] = ahead[here] + later
                    todo.append(there)
    return ahead


def _miss(links: Mapping[tuple[int, int], _Link], ahead: Mapping[int, float]) -> float:
    """Return the mean over the links of the remaining clock difference, ns; 0 without any link."""
    left = [abs(link.later - ahead[b] + ahead[a]) for (a, b), link in links.items()]
    return float(np.mean(left)) if left else 0.0
