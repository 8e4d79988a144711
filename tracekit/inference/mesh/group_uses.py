"""Process groups with what the traces show of their use, as an inference of the mesh takes them."""

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from tracekit.arrays import numbered_rows
from tracekit.axes import PIPELINE
from tracekit.disjoint_sets import DisjointSets
from tracekit.matching.channels import WORLD
from tracekit.matching.match import Operations
from tracekit.mesh.families import GroupUse
from tracekit.mesh.group_descriptions import hinted_dims
from tracekit.mesh.parts import ALL_TO_ALL
from tracekit.rank_events.coded_words import among, numbered
from tracekit.rank_events.operation_names import MESSAGES
from tracekit.rank_events.rank_ops import RankOps
from tracekit.schema import InferredGroup
from tracekit.store import Run
from tracekit.thresholds.inference import MANY_CALLS, RING_GAP_NS, RING_SHARE, UNEVEN_SIZES
from tracekit.units import I64

_PAIR = 2

CHAIN: Final = frozenset({"p2p"})
"""The kinds of operations in a group that only messages connect."""


class _Message(NamedTuple):
    """A message as one of its two ranks recorded it; ns."""

    start: int
    end: int
    sent: bool


def world_of(run: Run, ops: Operations) -> tuple[int, ...]:
    """All ranks of the job: as many as the files claim, and at least as many as groups and files name.

    Where no file claims a number, a message to a rank without a trace shows that the job is larger than the files.
    """
    seen = {*ops.ranks, *(r for g in run.groups for r in g.ranks)}
    if run.world_size is None:
        seen |= {int(end.max(initial=-1)) for one in ops.per_rank.values() for end in (one.src, one.dst)}
    return tuple(range(max(run.world_size or 0, max(seen, default=-1) + 1)))


@dataclass
class _Calls:
    """The collectives of one group, of all its members."""

    by_rank: Counter[int] = field(default_factory=Counter)
    kinds: set[str] = field(default_factory=set)
    exposed: list[bool] = field(default_factory=list)
    changes: list[bool] = field(default_factory=list)
    dealt: list[int] = field(default_factory=list)  # elements that all-to-alls brought, -1 unknown


def group_uses(run: Run, ops: Operations, lines: Collection[tuple[int, ...]] = ()) -> list[GroupUse]:
    """Process groups with the calls that the traces show; messages that no group of their own carries form one.

    `lines` are the pipelines along which the ends of messages were inferred.
    """
    calls: dict[int, _Calls] = defaultdict(_Calls)
    pairs: Counter[tuple[int, int]] = Counter()
    for rank, source in ops.per_rank.items():
        _count(source, ops.exposed[ops.of(rank)] > 0, calls, pairs)
    whole = len(world_of(run, ops))
    pipelines = [g.ranks for g in run.groups if hinted_dims(g.descs) == {PIPELINE}]
    p2p = carriers([g.ranks for g in run.groups], pairs, {*lines, *holding(pipelines, pairs)})
    round_ = rings(ops, p2p)
    uses = [
        GroupUse(
            g.ranks, g.descs, max(calls[g.group].by_rank.values(), default=0), p2p.get(g.ranks, 0),
            frozenset(calls[g.group].kinds), _share(calls[g.group].exposed), _share(calls[g.group].changes),
            named=not isinstance(g, InferredGroup), ring=g.ranks in round_, dealt=_uneven(calls[g.group].dealt),
        )
        for g in run.groups
    ]  # fmt: skip
    groups = {u.ranks for u in uses}
    chains = [replace(_chain(c, n, lines, ops), ring=c in round_) for c, n in p2p.items() if c not in groups]
    return uses + [u for u in chains if len(u.ranks) < whole or not uses]


