"""Groups with messages that go round in a ring, as keys and values do in ring attention: not a pipeline.

Stages of a pipeline send activations on and gradients back, so messages go both ways between two neighbours. In a
ring every rank sends to one rank and receives from another, both forward and backward; a ring of two sends and
receives at once, while a stage computes between a message that comes and the one that it sends for it.
"""

from collections import defaultdict
from collections.abc import Collection, Mapping
from typing import NamedTuple

import numpy as np

from tracekit.matching.match import Operations
from tracekit.rank_events.coded_words import among
from tracekit.rank_events.operation_names import MESSAGES
from tracekit.rank_events.operations import RankOps
from tracekit.thresholds.mesh import RING_GAP_NS, RING_SHARE
from tracekit.units import I64

_PAIR = 2


class _Message(NamedTuple):
    """A message as one of its two ranks recorded it; ns."""

    start: int
    end: int
    sent: bool


def rings(ops: Operations, groups: Collection[tuple[int, ...]]) -> set[tuple[int, ...]]:
    """Return the `groups` (members) around which the messages with known ends go."""
    sent: dict[int, set[int]] = defaultdict(set)  # by sender, as any of both ends tells it
    known = {rank: _known(source) for rank, source in ops.per_rank.items()}
    for rank, rows in known.items():
        ends = np.stack([ops.per_rank[rank].src[rows], ops.per_rank[rank].dst[rows]])
        for src, dst in np.unique(ends, axis=1).T.tolist():
            sent[src].add(dst)
    return {
        group
        for group in groups
        if (_is_pair(group, ops, known) if len(group) == _PAIR else _is_ring(group, sent, ops))
    }


def _known(source: RankOps) -> I64:
    """Return the messages of a rank that name sender and receiver."""
    ends = (source.src >= 0) & (source.dst >= 0) & (source.src != source.dst)
    mine = (source.src == source.rank) | (source.dst == source.rank)
    return np.flatnonzero(among(source.op, MESSAGES) & ends & mine)


def _is_ring(group: tuple[int, ...], sent: Mapping[int, set[int]], ops: Operations) -> bool:
    """Whether each recorded rank of a group sends to exactly one member and receives from exactly one other."""
    inside = set(group)
    to = {a: {b for b in sent.get(a, ()) if b in inside} for a in group}
    come = {b: {a for a in group if b in to[a]} for b in group}
    recorded = [rank for rank in group if rank in ops.per_rank]
    return len(recorded) >= _PAIR and all(
        len(to[rank]) == len(come[rank]) == 1 and to[rank] != come[rank] for rank in recorded
    )


def _is_pair(group: tuple[int, ...], ops: Operations, known: Mapping[int, I64]) -> bool:
    """Whether both ranks of a group of two send and receive at once in (nearly) all exchanges."""
    one, two = group
    both = [_messages(ops, known, a, b) for a, b in ((one, two), (two, one))]
    return all(both) and all(_at_once(messages) >= RING_SHARE for messages in both)


def _messages(ops: Operations, known: Mapping[int, I64], rank: int, peer: int) -> list[_Message]:
    """Return the messages of `rank` with `peer`, in order; empty where the rank left no trace."""
    if rank not in known:
        return []
    source, rows = ops.per_rank[rank], known[rank]
    rows = rows[(source.src[rows] == peer) | (source.dst[rows] == peer)]
    sides = source.start[rows].tolist(), source.end[rows].tolist(), (source.src[rows] == rank).tolist()
    return sorted(_Message(*m) for m in zip(*sides, strict=True))


def _at_once(messages: list[_Message]) -> float:
    """Return the share of messages, in order, in pairs in which the second immediately goes the other way."""
    at = paired = 0
    while at + 1 < len(messages):
        a, b = messages[at], messages[at + 1]
        both = a.sent != b.sent and b.start <= a.end + RING_GAP_NS
        paired += _PAIR * both
        at += _PAIR if both else 1
    return paired / len(messages)
