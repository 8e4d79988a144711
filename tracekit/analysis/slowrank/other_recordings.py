"""Which ranks were recorded with the others, by the ends of the collectives that they share.

Members of a collective leave it together, so the ends on two ranks differ by their clocks alone: by a constant and a
slow drift. Two recordings of different jobs, or of different times of one job, agree in no such line, whatever their
clocks say; they are told apart without trusting any clock, and never compared.
"""

from collections import Counter, defaultdict
from collections.abc import Sequence

import numpy as np

from tracekit.disjoint_sets import DisjointSets
from tracekit.errors import InputError
from tracekit.tables.clock import common_ends, line_through
from tracekit.tables.match import Operations
from tracekit.thresholds import ENDS_LEAST, ENDS_MISFIT, RANKS_LISTED


def strangers(ops: Operations) -> tuple[int, ...]:
    """Ranks whose common operations do not end with those of most ranks, sorted; () where all were recorded together.

    Raises InputError where the ranks fall into several recordings and none of them holds most ranks.
    """
    apart, together = _judged(ops)
    if not apart:
        return ()
    linked = DisjointSets(ops.ranks)
    for a, b in together:
        linked.join(a, b)
    split = {r for pair in apart if linked.find(pair[0]) != linked.find(pair[1]) for r in pair}
    if not split:
        return ()
    recordings: dict[int, list[int]] = defaultdict(list)
    for rank in ops.ranks:
        recordings[linked.find(rank)].append(rank)
    suspicious = {linked.find(r) for r in split}
    sizes = Counter({root: len(ranks) for root, ranks in recordings.items() if root in suspicious})
    home, most = sizes.most_common(1)[0]
    others = [r for root in suspicious - {home} for r in recordings[root]]
    if most <= len(others):
        shown = "; ".join(_shown(recordings[root]) for root in sorted(suspicious)[:RANKS_LISTED])
        raise InputError(
            f"the ranks were not recorded together: collectives that they share do not end together ({shown}); "
            "give the files of one job, recorded at one time"
        )
    return tuple(sorted(others))


def _judged(ops: Operations) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """Pairs of ranks whose common ends fit no line, and pairs whose ends fit one or are too few to tell."""
    apart: list[tuple[int, int]] = []
    together: list[tuple[int, int]] = []
    origin = {r: int(ops.start[ops.first[r]]) if len(ops.per_rank[r].start) else 0 for r in ops.ranks}
    for pair, ends in sorted(common_ends(ops, origin, named=True).items()):
        (apart if _misfit(ends) else together).append(pair)
    return apart, together


def _misfit(ends: Sequence[tuple[int, int]]) -> bool:
    """Whether the ends on two ranks (ns) miss every common line by more than operations are apart."""
    if len(ends) < ENDS_LEAST:
        return False
    mine, theirs = np.array(ends, np.float64).T
    shift, rate = line_through(theirs - mine, theirs)
    missed = float(np.median(np.abs(theirs - mine - shift - rate * theirs)))
    apart = float(np.median(np.diff(np.sort(theirs))))
    return missed > ENDS_MISFIT * apart


def _shown(ranks: Sequence[int]) -> str:
    more = f" and {len(ranks) - RANKS_LISTED} more" if len(ranks) > RANKS_LISTED else ""
    return "ranks " + ", ".join(map(str, ranks[:RANKS_LISTED])) + more
