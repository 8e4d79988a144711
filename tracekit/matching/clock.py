"""Offsets and drifts between the clocks of ranks, from the common ends of collectives, and their uncertainty.

Durations alone show which rank waited in a collective. Waits of messages need a common clock, and so does any view of
several ranks on one time line.
"""

from collections import defaultdict
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from tracekit.arrays import numbered_rows
from tracekit.disjoint_sets import DisjointSets
from tracekit.matching.match import Operations, message_ends
from tracekit.rank_events.operation_names import ROOTED
from tracekit.rank_events.step_marks import NO_STEP
from tracekit.thresholds.tables import (
    CLOCK_FIT_FROM,
    CLOCK_FIT_POINTS,
    CLOCK_LINE_FROM,
    CLOCK_LINE_SHARE,
    COMMON_END_NS,
    LARGEST_CORRECTION_NS,
    MAX_CLOCK_RATE,
    QUICKER_LINKS_PERCENTILE,
    WAITED_ENDS_LEAST,
    WAITED_ENDS_SPREADS,
    WIDE_TRIP,
)
from tracekit.units import F64, I64, Mask


@dataclass(frozen=True)
class Clocks:
    """The common time of a rank's time t is u − offset[r] − rate[r] · u with u = t − origin[r]; ns.

    Every rank counts from its own origin, so that clocks that differ by decades lose no digit. Ranks in one
    `island` are linked, by collectives or by messages both ways; between islands no offset is known.
    """

    offset: dict[int, float]
    rate: dict[int, float]
    island: dict[int, int]
    origin: dict[int, int]
    residual_ns: float  # median absolute difference of common ends after alignment
    doubt: dict[int, float] = field(default_factory=dict)  # of a rank that only messages link, ns
    exact: dict[int, int] = field(default_factory=dict)
    """The island of each rank if islands are linked by only as many collectives as the drift of a clock needs."""
    fitted: dict[int, int] = field(default_factory=dict)
    """The same without links by few collectives that happen to lie on the line of a drift."""

    def error_ns(self, one: int, other: int, span: float) -> float:
        """Return by how many ns times of two ranks of one island may be off each other, in a recording of `span` ns.

        0 where collectives link them; else their doubt, and the drift of a clock of unknown rate.
        """
        if self.exact.get(one) == self.exact.get(other):
            return 0.0
        usual = max(self.doubt.values(), default=0.0)
        return self.doubt.get(one, usual) + self.doubt.get(other, usual) + MAX_CLOCK_RATE * span

    def align(self, rank: int, times: I64) -> I64:
        """Return times of `rank` (ns) on the common clock of its island, counted from an arbitrary zero.

        Raises KeyError for an unknown rank.
        """
        since = times - self.origin[rank]
        correction = self.offset[rank] + self.rate[rank] * since.astype(np.float64)
        bounded = np.clip(
            np.rint(correction), -LARGEST_CORRECTION_NS, LARGEST_CORRECTION_NS
        )  # damaged times may ask for any correction
        return np.asarray(since - bounded.astype(np.int64), np.int64)


def aligned(ops: Operations, clocks: Clocks, times: I64) -> I64:
    """Return `times` (ns, one an operation of `ops`), each on the common clock of its rank's island."""
    result = np.zeros(len(ops.start), np.int64)
    for rank in ops.ranks:
        where = ops.of(rank)
        result[where] = clocks.align(rank, times[where])
    return result


def linked(ops: Operations, clocks: Clocks, sends: I64, receives: I64) -> Mask:
    """Whether the two ends of each message have a common clock."""
    at = ops.by_rank(np.array([clocks.island[rank] for rank in ops.ranks], np.int64))
    return np.asarray(at[sends] == at[receives], bool)


def align(ops: Operations) -> Clocks:
    """Return the clocks of all ranks, fitted along a spanning tree of the pairs that share most collectives."""
    origin = {r: int(ops.start[ops.first[r]]) if len(ops.per_rank[r].start) else 0 for r in ops.ranks}
    pairs = common_ends(ops, origin)
    edges = sorted(pairs, key=lambda e: (-len(pairs[e]), e))
    neighbours: dict[int, list[tuple[int, float, float, float]]] = defaultdict(list)
    linked, exact, fitted = (DisjointSets(ops.ranks) for _ in range(3))
    for a, b in edges:
        mine, theirs = pairs[a, b].astype(np.float64).T
        few = len(mine) < CLOCK_FIT_FROM
        if not few:
            fitted.join(a, b)
        if not few or (exact.find(a) != exact.find(b) and _on_a_line(theirs - mine, theirs)):
            exact.join(a, b)
            few = False
        if linked.join(a, b):
            shift, rate = line_through(theirs - mine, theirs, CLOCK_FIT_FROM if few else 0)
            lead = float(np.median(mine - theirs))
            neighbours[a].append((b, shift, rate, lead))
            neighbours[b].append((a, -shift + rate * lead, -rate, -lead))  # the same line, seen from there
    offset, rates, island = _walk(ops.ranks, neighbours)
    clocks = Clocks(offset, rates, island, origin, 0.0)
    _join_islands(ops, clocks)
    errors = [_errors(clocks, a, b, pairs[a, b].astype(np.float64).T) for a, b in edges]
    residual = float(np.median(np.concatenate(errors))) if errors else 0.0
    exactly, surely = ({r: sets.find(r) for r in ops.ranks} for sets in (exact, fitted))
    return Clocks(offset, rates, island, origin, residual, clocks.doubt, exactly, surely)


