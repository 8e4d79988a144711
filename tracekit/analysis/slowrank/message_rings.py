"""Groups whose messages go round in a ring, as keys and values do in ring attention: no pipeline.

Stages of a pipeline send activations on and gradients back, so that messages go both ways between two neighbours. In a
ring every rank sends to one other and receives from one other, forward and backward alike; a ring of two sends and
receives at once, while a stage computes between a message that comes and the one that it sends for it.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping
from typing import NamedTuple

import numpy as np

from tracekit.tables.match import Operations
from tracekit.tables.operation_names import MESSAGES
from tracekit.tables.operations import RankOps
from tracekit.thresholds.mesh import RING_GAP_NS, RING_SHARE

_PAIR = 2


class _Message(NamedTuple):
    """A message as one of its two ranks saw it; ns."""

    start: int
    end: int
    sent: bool


def rings(ops: Operations, groups: Collection[tuple[int, ...]]) -> set[tuple[int, ...]]:
    """The `groups` (members) around which the messages go whose two ends are known."""
    sent: dict[int, Counter[int]] = defaultdict(Counter)  # by sender, as any of both ends tells it
    mine: dict[int, dict[int, list[_Message]]] = defaultdict(lambda: defaultdict(list))
    for rank, source in ops.per_rank.items():
        for row in _known(source):
            src, dst = int(source.src[row]), int(source.dst[row])
            sent[src][dst] += 1
            seen = _Message(int(source.start[row]), int(source.end[row]), src == rank)
            mine[rank][dst if src == rank else src].append(seen)
    return {g for g in groups if (_is_pair(g, mine) if len(g) == _PAIR else _is_ring(g, sent, ops))}


def _known(source: RankOps) -> list[int]:
    """The messages of a rank that name both ends and which of them sends."""
    ends = (source.src >= 0) & (source.dst >= 0) & (source.src != source.dst)
    mine = (source.src == source.rank) | (source.dst == source.rank)
    return np.flatnonzero(np.isin(np.array(source.op, str), MESSAGES) & ends & mine).tolist()


def _is_ring(group: tuple[int, ...], sent: Mapping[int, Counter[int]], ops: Operations) -> bool:
    """Whether each recorded rank of a group sends to one member and receives from another one, and from no third."""
    inside = set(group)
    to = {a: {b for b in sent.get(a, ()) if b in inside} for a in group}
    come = {b: {a for a in group if b in to[a]} for b in group}
    recorded = [rank for rank in group if rank in ops.per_rank]
    return len(recorded) >= _PAIR and all(
        len(to[rank]) == len(come[rank]) == 1 and to[rank] != come[rank] for rank in recorded
    )


def _is_pair(group: tuple[int, ...], mine: Mapping[int, Mapping[int, list[_Message]]]) -> bool:
    """Whether both ranks of a group of two send and receive at once, every time."""
    one, two = group
    both = [sorted(mine[a][b]) if a in mine and b in mine[a] else [] for a, b in ((one, two), (two, one))]
    return all(both) and all(_at_once(messages) >= RING_SHARE for messages in both)


def _at_once(messages: list[_Message]) -> float:
    """The share of messages, in order, that stand in pairs of which the second goes the other way right behind."""
    at = paired = 0
    while at + 1 < len(messages):
        a, b = messages[at], messages[at + 1]
        both = a.sent != b.sent and b.start <= a.end + RING_GAP_NS
        paired += _PAIR * both
        at += _PAIR if both else 1
    return paired / len(messages)
