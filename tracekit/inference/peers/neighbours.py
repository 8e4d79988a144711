"""Finds kernels of two ranks that carry the same message if nothing names the peer: kernels that end together.

Both kernels of a message that waits for its receiver end within microseconds of each other, on clocks that collectives
align. A message that went to a buffer ends with its receive only if that one waited; its order on the streams of both
ranks (tables.lanes) gives the rest. Kernels that end together by chance, or fit several partners, stay open.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from tracekit.inference.peers.clock_difference import clock_differences
from tracekit.inference.peers.directed_messages import Directed, directed_messages, with_peers
from tracekit.inference.peers.open_messages import BOTH, Link, OpenKernels
from tracekit.inference.peers.stream_order import PairOfRanks, in_order
from tracekit.matching.clock import Clocks
from tracekit.matching.match import Operations
from tracekit.rank_events.operation_names import RECEIVES, SENDS
from tracekit.rank_events.rank_ops import RankOps
from tracekit.rank_events.step_marks import NO_STEP
from tracekit.thresholds.tables import (
    BY_CHANCE,
    CANDIDATE_ENDS,
    COMMON_END_NS,
    COMMON_ENDS_LEAST,
    COMMON_ENDS_SHARE,
    LANE_MAJORITY,
    TWINS_SHARE,
)
from tracekit.units import I64, Mask


@dataclass(frozen=True)
class _Matches:
    """Matched or possible pairs of kernels; one entry a pair, kernels numbered over all ranks."""

    left: I64
    right: I64
    apart: I64  # ns between their ends

    def of(self, chosen: Mask) -> "_Matches":
        """Return the chosen pairs."""
        return _Matches(self.left[chosen], self.right[chosen], self.apart[chosen])


def linked(
    kernels: Mapping[int, OpenKernels], pairs: Iterable[tuple[int, int]], doubt_ns: float, *, sure: bool
) -> list[Link]:
    """Return links between the open `kernels` of the `pairs` of ranks that may exchange messages.

    `doubt_ns` is the error of the clocks, in addition to the time within which both kernels of a message end. Unless it
    is `sure` that the pairs are neighbours in a pipeline, two ranks with kernels that also start together are not: they
    are of one stage.
    """
    tolerance = round(COMMON_END_NS + doubt_ns)
    both = {(min(p), max(p)) for p in pairs if p[0] in kernels and p[1] in kernels and p[0] != p[1]}
    usable = [
        PairOfRanks(kernels[a], kernels[b].moved(shift), tolerance)
        for (a, b), shift in clock_differences(kernels, both, tolerance).items()
        if _by_chance(kernels[b], tolerance) <= BY_CHANCE
    ]
    usable = [pair for pair in usable if sure or not _twins(pair)]
    if not usable:
        return []
    everyone = _Everyone(kernels)
    parts = [everyone.near(pair) for pair in usable]
    pool = _Matches(*(np.concatenate([getattr(p, f) for p in parts]) for f in ("left", "right", "apart")))
    if not sure:
        pool = pool.of(~everyone.of_many(pool))
        if not len(pool.left):
            return []
    strays = ~everyone.faithful(pool, _closest(pool))
    found = _closest(replace(pool, apart=pool.apart + np.where(strays, 2 * tolerance, 0)))
    found = found.of(everyone.explained(found))
    taken = everyone.lanes_of(found)
    ordered = in_order(usable, taken)
    return [*everyone.links(found), *ordered]


def _by_chance(two: OpenKernels, tolerance: int) -> float:
    """Return the probability that a random moment falls within the tolerance of an end of `two`."""
    span = max(int(two.end[-1] - two.end[0]), 1)
    return float(1 - np.exp(-2 * tolerance * len(two.end) / span))


def _twins(pair: PairOfRanks) -> bool:
    """Whether most kernels of the first rank begin and end together with one of the second."""
    one, two = pair.one, pair.two
    place = np.clip(np.searchsorted(two.end, one.end), 1, max(len(two.end) - 1, 1))
    together = np.zeros(len(one.end), bool)
    for other in (place - 1, np.minimum(place, len(two.end) - 1)):
        begins = np.abs(two.start[other] - one.start) <= pair.tolerance
        together |= begins & (np.abs(two.end[other] - one.end) <= pair.tolerance)
    return float(together.mean()) > TWINS_SHARE


def _closest(pool: _Matches) -> _Matches:
    """Return the matches in which each kernel appears once: repeatedly the closest one for both kernels."""
    chosen: list[I64] = []
    order = np.lexsort((pool.right, pool.left, pool.apart))
    while len(order):
        ends = np.stack([pool.left[order], pool.right[order]], axis=1)
        first = (
            np.unique(ends, return_index=True)[1] // 2
        )  # of each kernel, the match that is the closest for it
        best = order[np.bincount(first, minlength=len(order)) == 2]
        chosen.append(best)
        gone = np.isin(ends, np.concatenate([pool.left[best], pool.right[best]])).any(axis=1)
        order = order[~gone]
    picked = np.concatenate(chosen) if chosen else order
    return _Matches(pool.left[picked], pool.right[picked], pool.apart[picked])


class _Everyone:
    """The open kernels of all ranks, concatenated."""

    def __init__(self, kernels: Mapping[int, OpenKernels]) -> None:
        self.ranks = sorted(kernels)
        counts = [len(kernels[r].end) for r in self.ranks]
        self._first = dict(zip(self.ranks, np.cumsum([0, *counts]).tolist(), strict=False))
        self._rank = np.repeat(np.array(self.ranks, np.int64), counts)
        every = [kernels[r] for r in self.ranks]
        self._kernel = np.concatenate([k.kernel for k in every])
        self._way = np.concatenate([k.way for k in every])
        begins = np.cumsum([0, *(int(k.lane.max()) + 1 for k in every)]).tolist()
        self._lane_begin = dict(zip(self.ranks, begins, strict=False))
        self._lane = np.concatenate([k.lane + begin for k, begin in zip(every, begins, strict=False)])

    def near(self, pair: PairOfRanks) -> _Matches:
        """Return the pairs of kernels that end within the tolerance and may carry the same message."""
        one, two = pair.one, pair.two
        place = np.searchsorted(two.end, one.end)
        parts = []
        for beside in range(-CANDIDATE_ENDS, CANDIDATE_ENDS):
            other = place + beside
            mine = np.flatnonzero((other >= 0) & (other < len(two.end)))
            other = other[mine]
            apart = np.abs(one.end[mine] - two.end[other])
            fits = (apart <= pair.tolerance) & _may_meet(one, two, mine, other)
            parts.append(np.stack([mine, other, apart])[:, fits])
        left, right, apart = np.concatenate(parts, axis=1)
        return _Matches(left + self._first[one.rank], right + self._first[two.rank], apart)

    def of_many(self, pool: _Matches) -> Mask:
        """Return whether each match touches a rank with mostly kernels that end with those of several ranks.

        An all-to-all does; its kernels have the name of a message's.
        """
        ends = np.stack([np.append(pool.left, pool.right), self._rank[np.append(pool.right, pool.left)]])
        kernel, others = np.unique(np.unique(ends, axis=1)[0], return_counts=True)
        kernels = np.bincount(np.searchsorted(self.ranks, self._rank))
        several = np.bincount(
            np.searchsorted(self.ranks, self._rank[kernel[others > 1]]), minlength=len(kernels)
        )
        many = several > TWINS_SHARE * kernels
        place = np.searchsorted(self.ranks, self._rank)
        return np.asarray(many[place[pool.left]] | many[place[pool.right]], bool)

    def faithful(self, pool: _Matches, found: _Matches) -> Mask:
        """Whether each match of `pool` joins lanes that most matches in `found` join.

        Where most messages of a lane go to one other lane, a kernel of a third lane that ends at the same moment is
        probably a coincidence.
        """
        lanes = np.stack([self._lane[found.left], self._lane[found.right]])
        joins, counts = np.unique(np.concatenate([lanes, lanes[::-1]], axis=1), axis=1, return_counts=True)
        total = np.bincount(joins[0], counts, int(self._lane.max()) + 1)
        partner = np.full(len(total), -1, np.int64)
        most = counts > LANE_MAJORITY * total[joins[0]]
        partner[joins[0][most]] = joins[1][most]
        left, right = self._lane[pool.left], self._lane[pool.right]
        keeps = [(partner[x] < 0) | (partner[x] == y) for x, y in ((left, right), (right, left))]
        return np.asarray(keeps[0] & keeps[1], bool)

    def explained(self, found: _Matches) -> Mask:
        """Return whether each match is on a lane with (nearly) all kernels matched.

        Kernels before the first match of a lane and after the last one may be outside the other rank's recording.
        """
        hit = np.zeros(len(self._lane), bool)
        hit[found.left] = hit[found.right] = True
        good = np.zeros(int(self._lane.max()) + 1, bool)
        order = np.argsort(self._lane, kind="stable")
        bounds = np.searchsorted(self._lane[order], np.arange(len(good) + 1))
        for lane in np.unique(self._lane[hit]):
            mine = order[bounds[lane] : bounds[lane + 1]]
            matched = np.flatnonzero(hit[mine])
            inside = matched[-1] + 1 - matched[0]
            good[lane] = (
                len(matched) >= COMMON_ENDS_LEAST
                and len(matched) >= COMMON_ENDS_SHARE * inside
                and 2 * inside >= len(mine)
            )
        left, right = self._lane[found.left], self._lane[found.right]
        _, place, joins = np.unique(np.stack([left, right]), axis=1, return_inverse=True, return_counts=True)
        repeated = joins[place.reshape(-1)] >= COMMON_ENDS_LEAST
        return np.asarray((good[left] & good[right]) | ((good[left] | good[right]) & repeated), bool)

    def lanes_of(self, found: _Matches) -> set[tuple[int, int]]:
        """Return (rank, lane) of every lane with at least half of the kernels matched."""
        count = int(self._lane.max()) + 1
        rows = np.concatenate([found.left, found.right])
        total, hit = np.bincount(self._lane, minlength=count), np.bincount(self._lane[rows], minlength=count)
        rank = np.zeros(count, np.int64)
        rank[self._lane] = self._rank
        lanes = np.flatnonzero(2 * hit >= total).tolist()
        return {(r, n - self._lane_begin[r]) for r, n in zip(rank[lanes].tolist(), lanes, strict=True)}

    def links(self, found: _Matches) -> list[Link]:
        """The matches as links."""
        links = []
        for i, j in zip(found.left.tolist(), found.right.tolist(), strict=True):
            own_way, other_way = int(self._way[i]), int(self._way[j])
            way = own_way or (other_way if other_way == BOTH else -other_way)
            ranks = int(self._rank[i]), int(self._rank[j])
            links.append(Link(ranks, (int(self._kernel[i]), int(self._kernel[j])), way))
        return links


def _may_meet(one: OpenKernels, two: OpenKernels, i: I64, j: I64) -> Mask:
    """Whether kernels `i` of one rank and `j` of the other may carry the same message: directions and sizes agree."""
    mine, theirs = one.way[i], two.way[j]
    ways = (mine == 0) | (theirs == 0) | (mine + theirs == 0) | ((mine == BOTH) & (theirs == BOTH))
    sizes = (one.nelems[i] == two.nelems[j]) | (one.nelems[i] < 0) | (two.nelems[j] < 0)
    single = np.isin(mine, (SENDS, RECEIVES)) & np.isin(theirs, (SENDS, RECEIVES))
    return np.asarray(ways & (sizes | ~single), bool)


# Peers of messages in a pipeline of two stages: a rank's only neighbour, if both ranks' orders fit each
# other.
#
# torch up to 2.4 records that a message was sent or received, but not its peer. Between two stages there is
# one answer.


def with_only_neighbours(
    ops: Operations, clocks: Clocks, lines: Iterable[tuple[int, ...]]
) -> tuple[list[RankOps], int]:
    """Return (operations of all ranks with the peers found, their number) along the `lines` of a pipeline's axis.

    On a line of two ranks a message goes to the other one, if in every step both ranks record the same messages: equal
    in number and size, none received before it was sent, the first one only received by one of them. In a ring of
    context parallel ranks every kernel sends and receives.
    """
    filled = dict(ops.per_rank)
    count = 0
    for line in sorted(lines):
        if len(line) != len((SENDS, RECEIVES)) or not set(line) <= set(filled):
            continue
        one, two = (directed_messages(filled[r], clocks) for r in line)
        same = clocks.island[line[0]] == clocks.island[line[1]]
        if not _fit(one, two, same_clock=same):
            continue
        for (own, peer), found in zip((line, line[::-1]), (one, two), strict=True):
            filled[own] = with_peers(filled[own], found.rows.tolist(), [peer] * len(found.rows))
            count += len(found.rows)
    return [filled[r] for r in ops.ranks], count


def _fit(one: Directed, two: Directed, *, same_clock: bool) -> bool:
    """Whether the messages of two ranks can be counterparts, in all steps that both recorded."""
    steps = np.intersect1d(one.step[one.step != NO_STEP], two.step[two.step != NO_STEP]).tolist()
    there, back = [], []
    for step in steps:
        sides = [(one.at(step, way), two.at(step, -way)) for way in (SENDS, RECEIVES)]
        if any(len(a) != len(b) or not _as_large(one.nelems[a], two.nelems[b]) for a, b in sides):
            return False
        if not _begun_by_one(one, two, step):
            return False
        there.append(one.start[sides[0][0]] - two.end[sides[0][1]])
        back.append(one.end[sides[1][0]] - two.start[sides[1][1]])
    if not steps or not sum(map(len, there)) or not sum(map(len, back)):
        return False
    # the clock of `two` may be set forward between these two bounds for no message to arrive before it was sent
    least, most = int(np.concatenate(there).max()), int(np.concatenate(back).min())
    if same_clock:
        return least <= COMMON_END_NS and most >= -COMMON_END_NS
    return least <= most + 2 * COMMON_END_NS


def _as_large(a: I64, b: I64) -> bool:
    """Whether message sizes agree wherever both are known."""
    return bool(((a == b) | (a < 0) | (b < 0)).all())


def _begun_by_one(one: Directed, two: Directed, step: int) -> bool:
    """Whether one rank sends with the first kernel of a step, and the other one only receives with its first."""
    mine, theirs = _first_ways(one, step), _first_ways(two, step)
    return (SENDS in mine and theirs == {RECEIVES}) or (SENDS in theirs and mine == {RECEIVES})


def _first_ways(messages: Directed, step: int) -> set[int]:
    """The directions of the messages of a step's first kernel."""
    here = np.flatnonzero(messages.step == step)
    return set(messages.way[here[messages.kernel[here] == messages.kernel[here[0]]]].tolist())
