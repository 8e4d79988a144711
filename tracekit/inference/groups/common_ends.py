"""Finds the ranks that leave their collectives together, without a common clock: they are members of one group.

Differences between the ends of members are constant, apart from the drift of clocks and the tail of a transfer. Ends of
different groups differ by the delays of their last ranks. Ranks that leave together without waiting prove nothing:
an operation shows that they belong together if one of them came last by far, because without it the others would have
left earlier.
"""

from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tracekit.disjoint_sets import DisjointSets
from tracekit.inference.groups.stream_sequences import UNTOLD_KINDS, StreamClass
from tracekit.thresholds.tables import (
    APART_QUANTILE,
    CLEARLY_APART,
    FAR_LONGER,
    LEAST_ENDS,
    LEAST_TAIL_NS,
    MOST_CLUSTERED,
    MOST_DRIFT,
    PROVING_LEAD,
    TAIL_NS,
    TOGETHER,
)
from tracekit.units import F64

Members = tuple[int, ...]


class Together:
    """Starts and ends of a class without the clocks' offsets and drifts."""

    def __init__(self, streams: StreamClass) -> None:
        self.row = {rank: i for i, rank in enumerate(streams.kept)}
        self.ends: F64 = streams.ends if streams.aligned else streams.ends @ _without_clock(streams.ends)
        self._lasted: F64 = streams.ends - streams.starts
        self.aligned = streams.aligned
        self._collective = UNTOLD_KINDS.isdisjoint(streams.kinds)
        self._clocks = ClockErrors(np.median(streams.ends, axis=0), streams.doubt, streams.drifts)
        self._exact_pairs = streams.exact_pairs

    def _rows(self, groups: Iterable[Members]) -> list[list[int]]:
        rows = [[self.row[r] for r in group if r in self.row] for group in groups]
        return [r for r in rows if len(r) > 1]

    def apart(self, groups: Iterable[Members]) -> float | None:
        """Return how far most ends of members are apart, ns, beyond the possible errors of their clocks.

        None if no group has two ranks, or the ends are too few to separate clocks of unknown rate.
        """
        rows = self._rows(groups)
        away = [self._clocks.taken_out(self.ends[r[1:]] - self.ends[r[0]]).ravel() for r in rows]
        if not away or not self._clocks.tell(self.ends.shape[1]):
            return None
        one, other = self._exact_pairs(rows)
        return max(most_apart(np.concatenate(away)), beyond_tail(self.ends[other] - self.ends[one]))

    def closest(self) -> float:
        """Return the distance between the ends of the two closest ranks, ns; infinite for a single rank."""
        if not 1 < len(self.row) <= MOST_CLUSTERED:
            return float("inf")
        apart = _pairwise(self.ends)
        np.fill_diagonal(apart, np.inf)
        return float(apart.min())

    def waited(self, groups: Iterable[Members]) -> float:
        """Return the delay of the last rank of a group after the one before it, in the clearer operations; ns."""
        found = arrivals(self._lasted, self._rows(groups), ()).lead
        return float(np.quantile(found, APART_QUANTILE)) if len(found) else 0.0

    def even(self, groups: Sequence[Members]) -> bool:
        """Return whether the last member of most groups takes not much longer than that of the fastest one.

        The last member waits for no rank if its group has no other members: then it takes as long as the transfer.
        """
        brief = np.sort([self._lasted[rows].min(axis=0) for rows in self._rows(groups)], axis=0)
        if len(brief) < len(("one", "other")):
            return True
        usual, least = np.median(brief[(len(brief) - 1) // 2]), np.median(brief[0])
        return bool(usual <= FAR_LONGER * max(least, TAIL_NS))

    def proven(self, groups: Sequence[Members]) -> bool:
        """Whether the members of `groups` waited for each other far longer than their ends differ."""
        ends = self.apart(groups)
        return ends is not None and self.waited(groups) >= PROVING_LEAD * max(ends, LEAST_TAIL_NS)

    def in_step(self) -> list[tuple[int, int]]:
        """Return pairs of ranks that come together to (nearly) all operations: end times cannot separate them."""
        if not 1 < len(self.row) <= MOST_CLUSTERED:
            return []
        ranks, together = list(self.row), _pairwise(self._lasted) <= TAIL_NS
        return [(ranks[i], ranks[j]) for i, j in np.argwhere(np.triu(together, 1)).tolist()]

    def wider(self, groups: Sequence[Members], finer: Sequence[Sequence[Members]]) -> bool:
        """Return whether `groups` are proven although the `finer` ones leave together too, as parts of any group do.

        Each finer group waited, as one, for the others of its group, or came with them: then no rank waits for the
        others, for either group, if it is known to be a collective: messages wait for other ranks. Without a common
        clock this is unknown.
        """
        apart = max(self.apart(groups) or 0.0, LEAST_TAIL_NS)
        rows = self._rows(groups)
        came = (arrivals(self._lasted, rows, self._rows(f)) for f in finer)
        return self.aligned and all(a.tell(apart, collective=self._collective) for a in came)


def most_apart(away: F64) -> float:
    """Return how far from zero most differences of ends are; 0 without one."""
    return float(np.quantile(np.abs(away), APART_QUANTILE)) if away.size else 0.0


def beyond_tail(away: F64) -> float:
    """Return `most_apart` of ends on exact clocks; 0 within the tail of a transfer, which a fitted clock shortens."""
    most = most_apart(away)
    return most if most > TAIL_NS else 0.0


class ClockErrors(NamedTuple):
    """The possible errors of a common clock: a constant between two ranks, or a line if their rates are unknown."""

    when: F64  # of each column, ns
    doubt: float  # ns
    drifts: bool

    def taken_out(self, away: F64) -> F64:
        """Return differences of ends (pairs × columns, ns) without the part that clock errors can explain.

        A clock of unknown rate may be off by more than the doubt at the middle of the recording, but at most by its
        largest drift over the recording.
        """
        bound, rest = self.doubt, away
        if self.drifts and away.shape[1] >= LEAST_ENDS:
            flat = np.asarray(away @ _without_clock(self.when[None, :]), np.float64)
            rest = flat + np.median(away - flat, axis=1, keepdims=True)
            bound += MOST_DRIFT * float(np.ptp(self.when))
        if bound == 0:
            return rest
        return np.asarray(rest - np.clip(np.median(rest, axis=1, keepdims=True), -bound, bound), np.float64)

    def of(self, columns: npt.NDArray[np.int64]) -> "ClockErrors":
        """Return the errors of some columns."""
        return self._replace(when=self.when[columns])

    def tell(self, columns: int) -> bool:
        """Return whether so many columns show more than clock errors may cause."""
        return not self.drifts or columns >= LEAST_ENDS


class Arrivals(NamedTuple):
    """How long units waited for the last one, ns; an entry a group and column."""

    lead: F64  # the shortest wait
    beside: F64  # the shortest wait of units that came before the last one; 0 where all came with it
    spread: F64  # the longest wait

    def tell(self, apart: float, *, collective: bool) -> bool:
        """Whether units waited far longer than their ends are `apart`, ns.

        To a `collective` some may come with the last unit, or all together.
        """
        if not len(self.lead):
            return False
        lead, beside, spread = (float(np.quantile(v, APART_QUANTILE)) for v in self)
        waited = beside if collective else lead
        return waited >= PROVING_LEAD * apart or (collective and spread <= TAIL_NS)


def arrivals(lasted: F64, groups: Sequence[list[int]], units: Sequence[list[int]]) -> Arrivals:
    """Return the arrivals of the units of `groups`.

    `lasted` holds the durations of operations, ranks × columns; groups and units are lists of its rows. A row in no
    unit is its own unit. A group that is one unit has no entry.
    """
    home = {row: n for n, unit in enumerate(units) for row in unit}
    waited = [np.zeros((3, 0))]
    for group in groups:
        parts: dict[int, list[int]] = {}
        for row in group:
            parts.setdefault(home.get(row, -1 - row), []).append(row)
        if len(parts) > 1:
            came = np.stack([lasted[rows].min(axis=0) for rows in parts.values()])
            after = np.sort(came, axis=0)[1:] - came.min(axis=0)
            late = np.where(after > TAIL_NS, after, after[-1]).min(axis=0)
            waited.append(np.stack([after[0], np.where(after[-1] > TAIL_NS, late, 0.0), after[-1]]))
    return Arrivals(*np.concatenate(waited, axis=1))


def _without_clock(ends: F64) -> F64:
    """Return the matrix (columns × columns) that projects offset and drift out of rows of times like `ends`."""
    when = np.median(ends, axis=0)
    spread = float(np.std(when)) or 1.0
    base = np.stack([np.ones(len(when)), (when - when.mean()) / spread], axis=1)
    return np.asarray(np.eye(len(when)) - base @ np.linalg.pinv(base), np.float64)


def choose(together: Together, ways: Sequence[Sequence[Members]]) -> int | None:
    """Return which of the `ways` to divide the ranks into groups the ends show; None if they leave it open.

    It is the coarsest way with members that leave together, if all other ways are clearly apart and its members waited
    for each other, or came together too: then no rank waits there, for any group.
    """
    ends = {i: e for i, way in enumerate(ways) if (e := together.apart(way)) is not None}
    if not ends:
        return None
    least = max(min(ends.values()), LEAST_TAIL_NS)
    close = [i for i, e in ends.items() if e <= TOGETHER * least]
    far = [i for i, e in ends.items() if e >= CLEARLY_APART * least]
    best = max(close, key=lambda i: max(len(g) for g in ways[i]))
    if together.aligned and ends[best] >= CLEARLY_APART * TAIL_NS:
        return None  # the ranks of the right way have no common clock
    home = {rank: n for n, group in enumerate(ways[best]) for rank in group}
    within = all(len({home.get(r) for r in group}) == 1 for i in close for group in ways[i])
    if len(close) + len(far) < len(ends) or not within or not together.even(ways[best]):
        return None
    finer = [ways[i] for i in close if i != best] or [()]
    return best if together.proven(ways[best]) or together.wider(ways[best], finer) else None


def choose_in_step(
    together: Together, ways: Sequence[Sequence[Members]], listed: Collection[int] = ()
) -> int | None:
    """Return which of the `ways` the ends show if ranks come in step, as ranks that another group holds together do.

    Ranks in step leave together for any group, and so do ways that differ only by them. The only one of these that
    files list is returned (`listed` ways), else the finest, if members of that waited for each other; None if the ends
    leave it open.
    """
    ends = {i: e for i, way in enumerate(ways) if (e := together.apart(way)) is not None}
    least = max(min(ends.values(), default=0.0), LEAST_TAIL_NS)
    close = [i for i, e in ends.items() if e <= TOGETHER * least]
    far = [i for i, e in ends.items() if e >= CLEARLY_APART * least]
    pairs = together.in_step()
    merged = {i: _merged(ways[i], pairs) for i in close}
    top = max(merged.values(), key=lambda m: max(map(len, m)), default=frozenset())
    widest = [i for i in close if merged[i] == top and all(len(g) < len(m) for g in ways[i] for m in top)]
    best = min(widest, key=lambda i: (max(map(len, ways[i])), i), default=None)
    if best is None or len(close) + len(far) < len(ends):
        return None
    nested = all(_within(m, top) for m in merged.values()) and all(
        _within(ways[best], ways[i]) for i in widest
    )
    if not (nested and together.proven(ways[best]) and together.even(ways[best])):
        return None
    named = [i for i in close if merged[i] == top and i in listed]
    return named[0] if len(named) == 1 else best


def _merged(way: Sequence[Members], pairs: Iterable[tuple[int, int]]) -> frozenset[Members]:
    """Return the groups of `way`, merged where one of the `pairs` of ranks connects two."""
    sets = DisjointSets(rank for group in way for rank in group)
    for one, other in [*pairs, *((group[0], rank) for group in way for rank in group)]:
        sets.join(one, other)
    merged: dict[int, list[int]] = {}
    for rank in sorted(rank for group in way for rank in group):
        merged.setdefault(sets.find(rank), []).append(rank)
    return frozenset(map(tuple, merged.values()))


def _within(finer: Iterable[Members], wider: Iterable[Members]) -> bool:
    """Whether each group of the `finer` division lies within one group of the `wider` division."""
    home = {rank: n for n, group in enumerate(wider) for rank in group}
    return all(len({home.get(rank) for rank in group}) == 1 for group in finer)


def clusters(together: Together) -> list[Members]:
    """Return the groups that the ends prove where the mesh is unknown; empty where they leave it open.

    Complete-linkage clustering joins groups, closest ends first, until the next ones are clearly apart.
    """
    from scipy.cluster.hierarchy import fcluster, linkage  # a tenth of a second that few inputs need
    from scipy.spatial.distance import squareform

    ranks = list(together.row)
    if not 1 < len(ranks) <= MOST_CLUSTERED:
        return []
    ends = _pairwise(together.ends)
    tree = linkage(squareform(ends, checks=False), "complete")
    heights = np.maximum(tree[:, 2], TAIL_NS)
    gaps = np.flatnonzero(heights[1:] >= CLEARLY_APART * heights[:-1])
    cut = float(tree[gaps[0], 2]) if len(gaps) else float(tree[-1, 2])
    label = fcluster(tree, cut, "distance")
    same = label[:, None] == label
    sizes = np.unique(np.unique(label, return_counts=True)[1])
    if len(sizes) > 1 or sizes[0] == 1:
        return []
    found = [tuple(r for r, n in zip(ranks, label, strict=True) if n == k) for k in np.unique(label)]
    alone = same.all() or ends[~same].min() >= CLEARLY_APART * max(float(ends[same].max()), LEAST_TAIL_NS)
    return found if alone and together.proven(found) else []


def _pairwise(times: F64) -> F64:
    """Return the distance between each two rows, as a quantile over their columns."""
    far = np.stack([np.quantile(np.abs(times - row), APART_QUANTILE, axis=1) for row in times])
    return np.asarray(np.maximum(far, far.T), np.float64)
