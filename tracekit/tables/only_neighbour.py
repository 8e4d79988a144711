"""Peers of messages in a pipeline of two stages: a rank's only neighbour, where both ranks' orders fit each other.

torch up to 2.4 records that a message was sent or received, and not to whom. Between two stages there is one answer.
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from tracekit.tables.clock import Clocks
from tracekit.tables.intervals import I64
from tracekit.tables.match import Operations
from tracekit.tables.operation_names import KINDS_BY_WAY, RECEIVES, SENDS
from tracekit.tables.operations import RankOps
from tracekit.tables.step_marks import NO_STEP
from tracekit.thresholds.tables import COMMON_END_NS


class _Messages(NamedTuple):
    """One rank's messages that name a direction and no peer, in order of issue; times in ns on its island's clock."""

    rows: I64
    way: I64
    step: I64
    nelems: I64
    start: I64
    end: I64
    kernel: I64

    def at(self, step: int, way: int) -> I64:
        """The places of those of a step that go one way."""
        return np.flatnonzero((self.step == step) & (self.way == way))


def with_only_neighbours(
    ops: Operations, clocks: Clocks, lines: Iterable[tuple[int, ...]]
) -> tuple[list[RankOps], int]:
    """(operations of all ranks with the peers that are told, how many were) along the `lines` of a pipeline's axis.

    On a line of two ranks a message goes to the other one, if in every step both ranks tell of the same messages: as
    many and as large, none received before it was sent, the first one only received by one of them. In a ring of
    context parallel ranks every kernel sends and receives.
    """
    told = dict(ops.per_rank)
    count = 0
    for line in sorted(lines):
        if len(line) != len((SENDS, RECEIVES)) or not set(line) <= set(told):
            continue
        one, two = (_messages(told[r], clocks) for r in line)
        same = clocks.island[line[0]] == clocks.island[line[1]]
        if not _fit(one, two, same_clock=same):
            continue
        for (own, peer), found in zip((line, line[::-1]), (one, two), strict=True):
            told[own] = _told(told[own], found, peer)
            count += len(found.rows)
    return [told[r] for r in ops.ranks], count


def _messages(source: RankOps, clocks: Clocks) -> _Messages:
    """The messages of a rank that name a direction and no peer."""
    way = np.zeros(len(source.op), np.int64) if source.way is None else source.way
    open_ = np.array([op == "send_recv" for op in source.op], bool) & (source.src < 0) & (way != 0)
    rows = np.flatnonzero(open_)
    rows = rows[np.argsort(source.issued[rows], kind="stable")]
    start, end = (clocks.align(source.rank, t[rows]) for t in (source.start, source.end))
    step = source.step[rows].astype(np.int64)
    return _Messages(rows, way[rows], step, source.nelems[rows], start, end, source.kernel[rows])


def _fit(one: _Messages, two: _Messages, *, same_clock: bool) -> bool:
    """Whether the messages of two ranks can be each other's, in all steps that both recorded."""
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


def _begun_by_one(one: _Messages, two: _Messages, step: int) -> bool:
    """Whether one rank sends with the first kernel of a step, and the other one only receives with its first."""
    mine, theirs = _first_ways(one, step), _first_ways(two, step)
    return (SENDS in mine and theirs == {RECEIVES}) or (SENDS in theirs and mine == {RECEIVES})


def _first_ways(messages: _Messages, step: int) -> set[int]:
    """The directions of the messages of a step's first kernel."""
    here = np.flatnonzero(messages.step == step)
    return set(messages.way[here[messages.kernel[here] == messages.kernel[here[0]]]].tolist())


def _told(source: RankOps, found: _Messages, peer: int) -> RankOps:
    """`source` whose messages `found` go to or come from `peer`."""
    op, src, dst = list(source.op), source.src.copy(), source.dst.copy()
    for row, way in zip(found.rows.tolist(), found.way.tolist(), strict=True):
        op[row] = KINDS_BY_WAY[way]
        src[row], dst[row] = (source.rank, peer) if way == SENDS else (peer, source.rank)
    return replace(source, op=tuple(op), src=src, dst=dst)
