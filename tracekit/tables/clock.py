"""Offsets and drifts between the clocks of ranks, from the common ends of collectives; how far to trust them.

Who waited in a collective needs no common clock (durations suffice). Point-to-point waits do, and so does any view
of several ranks on one time line.
"""

from collections import defaultdict
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from tracekit.disjoint_sets import DisjointSets
from tracekit.tables.intervals import I64
from tracekit.tables.match import Operations
from tracekit.tables.operations import NO_STEP, ROOTED

F64 = npt.NDArray[np.float64]

_FIT_FROM = 12
"""Common collectives from which a drift is fitted; fewer give an offset only."""
_FIT_POINTS = 240


@dataclass(frozen=True)
class Clocks:
    """The common time of a rank's time t is u − offset[r] − rate[r] · u with u = t − origin[r]; ns.

    Every rank counts from an origin of its own, so that clocks which differ by decades lose no digit. Ranks in one
    `island` are linked, by collectives or by messages both ways; between islands nothing is known.
    """

    offset: dict[int, float]
    rate: dict[int, float]
    island: dict[int, int]
    origin: dict[int, int]
    residual_ns: float  # median absolute difference of common ends after alignment
    doubt: dict[int, float] = field(
        default_factory=dict
    )  # ns by which a rank that only messages link may be off

    def align(self, rank: int, times: I64) -> I64:
        """Times of `rank` on the common clock of its island, counted from an arbitrary zero."""
        since = times - self.origin[rank]
        correction = self.offset[rank] + self.rate[rank] * since.astype(np.float64)
        return np.asarray(since - np.rint(correction).astype(np.int64), np.int64)


def align(ops: Operations) -> Clocks:
    """Fits clocks along a tree of the best-linked pairs of ranks."""
    origin = {r: int(ops.start[ops.first[r]]) if len(ops.per_rank[r].start) else 0 for r in ops.ranks}
    pairs = _common_ends(ops, origin)
    edges = sorted(pairs, key=lambda e: (-len(pairs[e]), e))
    neighbours: dict[int, list[tuple[int, float, float, float]]] = defaultdict(list)
    linked = DisjointSets(ops.ranks)
    for a, b in edges:
        if linked.join(a, b):
            mine, theirs = np.array(pairs[a, b], np.float64).T
            shift, rate = _fit(theirs - mine, theirs)
            lead = float(np.median(mine - theirs))
            neighbours[a].append((b, shift, rate, lead))
            neighbours[b].append((a, *_inverse(shift, rate, lead)))
    offset, rates, island = _walk(ops.ranks, neighbours)
    clocks = Clocks(offset, rates, island, origin, 0.0)
    _join_islands(ops, clocks)
    errors = [_errors(clocks, a, b, np.array(pairs[a, b], np.float64).T) for a, b in edges]
    residual = float(np.median(np.concatenate(errors))) if errors else 0.0
    return Clocks(offset, rates, island, origin, residual, clocks.doubt)


def _inverse(shift: float, rate: float, lead: float) -> tuple[float, float, float]:
    """The line seen from the other end: its argument is the other rank's time, ahead by `lead`."""
    return -shift + rate * lead, -rate, -lead


def _errors(clocks: Clocks, a: int, b: int, ends: F64) -> F64:
    """Absolute difference of common ends (rows: of a, of b) on the common clock."""
    return np.asarray(
        np.abs(
            (ends[1] - clocks.offset[b] - clocks.rate[b] * ends[1])
            - (ends[0] - clocks.offset[a] - clocks.rate[a] * ends[0])
        )
    )


