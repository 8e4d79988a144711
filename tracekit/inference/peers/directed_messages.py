"""Messages with a direction and no peer: what is known of each, and peers that were found, written back."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Final, NamedTuple

import numpy as np

from tracekit.matching.clock import Clocks
from tracekit.rank_events.coded_words import among
from tracekit.rank_events.operation_names import RECEIVES, SENDS
from tracekit.rank_events.rank_ops import RankOps
from tracekit.rank_events.step_marks import NO_STEP
from tracekit.units import I32, I64

_KINDS: Final = {SENDS: "send", RECEIVES: "recv"}


class Directed(NamedTuple):
    """One rank's messages that name a direction and no peer, in order of issue; times in ns on its island's clock."""

    rows: I64
    way: I64
    step: I64
    nelems: I64
    start: I64
    end: I64
    kernel: I64

    def at(self, step: int, way: int) -> I64:
        """Return the positions of one step's messages in one direction."""
        return np.flatnonzero((self.step == step) & (self.way == way))


def directed_messages(source: RankOps, clocks: Clocks) -> Directed:
    """Return the messages of a rank that name a direction and no peer."""
    rows = without_peer(source)
    rows = rows[np.argsort(source.issued[rows], kind="stable")]
    start, end = (clocks.align(source.rank, t[rows]) for t in (source.start, source.end))
    step = source.step[rows].astype(np.int64)
    return Directed(rows, ways(source)[rows], step, source.nelems[rows], start, end, source.kernel[rows])


def without_peer(source: RankOps) -> I64:
    """Return the rows of a rank's operations that name a direction and no peer."""
    open_ = among(source.op, ("send_recv",)) & (source.src < 0)
    return np.flatnonzero(open_ & (ways(source) != 0))


def ways(source: RankOps) -> I64:
    """Return the direction of each operation of a rank: SENDS, RECEIVES, or 0 if it is unknown."""
    return np.zeros(len(source.op), np.int64) if source.way is None else source.way


def with_peers(source: RankOps, rows: Sequence[int], peers: Sequence[int]) -> RankOps:
    """Return `source` with messages in `rows` that go to or come from `peers`, by their direction."""
    op, src, dst = list(source.op), source.src.copy(), source.dst.copy()
    way = ways(source)
    for row, peer in zip(rows, peers, strict=True):
        op[row] = _KINDS[int(way[row])]
        src[row], dst[row] = (source.rank, peer) if way[row] == SENDS else (peer, source.rank)
    return replace(source, op=tuple(op), src=src, dst=dst)


# Operations at the same position of several steps.


def places(step: I32, rows: I64) -> list[I64]:
    """Return the rows at each position, over the steps with the most frequent number of operations among `rows`."""
    steps = [rows[step[rows] == s] for s in np.unique(step[rows]) if s != NO_STEP]
    if not steps:
        return []
    usual = Counter(len(s) for s in steps).most_common(1)[0][0]
    return list(np.array([s for s in steps if len(s) == usual], np.int64).reshape(-1, usual).T)
