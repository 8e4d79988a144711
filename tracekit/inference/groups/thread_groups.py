"""Groups of operations that name none: of the threads of Gloo, and of all-to-alls named as messages.

Each process group of Gloo has threads of its own, two as torch makes them, which take its collectives from one queue.
They are created with the group, so their numbers rise in the order of creation of the groups, which the files name. No
rank leaves a collective before all members began it: that must hold for some offset of any two clocks, or two ranks are
not members of one group.

NCCL carries an all-to-all out by sends and receives, in a kernel of that name. An operation that leaves together on
three or more ranks that arrived one after the other is not a message between two.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations, islice, permutations

import numpy as np
import numpy.typing as npt

from tracekit.inference.groups.common_ends import Members, Together, choose
from tracekit.inference.groups.places_apart import ways_by_place
from tracekit.inference.groups.stream_sequences import (
    NO_GROUP,
    StreamClass,
    named,
    stream_classes,
)
from tracekit.inference.groups.usual_numbering import Way, allowed_ways, by_parts, members_of
from tracekit.matching.match import Operations, rematch
from tracekit.mesh import Mesh
from tracekit.rank_events.coded_words import among
from tracekit.rank_events.operation_names import MESSAGES, ROOTED
from tracekit.rank_events.rank_ops import RankOps
from tracekit.rank_events.step_marks import NO_STEP
from tracekit.schema import Group
from tracekit.store import Run
from tracekit.thresholds.tables import (
    DRIFT_NS,
    LEAST_IN_ALL_TO_ALL,
    MOST_CHOICES,
    NEARLY_ALL_RANKS,
    PEERS_COMPARED,
    QUEUE_THREADS,
)
from tracekit.units import I64

Threads = tuple[int, ...]
Choice = Mapping[Threads, Members]
"""The group of each queue of a rank."""
Queue = Mapping[int, tuple[tuple[str, ...], I64]]
"""Step → kinds and rows of its collectives."""


def groups_of_threads(ranks: Sequence[RankOps], groups: Sequence[Group]) -> dict[tuple[int, int], Members]:
    """Return (rank, thread) → members of its group; without the threads that may still serve several.

    Threads are the `stream` of operations on a CPU trace. Among choices without a contradiction, the ones with the
    fewest queues count, then those with the fewest groups of one rank: these fit whatever the calls show.
    """
    choices = {r.rank: _choices(r, groups) for r in ranks if not r.on_gpu}
    search = _Search({r.rank: r for r in ranks}, {r: found for r, found in choices.items() if found})
    search.narrow()
    for most_likely in (_queues, _lone):
        search.left = {
            r: [c for c in found if most_likely(c) == min(map(most_likely, found))]
            for r, found in search.left.items()
        }
        search.narrow()
    members_of: dict[tuple[int, int], set[Members]] = defaultdict(set)
    for rank, found in search.left.items():
        for choice in found:
            for threads, members in choice.items():
                for thread in threads:
                    members_of[rank, thread].add(members)
    return {key: groups.pop() for key, groups in members_of.items() if len(groups) == 1}


def _queues(choice: Choice) -> int:
    return len(choice)


def _lone(choice: Choice) -> int:
    """Return how many queues of a choice are of a group of one rank."""
    return sum(len(members) == 1 for members in choice.values())


def _choices(ops: RankOps, groups: Sequence[Group]) -> list[Choice]:
    """Return the ways to divide the threads of a rank into queues and to give these to its groups.

    If names of groups show no order of creation, any order is possible. Ways with few queues come first.
    """
    if ops.stream is None:
        return []
    threads = np.unique(ops.stream[(ops.stream >= 0) & (ops.group < 0)]).tolist()
    named = [(name, g.ranks) for g in groups if ops.rank in g.ranks for name in g.names or ("",)]
    numbered = all(name.isdecimal() for name, _ in named)
    members = [ranks for _, ranks in sorted(named, key=lambda n: (len(n[0]), n))]
    found: list[Choice] = []
    for count in range(-(-len(threads) // QUEUE_THREADS), min(len(threads), len(members)) + 1):
        ways = (
            dict(zip(queues, chosen, strict=True))
            for queues in _divided(tuple(threads), count)
            for chosen in (combinations(members, count) if numbered else permutations(members, count))
        )
        more = list(islice(ways, MOST_CHOICES + 1))
        if len(found) + len(more) > MOST_CHOICES:
            break
        found += more
    return found


def _divided(threads: Threads, count: int) -> Iterator[tuple[Threads, ...]]:
    """Yield each way to divide `threads` into `count` queues of consecutive threads, at most QUEUE_THREADS each."""
    if not count:
        if not threads:
            yield ()
        return
    for size in range(min(QUEUE_THREADS, len(threads)), 0, -1):
        for rest in _divided(threads[size:], count - 1):
            yield (threads[:size], *rest)


@dataclass
class _Search:
    """The choices of each rank that contradict no choice of any other."""

    ops: Mapping[int, RankOps]
    left: dict[int, list[Choice]]
    queues: dict[tuple[int, Threads], Queue] = field(default_factory=dict)
    fits: dict[tuple[int, Threads, int, Threads], bool] = field(default_factory=dict)

    def narrow(self) -> None:
        """Drop choices until each remaining one agrees with some choice of every member of its groups."""
        before = -1
        while before != (before := sum(map(len, self.left.values()))):
            for rank in sorted(self.left):
                self.left[rank] = [c for c in self.left[rank] if self._holds(rank, c)]

    def _holds(self, rank: int, choice: Choice) -> bool:
        return all(
            any(self._fit(rank, threads, other, t) for t in self._queues_of(other, members))
            for threads, members in choice.items()
            for other in self._compared(rank, members)
        )

    def _compared(self, rank: int, members: Members) -> list[int]:
        """Return the members to compare a rank with: the next ones of its group, so that each member is compared."""
        others = [m for m in members if m in self.left and m != rank]
        later = [m for m in others if m > rank]
        return [*later, *others][: min(PEERS_COMPARED, len(others))]

    def _queues_of(self, rank: int, members: Members) -> set[Threads]:
        """Return the threads that may serve the queue of a group on a rank."""
        return {
            threads for choice in self.left[rank] for threads, group in choice.items() if group == members
        }

    def _fit(self, rank: int, threads: Threads, other: int, those: Threads) -> bool:
        key = (rank, threads, other, those)
        if key not in self.fits:
            mine, theirs = self._queue(rank, threads), self._queue(other, those)
            self.fits[key] = _may_be_one(self.ops[rank], mine, self.ops[other], theirs)
        return self.fits[key]

    def _queue(self, rank: int, threads: Threads) -> Queue:
        if (rank, threads) not in self.queues:
            self.queues[rank, threads] = _queue(self.ops[rank], threads)
        return self.queues[rank, threads]


def _queue(ops: RankOps, threads: Threads) -> Queue:
    stream = np.full(len(ops.op), -1) if ops.stream is None else ops.stream
    rows = np.flatnonzero(np.isin(stream, threads) & (ops.step != NO_STEP))
    by_step = {int(s): rows[ops.step[rows] == s] for s in np.unique(ops.step[rows])}
    return {s: (tuple(ops.op[row] for row in r.tolist()), r) for s, r in by_step.items()}


def _may_be_one(one: RankOps, mine: Queue, other: RankOps, theirs: Queue) -> bool:
    """Whether two ranks run the same collectives on two queues, and can have left each after both had begun it."""
    common = sorted(mine.keys() & theirs.keys())
    matching = [s for s in common if mine[s][0] == theirs[s][0]]
    if len(matching) < NEARLY_ALL_RANKS * len(common):
        return False
    waits = np.array([kind not in ROOTED for s in matching for kind in mine[s][0]], bool)
    if not waits.any():
        return True
    here = np.concatenate([mine[s][1] for s in matching])[waits]
    there = np.concatenate([theirs[s][1] for s in matching])[waits]
    ahead = int((other.start[there] - one.end[here]).max())
    behind = int((one.start[here] - other.end[there]).max())
    return ahead + behind <= DRIFT_NS


ALL_TO_ALL = "all_to_all"


def silent_messages(rank: RankOps) -> npt.NDArray[np.bool_]:
    """Return whether each operation may be a message and names neither direction nor peer nor group."""
    if rank.stream is None or not rank.op:
        return np.zeros(len(rank.op), bool)
    silent = among(rank.op, ("send_recv",)) & (rank.src == NO_GROUP) & (rank.dst == NO_GROUP)
    silent &= (rank.group == NO_GROUP) & (rank.stream != NO_GROUP)
    return silent if rank.way is None else np.asarray(silent & (rank.way == 0), bool)


def with_all_to_alls(
    run: Run, ranks: list[RankOps], mesh: Mesh, least: int = LEAST_IN_ALL_TO_ALL
) -> tuple[Run, list[RankOps]]:
    """Return `run` and `ranks` with the all-to-alls among silent messages, in their groups of `least` ranks or more.

    Where all ranks hold shards of the same parameters no stage sends to another one, so that two ranks exchange.
    """
    least = 2 if mesh.stages == 1 and _is_sharded(run, ranks, mesh) else least
    recorded = {r.rank for r in ranks}
    classes = stream_classes(ranks, by_place=True, rows=silent_messages)
    found: dict[tuple[int, int], Members] = {}
    for streams, ways in allowed_ways(run, mesh, classes, recorded):
        alike = _dealt(streams, ways, recorded, least)
        found |= members_of([(streams, alike)], recorded) if alike else {}
    if mesh.stages > 1:
        mute = {r.rank for r in ranks if not _exchanges(r, found)}
        found = {key: group for key, group in found.items() if not mute & set(group)}
    if not found:
        return run, ranks
    return named(run, [_renamed(r, found) for r in ranks], found)


def _is_sharded(run: Run, ranks: Sequence[RankOps], mesh: Mesh) -> bool:
    """Whether every rank scatters sums in a group of all ranks of `mesh`, as over shards of the same parameters."""
    worlds = [g.group for g in run.groups if set(g.ranks) == set(mesh.coordinates)]
    return all((among(r.op, ("reduce_scatter",)) & np.isin(r.group, worlds)).any() for r in ranks)


def with_paired_all_to_alls(run: Run, ops: Operations, mesh: Mesh) -> tuple[Run, Operations]:
    """Return `run` and `ops` with the all-to-alls among silent messages, of two ranks as well as of more.

    Unchanged unless every rank has messages with peers: until then two ranks may be stages that exchange.
    """
    ranks = list(ops.per_rank.values())
    silent = any(silent_messages(r).any() for r in ranks)
    if not silent or not all(among(r.op, MESSAGES).any() for r in ranks):
        return run, ops
    run, ranks = with_all_to_alls(run, ranks, mesh, least=2)
    return run, rematch(ops, ranks, run.groups)


def _exchanges(rank: RankOps, found: Mapping[tuple[int, int], Members]) -> bool:
    """Whether a rank of a pipeline has messages besides the all-to-alls in `found`, as every stage must.

    The messages of tensor-parallel ranks, which run in step, end together too and could be mistaken for all-to-alls.
    """
    silent, stream = silent_messages(rank), rank.stream
    if stream is not None:
        silent &= ~np.isin(stream, [s for r, s in found if r == rank.rank])
    return bool(silent.any() or among(rank.op, MESSAGES).any())


def _dealt(streams: StreamClass, ways: Sequence[Way], recorded: set[int], least: int) -> list[Way]:
    """Return the ways that fit a class as all-to-alls; empty unless every position shows the same proven groups."""
    by_part = by_parts(streams, ways, recorded)
    parts, together = list(by_part), Together(streams)
    way = choose(together, parts)
    if way is None or not set(ways_by_place(streams, parts).values()) <= {way}:
        return []
    several = min(len(group) for group in parts[way]) >= least
    return by_part[parts[way]] if several and together.proven(parts[way]) else []


def _renamed(rank: RankOps, found: dict[tuple[int, int], Members]) -> RankOps:
    """Return `rank` with the silent messages of the streams in `found` as all-to-alls."""
    silent = silent_messages(rank)
    if rank.stream is not None:
        silent &= np.isin(rank.stream, [s for r, s in found if r == rank.rank])
    op, token = list(rank.op), list(rank.token)
    for row in np.flatnonzero(silent).tolist():
        op[row] = ALL_TO_ALL
        token[row] = f"{ALL_TO_ALL}/{token[row].partition('/')[2]}"
    return replace(rank, op=tuple(op), token=tuple(token))