def _join_islands(ops: Operations, clocks: Clocks) -> None:
    """Links islands (pipeline stages, often) by messages both ways: the quickest of each direction bound the offset.

    A message cannot arrive before it was sent, so the least (arrival − sending) of either direction brackets the
    difference of clocks, and with equal quickest transfers it lies in the middle (as the network time protocol has
    it). Every pair of ranks that exchanges messages says so for itself, and their median counts: one message paired
    with the wrong one is enough to mislead a pair.
    """
    while True:
        delays = _message_delays(ops, clocks)
        linked: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
        for a, b in sorted(delays):
            if (b, a) in delays:
                linked[clocks.island[a], clocks.island[b]].append((a, b))
        if not linked:
            return
        weight = {e: sum(min(len(delays[a, b]), len(delays[b, a])) for a, b in p) for e, p in linked.items()}
        home, other = max(linked, key=lambda e: (weight[e], -e[0], -e[1]))
        bounds = np.array([(min(delays[p]), min(delays[p[::-1]])) for p in linked[home, other]])
        # how far the other island's clock is ahead, give or take half the round trip
        gap = float(np.median(bounds[:, 0] - bounds[:, 1])) / 2
        # a slow link lengthens its own pairs' trips only: the quicker pairs say what the clocks leave open
        trip = max(float(np.percentile(bounds.sum(axis=1), 25)), 0.0)
        for rank in [r for r, i in clocks.island.items() if i == other]:
            clocks.offset[rank] += gap
            clocks.doubt[rank] = clocks.doubt.get(rank, 0.0) + trip / 2
            clocks.island[rank] = home


def _message_delays(ops: Operations, clocks: Clocks) -> dict[tuple[int, int], list[float]]:
    """(sender, receiver) → arrival minus sending of each message between islands, each side's own clock; ns.

    Messages of whole steps where there are any: what was cut at the rim of a recording is easily mispaired.
    """
    start, end = np.zeros(len(ops.start), np.int64), np.zeros(len(ops.start), np.int64)
    for rank in ops.ranks:
        where = ops.of(rank)
        start[where], end[where] = clocks.align(rank, ops.start[where]), clocks.align(rank, ops.end[where])
    rows = np.flatnonzero((ops.instance >= 0) & np.isin(ops.op.astype(str), ["send", "recv"]))
    rows = rows[np.lexsort((ops.op[rows].astype(str), ops.instance[rows]))]  # recv before send
    together = np.flatnonzero(ops.instance[rows[:-1]] == ops.instance[rows[1:]])
    receives, sends = rows[together], rows[together + 1]
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


def _common_ends(ops: Operations, origin: dict[int, int]) -> dict[tuple[int, int], list[tuple[int, int]]]:
    """For pairs of ranks in one collective: the end on either, from their origins; ns."""
    p2p = np.array([c.p2p for c in ops.channels] or [False])
    usable = (ops.instance >= 0) & ~p2p[np.maximum(ops.channel, 0)] & ~np.isin(ops.op.astype(str), ROOTED)
    rows = np.flatnonzero(usable)
    rows = rows[np.lexsort((ops.rank[rows], ops.instance[rows]))]
    pairs: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    together = ops.instance[rows[:-1]] == ops.instance[rows[1:]]
    for a, b in zip(rows[:-1][together].tolist(), rows[1:][together].tolist(), strict=True):
        one, two = int(ops.rank[a]), int(ops.rank[b])
        pairs[one, two].append((int(ops.end[a]) - origin[one], int(ops.end[b]) - origin[two]))
    return pairs


def _fit(shift: F64, when: F64) -> tuple[float, float]:
    """Robust line through differences of ends: (offset at zero, rate)."""
    middle = float(np.median(shift))
    if len(shift) < _FIT_FROM or float(np.ptp(when)) <= 0:
        return middle, 0.0
    pick = np.unique(np.linspace(0, len(shift) - 1, min(len(shift), _FIT_POINTS)).astype(int))
    return _line(shift[pick] - middle, when[pick], middle)


def _line(shift: F64, when: F64, middle: float) -> tuple[float, float]:
    """Theil and Sen's line: the median slope of all pairs; (offset at zero, rate), `middle` added to the offset.

    scipy's `theilslopes` gives the same line, and warns of a confidence interval where many points are alike.
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
    """Offsets and rates of all ranks, from the first rank of each island outwards."""
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
