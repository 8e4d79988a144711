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
from tracekit.tables.clock import F64, common_collectives, line_through
from tracekit.tables.intervals import I64
from tracekit.tables.match import Operations
from tracekit.thresholds.slowrank import (
    ENDS_DRIFT,
    ENDS_LEAST,
    ENDS_MATCHED,
    ENDS_MISFIT,
    ENDS_SHIFTS,
    ENDS_TAIL,
    ENDS_TOGETHER,
    ENDS_WIDTH_NS,
    RANKS_LISTED,
)


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
    """Pairs of ranks whose common ends fit no line, and pairs whose ends fit one or are too few to tell.

    Only collectives whose group the traces name count: elsewhere the matching itself is a guess.
    """
    apart: list[tuple[int, int]] = []
    together: list[tuple[int, int]] = []
    both = common_collectives(ops)
    named = np.array([c.group >= 0 and not c.p2p for c in ops.channels] or [False])
    both = both[named[ops.channel[both[:, 0]]]]
    pairs, place = np.unique(ops.rank[both], axis=0, return_inverse=True)
    order = np.argsort(place.reshape(-1), kind="stable")
    bounds = np.searchsorted(place.reshape(-1)[order], np.arange(len(pairs) + 1))
    for number, (a, b) in enumerate(pairs.tolist()):
        mine = both[order[bounds[number] : bounds[number + 1]]]
        shortest = (ops.end - ops.start)[mine].min(axis=1)
        (apart if _misfit(ops.end[mine], float(np.median(shortest))) else together).append((a, b))
    return apart, together


def _misfit(ends: I64, shortest: float) -> bool:
    """Whether the ends on two ranks, shape (operations, 2), fit no line that two clocks could draw; ns.

    Operations that were numbered differently, because a window began elsewhere, fit after a shift: they are no proof.
    Members may leave one after the other, but hardly by more than the operation takes: `shortest` is the usual time of
    the member that came last.
    """
    if len(ends) < ENDS_LEAST:
        return False
    mine, theirs = (ends - ends[0]).astype(np.float64).T
    most = min(len(ends) - ENDS_LEAST, ENDS_SHIFTS)
    shifted = any(
        _fits(mine[max(-s, 0) : len(mine) - max(s, 0)], theirs[max(s, 0) : len(theirs) + min(s, 0)], shortest)
        for s in sorted(range(-most, most + 1), key=abs)
    )
    return not shifted and _coincide(mine, theirs, shortest) < ENDS_TOGETHER


def _coincide(mine: F64, theirs: F64, shortest: float) -> float:
    """The largest share of ends that meet an end of the other rank under one difference of the clocks.

    Operations that were paired wrongly, because some of one rank are lost, still meet their own ends. At most
    ENDS_MATCHED ends of each rank are compared.
    """
    mine, theirs = mine[:ENDS_MATCHED], theirs[:ENDS_MATCHED]
    difference = np.sort((theirs[:, None] - mine[None, :]).ravel())
    width = max(ENDS_WIDTH_NS, min(shortest, ENDS_MISFIT * float(np.median(np.diff(np.sort(mine))))))
    reach = np.searchsorted(difference, difference + width, side="right") - np.arange(len(difference))
    return float(reach.max()) / len(mine)


def _fits(mine: F64, theirs: F64, shortest: float) -> bool:
    """Whether the ends, shape (operations,), differ by a constant and a drift that clocks may have; ns."""
    shift, rate = line_through(theirs - mine, theirs)
    missed = float(np.median(np.abs(theirs - mine - shift - rate * theirs)))
    apart = float(np.median(np.diff(np.sort(theirs))))
    return abs(rate) <= ENDS_DRIFT and missed <= max(ENDS_MISFIT * apart, ENDS_TAIL * shortest)


def _shown(ranks: Sequence[int]) -> str:
    more = f" and {len(ranks) - RANKS_LISTED} more" if len(ranks) > RANKS_LISTED else ""
    return "ranks " + ", ".join(map(str, ranks[:RANKS_LISTED])) + more
