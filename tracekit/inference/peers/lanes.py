"""Messages with kernels that do not all end together, joined by their order on one stream of each of two ranks.

A send that went to a buffer ends before its receive is posted, or together with a receive that waited for it. On lanes
(one stream, one direction) of two ranks that carry the same messages, kernels that end together have a constant
distance in order, and no message is received before it was sent.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from tracekit.inference.peers.open_messages import BOTH, Link, OpenKernels
from tracekit.rank_events.operation_names import RECEIVES, SENDS
from tracekit.thresholds.tables import (
    BOTH_WAYS_SHARE,
    COMMON_ENDS_LEAST,
    COMMON_ENDS_SHARE,
    LANE_ENDS_SHARE,
    LANE_RIVAL,
    MAX_LANES,
)
from tracekit.units import I64


@dataclass(frozen=True)
class PairOfRanks:
    """The open kernels of two ranks that may exchange messages, on one clock, and its tolerance in ns."""

    one: OpenKernels
    two: OpenKernels
    tolerance: int


@dataclass(frozen=True)
class _Lanes:
    """A lane of each of two ranks, with the kernels that would carry the same messages."""

    ranks: tuple[int, int]
    lanes: tuple[int, int]
    score: float  # share of the messages with kernels that end together
    kernels: tuple[I64, I64]  # numbers on their ranks
    ways: I64  # of each message, as in Link

    @property
    def ends(self) -> set[tuple[int, int]]:
        """(rank, lane) of both."""
        return set(zip(self.ranks, self.lanes, strict=True))


def in_order(pairs: Sequence[PairOfRanks], taken: Collection[tuple[int, int]]) -> list[Link]:
    """Return the links between lanes of the `pairs` of ranks, without the `taken` lanes (rank, lane).

    A lane that fits two others nearly equally well stays open.
    """
    found = [lanes for pair in pairs for lanes in _of_pair(pair, taken)]
    found.sort(key=lambda f: (-f.score, f.ranks, f.lanes))
    links: list[Link] = []
    while found:
        best, rest = found[0], found[1:]
        rivals = [f for f in rest if f.ends & best.ends]
        if all(f.score <= LANE_RIVAL * best.score for f in rivals):
            each = zip(best.kernels[0].tolist(), best.kernels[1].tolist(), best.ways.tolist(), strict=True)
            links += [Link(best.ranks, (i, j), way) for i, j, way in each]
        found = [f for f in rest if not f.ends & best.ends]
    return links


def _of_pair(pair: PairOfRanks, taken: Collection[tuple[int, int]]) -> list[_Lanes]:
    """The lanes of both ranks that may carry the same messages."""
    mine, theirs = (
        [n for n in np.unique(k.lane).tolist() if (k.rank, n) not in taken] for k in (pair.one, pair.two)
    )
    if len(mine) > MAX_LANES or len(theirs) > MAX_LANES:
        return []
    found = (_matched(pair, u, v) for u in mine for v in theirs)
    return [lanes for lanes in found if lanes is not None]


def _matched(pair: PairOfRanks, u: int, v: int) -> _Lanes | None:
    """Return lane `u` of one rank beside lane `v` of the other; None if they cannot carry the same messages.

    If the kernels of messages end together, only the trace can show which end sent.
    """
    one, two = pair.one, pair.two
    i, j = np.flatnonzero(one.lane == u), np.flatnonzero(two.lane == v)
    own_way, other_way = int(one.way[i[0]]), int(two.way[j[0]])
    if BOTH in (own_way, other_way) or (own_way and own_way == other_way):
        return None
    ahead = _distance(one.end[i], two.end[j], pair.tolerance)
    if ahead is None:
        return None
    low, high = max(0, -ahead), min(len(i), len(j) - ahead)
    i, j = i[low:high], j[low + ahead : high + ahead]
    sizes = (one.nelems[i] == two.nelems[j]) | (one.nelems[i] < 0) | (two.nelems[j] < 0)
    if not sizes.all():
        return None
    known = own_way or -other_way
    together = np.abs(one.end[i] - two.end[j]) <= pair.tolerance
    sent = one.end[i] <= two.start[j] + pair.tolerance  # before the other rank asked for it
    received = two.end[j] <= one.start[i] + pair.tolerance
    score = float(together.mean())
    tried = [(way, sent if way == SENDS else received, LANE_ENDS_SHARE) for way in (SENDS, RECEIVES)]
    tried = [t for t in tried if t[0] == known] if known else [*tried, (0, sent | received, BOTH_WAYS_SHARE)]
    for way, buffered, least in tried:
        if score >= least and (together | buffered).mean() >= COMMON_ENDS_SHARE:
            ways = np.where(sent, SENDS, RECEIVES) if not way else np.full(len(i), way)
            ways = ways if known else np.where(together, 0, ways)
            return _Lanes((one.rank, two.rank), (u, v), score, (one.kernel[i], two.kernel[j]), ways)
    return None


def _distance(one: I64, two: I64, tolerance: int) -> int | None:
    """Return the shift in `two`, in places, of the kernels that end with those of `one` (ends, ns, sorted).

    None if too few end together, or at differing distances.
    """
    place = np.clip(np.searchsorted(two, one), 1, max(len(two) - 1, 1))
    nearest = np.where(one - two[place - 1] <= two[np.minimum(place, len(two) - 1)] - one, place - 1, place)
    nearest = np.minimum(nearest, len(two) - 1)
    together = np.flatnonzero(np.abs(two[nearest] - one) <= tolerance)
    if len(together) < COMMON_ENDS_LEAST:
        return None
    distances, counts = np.unique(nearest[together] - together, return_counts=True)
    most = int(np.argmax(counts))
    enough = counts[most] >= max(COMMON_ENDS_LEAST, COMMON_ENDS_SHARE * len(together))
    return int(distances[most]) if enough else None