def _errors(clocks: Clocks, a: int, b: int, ends: F64) -> F64:
    """Return the absolute differences of common ends on the common clock, ns; `ends` has rows for `a` and `b`."""
    return np.asarray(
        np.abs(
            (ends[1] - clocks.offset[b] - clocks.rate[b] * ends[1])
            - (ends[0] - clocks.offset[a] - clocks.rate[a] * ends[0])
        )
    )


def _join_islands(ops: Operations, clocks: Clocks) -> None:
    """Link islands (often pipeline stages) by messages both ways; changes `clocks`.

    A message cannot arrive before it was sent. The least (arrival − sending) of the two directions therefore brackets
    the difference of the clocks, and if the quickest transfers are equal the difference lies in the middle, as in the
    network time protocol. Each pair of ranks gives one estimate, and the median of the pairs counts: one message that
    is paired with the wrong one is enough to mislead a pair. Pairs with messages that always waited, one way or both,
    leave wide brackets and do not count beside narrow ones.
    """
    ends = message_ends(ops)
    while True:
        delays = _message_delays(ops, clocks, *ends)
        linked: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
        for a, b in sorted(delays):
            if (b, a) in delays:
                linked[clocks.island[a], clocks.island[b]].append((a, b))
        if not linked:
            return
        weight = {e: sum(min(len(delays[a, b]), len(delays[b, a])) for a, b in p) for e, p in linked.items()}
        home, other = max(linked, key=lambda e: (weight[e], -e[0], -e[1]))
        bounds = np.array([(min(delays[p]), min(delays[p[::-1]])) for p in linked[home, other]])
        possible = bounds[bounds.sum(axis=1) >= -COMMON_END_NS]
        bounds = possible if len(possible) else bounds
        trips = bounds.sum(axis=1)
        trip = max(float(np.percentile(trips, QUICKER_LINKS_PERCENTILE)), 0.0)
        narrow = bounds[trips <= WIDE_TRIP * trip + COMMON_END_NS]
        # how far the other island's clock is ahead, within half the round trip
        gap = float(np.median(narrow[:, 0] - narrow[:, 1])) / 2
        for rank in [r for r, i in clocks.island.items() if i == other]:
            clocks.offset[rank] += gap
            clocks.doubt[rank] = clocks.doubt.get(rank, 0.0) + trip / 2
            clocks.island[rank] = home


def _message_delays(
    ops: Operations, clocks: Clocks, sends: I64, receives: I64
) -> dict[tuple[int, int], list[float]]:
    """Return (sender, receiver) → arrival minus sending of each message between islands, each on its own clock; ns.

    Messages outside whole steps count only for pairs without others, since they are easily mismatched at the rim of a
    recording.
    """
    start, end = aligned(ops, clocks, ops.start), aligned(ops, clocks, ops.end)
    whole = (ops.step[receives] > NO_STEP) & (ops.step[receives] == ops.step[sends])
    delays: dict[tuple[int, int], list[float]] = defaultdict(list)
    rim: dict[tuple[int, int], list[float]] = defaultdict(list)
    for receive, send, sure in zip(receives.tolist(), sends.tolist(), whole.tolist(), strict=True):
        a, b = int(ops.rank[send]), int(ops.rank[receive])
        if clocks.island[a] != clocks.island[b]:
            (delays if sure else rim)[a, b].append(float(end[receive] - start[send]))
    for pair, found in rim.items():
        delays.setdefault(pair, found)
    return delays