def _count(
    source: RankOps, exposed: npt.NDArray[np.bool_], calls: dict[int, _Calls], pairs: Counter[tuple[int, int]]
) -> None:
    """Add the collectives of a rank to its groups' `calls`, and its messages to the `pairs` of ranks."""
    ops, op = numbered(source.op)
    message = among(source.op, MESSAGES) | ((source.src >= 0) & (source.dst >= 0))
    ends = np.sort(np.stack([source.src[message], source.dst[message]]), axis=0)
    first, number = numbered_rows(*ends)
    often = np.bincount(number)
    for place in np.argsort(first, kind="stable"):  # pairs are counted in the order in which they appear
        pairs[int(ends[0, first[place]]), int(ends[1, first[place]])] += int(often[place])
    group = np.where(message, WORLD, source.group)
    for one in np.unique(group[group != WORLD]).tolist():
        rows = np.flatnonzero(group == one)
        kinds = op[rows]
        mine = calls[one]
        mine.by_rank[source.rank] += len(rows)
        mine.kinds |= {ops[kind] for kind in np.unique(kinds).tolist()}
        mine.exposed += exposed[rows].tolist()
        mine.changes += [False, *(kinds[1:] != kinds[:-1]).tolist()]
        dealt = rows[kinds == (ops.index(ALL_TO_ALL) if ALL_TO_ALL in ops else -1)]
        mine.dealt += [-1] * len(dealt) if source.taken is None else source.taken[dealt].tolist()


def _chain(
    ranks: tuple[int, ...], count: int, lines: Collection[tuple[int, ...]], ops: Operations
) -> GroupUse:
    """The use of a chain of `count` messages, which may go on behind a rank that was not recorded."""
    named = ranks not in lines
    partial = named and not set(ranks).issubset(ops.ranks)
    return GroupUse(ranks, (), 0, count, CHAIN, named=named, partial=partial)


def _uneven(elements: Sequence[int]) -> bool:
    """Whether all-to-alls brought other numbers of elements time after time, all of them recorded."""
    return (
        len(elements) >= MANY_CALLS
        and min(elements) >= 0
        and len(set(elements)) > UNEVEN_SIZES * len(elements)
    )


def _share(flags: list[bool]) -> float:
    return sum(flags) / len(flags) if flags else 0.0


def carriers(
    groups: Sequence[tuple[int, ...]], pairs: Counter[tuple[int, int]], lines: Collection[tuple[int, ...]]
) -> dict[tuple[int, ...], int]:
    """Return members → number of their messages; a pair belongs to the smallest group, line or chain that holds it."""
    homes: dict[int, set[tuple[int, ...]]] = defaultdict(set)
    inside = {(a, b) for line in lines for a in line for b in line}
    for ranks in {*groups, *lines, *_components(set(pairs) - inside)}:
        for r in ranks:
            homes[r].add(ranks)
    result: Counter[tuple[int, ...]] = Counter()
    for (a, b), count in pairs.items():
        result[min(homes[a] & homes[b], key=lambda g: (len(g), g))] += count
    for line in lines:  # some of its ranks may lack a trace
        result[line] = max(result[line], 1)
    return dict(result)


def holding(groups: Sequence[tuple[int, ...]], pairs: Counter[tuple[int, int]]) -> list[tuple[int, ...]]:
    """Return the groups that hold both ends of some message."""
    home: dict[int, set[tuple[int, ...]]] = defaultdict(set)
    for ranks in groups:
        for r in ranks:
            home[r].add(ranks)
    return sorted({g for a, b in pairs for g in home[a] & home[b]})


def _components(pairs: set[tuple[int, int]]) -> list[tuple[int, ...]]:
    """Return the sets of ranks that messages connect, directly or through others, each sorted."""
    linked = DisjointSets({r for pair in pairs for r in pair})
    for a, b in pairs:
        linked.join(a, b)
    chains: dict[int, list[int]] = defaultdict(list)
    for r in sorted({r for pair in pairs for r in pair}):
        chains[linked.find(r)].append(r)
    return sorted(tuple(c) for c in chains.values())


# Groups with messages that go round in a ring, as keys and values do in ring attention: not a pipeline.
#
# Stages of a pipeline send activations on and gradients back, so messages go both ways between two
# neighbours. In a ring every rank sends to one rank and receives from another, both forward and backward; a
# ring of two sends and receives at once, while a stage computes between a message that comes and the one that
# it sends for it.


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
