"""Offsets and drifts between the clocks of ranks, from the common ends of collectives; how far to trust them.

Who waited in a collective needs no common clock (durations suffice). Point-to-point waits do, and so does any view
of several ranks on one time line.
"""

from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from tracekit.tables.intervals import I64
from tracekit.tables.match import Operations
from tracekit.tables.operations import ROOTED

_FIT_FROM = 12
"""Common collectives from which a drift is fitted; fewer give an offset only."""
_FIT_POINTS = 240


@dataclass(frozen=True)
class Clocks:
    """What to subtract from a rank's times: offset[r] + rate[r] · (t − origin), ns.

    Ranks in one `island` share collectives, directly or through others; between islands nothing is known.
    """

    offset: dict[int, float]
    rate: dict[int, float]
    island: dict[int, int]
    origin: int
    residual_ns: float  # median absolute difference of common ends after alignment

    def align(self, rank: int, times: I64) -> I64:
        """Times of `rank` on the common clock of its island."""
        correction = self.offset[rank] + self.rate[rank] * (times - self.origin).astype(np.float64)
        return np.asarray(times - np.rint(correction).astype(np.int64), np.int64)


def align(ops: Operations) -> Clocks:
    """Fits clocks along a tree of the best-linked pairs of ranks."""
    ends, times = _common_ends(ops)
    origin = int(ops.end.min()) if len(ops.end) else 0
    edges = sorted(ends, key=lambda e: (-len(ends[e]), e))
    neighbours: dict[int, list[tuple[int, float, float]]] = defaultdict(list)
    home = {r: r for r in ops.ranks}

    def find(r: int) -> int:
        while home[r] != r:
            home[r] = home[home[r]]
            r = home[r]
        return r

    for a, b in edges:
        if find(a) != find(b):
            home[find(a)] = find(b)
            shift, rate = _fit(np.array(ends[a, b], np.float64), np.array(times[a, b], np.float64) - origin)
            neighbours[a].append((b, shift, rate))
            neighbours[b].append((a, -shift, -rate))
    offset, rates, island = _walk(ops.ranks, neighbours)
    _join_islands(ops, Clocks(offset, rates, island, origin, 0.0))
    errors = [
        np.abs(np.array(ends[a, b]) - (offset[b] - offset[a]) - (rates[b] - rates[a]) * (np.array(times[a, b]) - origin))
        for a, b in edges
    ]
    residual = float(np.median(np.concatenate(errors))) if errors else 0.0
    return Clocks(offset, rates, island, origin, residual)


def _join_islands(ops: Operations, clocks: Clocks) -> None:
    """Links islands (pipeline stages, often) by messages both ways: the quickest of each direction bound the offset.

    A message cannot arrive before it was sent, so the least (arrival − sending) of either direction brackets the
    difference of clocks, and with equal quickest transfers it lies in the middle (as the network time protocol has it).
    """
    while True:
        delays = _message_delays(ops, clocks)
        linked = [(min(len(v), len(delays.get((b, a), []))), a, b) for (a, b), v in delays.items() if (b, a) in delays]
        if not linked:
            return
        _, home, other = max(linked, key=lambda e: (e[0], -e[1], -e[2]))
        gap = (min(delays[home, other]) - min(delays[other, home])) / 2  # how far the other island's clock is ahead
        for rank in [r for r, i in clocks.island.items() if i == other]:
            clocks.offset[rank] += gap
            clocks.island[rank] = home


def _message_delays(ops: Operations, clocks: Clocks) -> dict[tuple[int, int], list[float]]:
    """Arrival minus sending of every message between two islands, on each side's own aligned clock; ns."""
    start, end = np.zeros(len(ops.start), np.int64), np.zeros(len(ops.start), np.int64)
    for rank in ops.ranks:
        where = ops.of(rank)
        start[where], end[where] = clocks.align(rank, ops.start[where]), clocks.align(rank, ops.end[where])
    rows = np.flatnonzero((ops.instance >= 0) & np.isin(ops.op.astype(str), ["send", "recv"]))
    rows = rows[np.lexsort((ops.op[rows].astype(str), ops.instance[rows]))]  # recv before send
    together = np.flatnonzero(ops.instance[rows[:-1]] == ops.instance[rows[1:]])
    delays: dict[tuple[int, int], list[float]] = defaultdict(list)
    for receive, send in zip(rows[together].tolist(), rows[together + 1].tolist(), strict=True):
        a, b = clocks.island[int(ops.rank[send])], clocks.island[int(ops.rank[receive])]
        if a != b:
            delays[a, b].append(float(end[receive] - start[send]))
    return delays


def _common_ends(ops: Operations) -> tuple[dict[tuple[int, int], list[int]], dict[tuple[int, int], list[int]]]:
    """For pairs of ranks in one collective: differences of their ends, and when."""
    p2p = np.array([c.p2p for c in ops.channels] or [False])
    usable = (ops.instance >= 0) & ~p2p[np.maximum(ops.channel, 0)] & ~np.isin(ops.op.astype(str), ROOTED)
    rows = np.flatnonzero(usable)
    rows = rows[np.lexsort((ops.rank[rows], ops.instance[rows]))]
    ends: dict[tuple[int, int], list[int]] = defaultdict(list)
    times: dict[tuple[int, int], list[int]] = defaultdict(list)
    together = ops.instance[rows[:-1]] == ops.instance[rows[1:]]
    for a, b in zip(rows[:-1][together].tolist(), rows[1:][together].tolist(), strict=True):
        pair = int(ops.rank[a]), int(ops.rank[b])
        ends[pair].append(int(ops.end[b] - ops.end[a]))
        times[pair].append(int(ops.end[b]))
    return ends, times


def _fit(shift: np.ndarray[tuple[int], np.dtype[np.float64]], when: np.ndarray[tuple[int], np.dtype[np.float64]]) -> tuple[float, float]:
    """Robust line through differences of ends: (offset at origin, rate)."""
    middle = float(np.median(shift))
    if len(shift) < _FIT_FROM or float(np.ptp(when)) <= 0:
        return middle, 0.0
    pick = np.unique(np.linspace(0, len(shift) - 1, min(len(shift), _FIT_POINTS)).astype(int))
    from scipy.stats import theilslopes

    slope, intercept, _, _ = theilslopes(shift[pick] - middle, when[pick])
    return middle + float(intercept), float(slope)


def _walk(
    ranks: tuple[int, ...], neighbours: dict[int, list[tuple[int, float, float]]]
) -> tuple[dict[int, float], dict[int, float], dict[int, int]]:
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
            for there, shift, drift in neighbours[here]:
                if there not in offset:
                    offset[there], rate[there], island[there] = offset[here] + shift, rate[here] + drift, root
                    todo.append(there)
    return offset, rate, island
