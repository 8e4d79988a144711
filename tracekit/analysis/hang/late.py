"""Late ranks in dumps with timing: in a collective all leave together, so the shortest call came last.

Needs no clocks. Listed beside the verdict, never part of it: a slow rank is no hang. Used by `hang`.
"""

from collections import defaultdict

import numpy as np
from scipy.stats import binom

from tracekit.analysis.hang.groups import Group, synchronising
from tracekit.findings import Quality

_CALLS = 8
"""Fewer timed calls say nothing of a rank."""
_SHARE = 0.5
_CHANCE = 1e-3
"""Chance makes a member last in 1/size of the calls; so seldom may it do so as often as was seen, over all ranks."""


def late_ranks(groups: list[Group]) -> list[Quality]:
    """List every rank that came last in timed collectives often enough to matter, worst first."""
    lost: dict[int, float] = defaultdict(float)
    last: dict[int, int] = defaultdict(int)
    of: dict[int, int] = defaultdict(int)
    total: dict[int, float] = defaultdict(float)
    suffered: dict[int, float] = defaultdict(float)
    expected: dict[int, float] = defaultdict(float)
    for group in groups:
        rows = [r for r in group.rows.values() if len(r.tail.duration) and np.isfinite(r.tail.duration).any()]
        if len(rows) < max(2, len(group.ranks)):
            continue
        common = set.intersection(*({int(s) for s in r.tail.seq[np.isfinite(r.tail.duration)]} for r in rows))
        for seq in sorted(common):
            if not synchronising(rows[0].call(seq)):
                continue
            times = np.array([r.tail.duration[np.searchsorted(r.tail.seq, seq)] for r in rows])
            waited = (
                float(times.max() - times.min()) if len(rows) == 2 else float(np.median(times) - times.min())
            )
            late = rows[int(times.argmin())].rank
            lost[late] += waited
            last[late] += 1
            for row, time in zip(rows, times.tolist(), strict=True):
                of[row.rank] += 1
                total[row.rank] += waited
                expected[row.rank] += 1 / len(rows)
                suffered[row.rank] += time - float(times.min())
    found = []
    for rank in sorted(lost, key=lambda r: (-lost[r], r)):
        # who waited elsewhere as long as others waited for it has only passed the delay on
        own = lost[rank] - suffered[rank]
        chance = float(binom.sf(last[rank] - 1, of[rank], expected[rank] / of[rank])) * len(of)
        if of[rank] >= _CALLS and chance < _CHANCE and own > _SHARE * total[rank] > 0:
            detail = f"rank {rank} came last in {last[rank]} of {of[rank]} timed collectives"
            detail += f"; peers waited {lost[rank]:.1f} ms"
            found.append(Quality("late_rank", count=last[rank], detail=detail))
    return found