def common_ends(ops: Operations, origin: dict[int, int]) -> dict[tuple[int, int], I64]:
    """Return (rank, rank) → the ends of each collective of both, shape (collectives, 2), ns from their origins."""
    both = common_collectives(ops)
    ranks = ops.rank[both]
    both = both[np.lexsort((ranks[:, 1], ranks[:, 0]))]  # it keeps the order within a pair
    first = numbered_rows(*ops.rank[both].T)[0]
    found = ops.rank[both[first]]
    pairs: dict[tuple[int, int], I64] = {}
    for (one, two), mine in zip(found.tolist(), np.split(both, first[1:])[: len(found)], strict=True):
        ends = ops.end[mine] - np.array([origin[one], origin[two]])
        pairs[one, two] = ends[_agreeing(ends, ops.end[mine] - ops.start[mine])]
    return pairs


def _agreeing(ends: I64, took: I64) -> npt.NDArray[np.bool_]:
    """Whether each common end of two ranks agrees with the collectives in which one waited for the other.

    Only those show that both left together. Others, on a stream with a guessed group, may run in lockstep, apart.
    `ends` and `took` (durations, ns) have a row for each collective and a column for each rank.
    """
    waited = np.abs(took[:, 0] - took[:, 1]) > COMMON_END_NS
    if int(waited.sum()) < WAITED_ENDS_LEAST or waited.all():
        return np.ones(len(ends), bool)
    shift = ends[:, 1] - ends[:, 0]
    low, middle, high = np.percentile(shift[waited], [10, 50, 90])
    others = ~waited & (np.abs(shift - middle) > COMMON_END_NS + WAITED_ENDS_SPREADS * (high - low))
    return np.asarray(~others, bool)


def common_collectives(ops: Operations) -> I64:
    """Return pairs of operations of neighbouring members of a collective, shape (pairs, 2), the lower rank first.

    Exchanges count as well if their kernels were found to end together.
    """
    counts = ~ops.p2p[ops.channel] | ops.among(("send_recv",))
    rows = np.flatnonzero((ops.instance >= 0) & counts & ~ops.among(ROOTED))
    rows = rows[np.lexsort((ops.rank[rows], ops.instance[rows]))]
    together = ops.instance[rows[:-1]] == ops.instance[rows[1:]]
    return np.stack([rows[:-1][together], rows[1:][together]], axis=1)


def line_through(shift: F64, when: F64, least: int = CLOCK_FIT_FROM) -> tuple[float, float]:
    """Return a robust line (offset at zero, rate) through the differences of ends `shift` at the times `when`, ns.

    Fewer than `least` differences give rate 0.
    """
    middle = float(np.median(shift))
    if len(shift) < least or float(np.ptp(when)) <= 0:
        return middle, 0.0
    pick = np.linspace(0, len(shift) - 1, min(len(shift), CLOCK_FIT_POINTS)).astype(int)
    return _line(shift[pick] - middle, when[pick], middle)


def _on_a_line(shift: F64, when: F64) -> bool:
    """Whether a few differences of ends lie on the line of a drift that clocks may have, and on no constant; ns."""
    if len(shift) < CLOCK_LINE_FROM:
        return False
    begin, rate = line_through(shift, when, CLOCK_LINE_FROM)
    missed = float(np.abs(shift - begin - rate * when).max())
    spread = float(np.abs(shift - np.median(shift)).max())
    return abs(rate) <= MAX_CLOCK_RATE and missed <= CLOCK_LINE_SHARE * spread


def _line(shift: F64, when: F64, middle: float) -> tuple[float, float]:
    """Return Theil and Sen's line, with the median slope over all pairs: (offset at zero plus `middle`, rate).

    scipy's `theilslopes` gives the same line, but warns about its confidence interval where many points are equal.
    """
    run, rise = when[:, None] - when, shift[:, None] - shift
    apart = run > 0
    if not apart.any():
        return middle, 0.0
    rate = float(np.median(rise[apart] / run[apart]))
    return middle + float(np.median(shift) - rate * np.median(when)), rate


def _walk(
    ranks: tuple[int, ...], neighbours: dict[int, list[tuple[int, float, float, float]]]
) -> tuple[dict[int, float], dict[int, float], dict[int, int]]:
    """Return offset, rate and island of each rank; an island takes the clock of its first rank."""
    offset: dict[int, float] = {}
    rate: dict[int, float] = {}
    island: dict[int, int] = {}
    for root in ranks:
        if root in offset:
            continue
        offset[root], rate[root], island[root] = 0.0, 0.0, root
        todo = [root]
        while todo:
            here = todo.pop()
            for there, shift, drift, lead in neighbours[here]:
                if (
                    there not in offset
                ):  # u_here = u_there + lead, and u_there − u_here = shift + drift · u_there
                    offset[there] = offset[here] + shift + rate[here] * lead
                    rate[there] = rate[here] + drift
                    island[there] = root
                    todo.append(there)
    return offset, rate, island
