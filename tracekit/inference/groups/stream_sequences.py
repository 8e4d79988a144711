"""Collectives without a named group, classed by the stream that they ran on, one stream for each communicator.

The legacy NCCL backend gives every communicator a stream, so the collectives of one stream belong to one group.
Ranks with streams that run the same kinds in every step may be members of one group; together they are a class.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
import numpy.typing as npt

from tracekit.matching.clock import Clocks
from tracekit.rank_events.coded_words import among
from tracekit.rank_events.operation_names import COLLECTIVE, OTHER, UNDIRECTED
from tracekit.rank_events.rank_ops import RankOps
from tracekit.schema import InferredGroup
from tracekit.store import Run
from tracekit.thresholds.tables import (
    ENDS_COMPARED,
    ENOUGH_STEPS,
    LEAST_ALIGNED_ENDS,
    LEAST_ENDS,
    NEARLY_ALL_RANKS,
    PLACES_COMPARED,
)
from tracekit.units import F64, I64, Mask

Kinds = tuple[str, ...]
NO_GROUP = -1
"""Group of an operation without named members, and stream of an operation without a named stream."""
UNTOLD_KINDS = frozenset({OTHER, COLLECTIVE})
"""Kinds of a kernel without a kind in its name, as RCCL's, and of an inferred collective: maybe messages."""


@dataclass(frozen=True)
class StreamClass:
    """Streams of different ranks that run the same collectives; `kept` are the ranks with all compared steps whole.

    Times are ns since the rank's first compared end, unless they are `aligned`; rows as `kept`, columns are operations.
    """

    streams: dict[int, int]  # rank → its stream
    kept: tuple[int, ...]  # ranks, sorted
    starts: F64
    ends: F64
    size: int  # members of the group as the trace counts them, −1 where it does not
    aligned: bool = False  # times are on one clock, counted from an arbitrary zero
    kinds: Kinds = ()  # of the operations, by column
    places: tuple[int, ...] = ()  # in the step's sequence, by column
    usual: Kinds = ()  # what each step runs
    doubt: float = 0.0  # uncertainty of the clocks in aligned times of two ranks, ns
    drifts: bool = False  # whether the clock rates of some ranks are unknown
    exact: tuple[int, ...] = ()  # if some are: the island of clocks of known rates that each rank is in

    def of(self, ranks: Collection[int]) -> Self:
        """Return the class of some of its ranks."""
        rows = [row for row, rank in enumerate(self.kept) if rank in ranks]
        return replace(
            self, streams={rank: stream for rank, stream in self.streams.items() if rank in ranks},
            kept=tuple(self.kept[row] for row in rows), starts=self.starts[rows], ends=self.ends[rows],
            exact=tuple(self.exact[row] for row in rows if self.exact),
        )  # fmt: skip

    def exact_pairs(self, groups: Iterable[Sequence[int]]) -> I64:
        """Return the (first, other) rows of each of `groups` in each island of `exact`, shape (2, pairs).

        No clock error hides how far these leave apart; between islands, a drift can explain a few ends.
        """
        pairs = []
        for rows in groups if self.exact else ():
            first: dict[int, int] = {}
            pairs += [(one, row) for row in rows if (one := first.setdefault(self.exact[row], row)) != row]
        return np.array(pairs, np.int64).reshape(-1, 2).T


def unnamed_rows(rank: RankOps) -> npt.NDArray[np.bool_]:
    """Return whether each operation is a collective on a known stream without a named group."""
    message = among(rank.op, UNDIRECTED)
    if rank.stream is None:
        return np.zeros(len(rank.op), bool)
    return np.asarray(~message & (rank.group == NO_GROUP) & (rank.stream != NO_GROUP), bool)


def stream_classes(
    ranks: Sequence[RankOps],
    clocks: Clocks | None = None,
    *,
    by_place: bool = False,
    rows: Callable[[RankOps], Mask] | None = None,
) -> list[StreamClass]:
    """Return the classes of streams with unnamed groups; streams that run too little to be compared are left out.

    Streams of one rank that run the same are separated by their order, which is that of the groups' creation. With
    `clocks`, fewer collectives suffice, and only ranks with a common clock are compared; then streams that carry named
    groups as well are included: unnamed operations of several groups on them do not end together. Nor
    are they `by_place`, where each place of the step is compared, and no column is left out. `rows` chooses other
    operations than those.
    """
    mixed, chosen = by_place or clocks is not None, rows or unnamed_rows
    streams = {r.rank: _streams(r, chosen(r), mixed=mixed) for r in ranks}
    classes: dict[tuple[Kinds, int, int], dict[int, _Stream]] = defaultdict(dict)
    for rank, found in streams.items():
        seen: Counter[tuple[Kinds, int]] = Counter()
        for stream in _sized(found, streams.values()):
            key = stream.usual, stream.size
            classes[*key, seen[key]][rank] = stream
            seen[key] += 1
    columns = PLACES_COMPARED if by_place else ENDS_COMPARED
    every = [_class(members, clocks, columns) for _, members in sorted(classes.items()) if len(members) > 1]
    return [c for c in every if c is not None]


def places_on(rank: RankOps, stream: int, usual: Kinds, chosen: Mask) -> I64:
    """Return the position of each operation in the sequence `usual` of its step on `stream`; -1 for other operations.

    The sequence is that of the `chosen` operations. Steps with another sequence have no positions.
    """
    place = np.full(len(rank.op), NO_GROUP, np.int64)
    for mine in (s for s in _streams(rank, chosen, mixed=True) if s.stream == stream):
        for rows in mine.rows.values():
            if _kinds(rank, rows) == usual:
                place[rows] = np.arange(len(rows))
    return place


def _sized(mine: Sequence["_Stream"], every: Iterable[Sequence["_Stream"]]) -> list["_Stream"]:
    """Return the streams `mine` of one rank; a stream without a recorded size takes the only one left from others.

    `every` are the streams of each rank.
    """
    lost = {s.usual for s in mine if s.size == NO_GROUP}
    known = [Counter((s.usual, s.size) for s in found if s.usual in lost) for found in every]
    filled = {}
    for usual in lost:
        sizes = [{key: n for key, n in found.items() if key[0] == usual} for found in known]
        whole = [found for found in sizes if found and (usual, NO_GROUP) not in found]
        if not whole or any(found != whole[0] for found in whole):
            continue
        here = Counter((s.usual, s.size) for s in mine if s.usual == usual)
        left = Counter(whole[0]) - here
        if len(left) == 1 and left.total() == here[usual, NO_GROUP]:
            filled[usual] = next(iter(left))[1]
    return [replace(s, size=filled.get(s.usual, s.size)) if s.size == NO_GROUP else s for s in mine]


def streams_of_all(
    ranks: Sequence[RankOps], world: tuple[int, ...]
) -> dict[tuple[int, int], tuple[int, ...]]:
    """Return (rank, stream) → `world` for streams with collectives that count as many members as the world has."""
    return {
        (s.rank.rank, s.stream): world
        for rank in ranks
        for s in _streams(rank, unnamed_rows(rank))
        if s.size == len(world)
    }


@dataclass(frozen=True)
class _Stream:
    """The unnamed collectives of one stream of one rank, by step."""

    rank: RankOps
    stream: int
    size: int
    rows: dict[int, I64]
    usual: Kinds  # the kinds of most of its steps

    def whole(self, step: int) -> bool:
        """Whether the stream runs its usual sequence in `step`."""
        return step in self.rows and _kinds(self.rank, self.rows[step]) == self.usual


def _kinds(rank: RankOps, rows: I64) -> Kinds:
    return tuple(rank.op[row] for row in rows.tolist())


def _streams(rank: RankOps, chosen: Mask, *, mixed: bool = False) -> list[_Stream]:
    """Return the streams of `rank` that run `chosen` operations, by number; streams with named ones only if `mixed`."""
    rows = np.flatnonzero(chosen)
    if not len(rows) or rank.stream is None:
        return []
    found = []
    for stream in np.unique(rank.stream[rows]).tolist():
        mine = rows[rank.stream[rows] == stream]
        if not mixed and (rank.group[rank.stream == stream] != NO_GROUP).any():
            continue  # its unnamed operations may belong to several groups
        steps = {int(s): mine[rank.step[mine] == s] for s in np.unique(rank.step[mine])}
        inside = {s: r for s, r in steps.items() if s != NO_GROUP} or steps
        usual = Counter(_kinds(rank, r) for r in inside.values()).most_common(1)[0][0]
        sizes = np.unique(rank.group_size[mine]) if rank.group_size is not None else np.zeros(0)
        sizes = sizes[(sizes != NO_GROUP) | mixed]  # a stream of several groups counts members of one only
        found.append(_Stream(rank, stream, int(sizes[0]) if len(sizes) == 1 else NO_GROUP, inside, usual))
    return found


def _class(members: dict[int, _Stream], clocks: Clocks | None, columns: int) -> StreamClass | None:
    """Return the class of `members` (rank → stream) over steps that all have whole; None if too few ends remain.

    Steps that nearly all have count as well where too few are left: the rank that the others wait for lacks the last
    step most easily. Ranks that lack one of these steps, or a common clock, belong to the class, but are not compared.
    """
    counts = Counter(s for stream in members.values() for s in stream.rows if stream.whole(s))
    most = max(counts.values(), default=0)
    nearly = sorted(s for s, count in counts.items() if count >= NEARLY_ALL_RANKS * most)
    every = [s for s in nearly if counts[s] == len(members)]
    steps = every if len(every) >= ENOUGH_STEPS else nearly
    kept = sorted(r for r, stream in members.items() if all(stream.whole(s) for s in steps))
    if clocks is not None:
        home, _ = Counter(clocks.island[r] for r in kept).most_common(1)[0] if kept else (0, 0)
        kept = [r for r in kept if clocks.island[r] == home]
    width = len(next(iter(members.values())).usual) * len(steps)
    if width < (LEAST_ENDS if clocks is None else LEAST_ALIGNED_ENDS) or len(kept) <= 1:
        return None
    picked = np.unique(np.linspace(0, width - 1, min(width, columns)).astype(int))
    starts, ends = np.zeros((len(kept), len(picked))), np.zeros((len(kept), len(picked)))
    for row, rank in enumerate(kept):
        stream = members[rank]
        places = np.concatenate([stream.rows[s] for s in steps])[picked]
        begin, end = stream.rank.start[places], stream.rank.end[places]
        if clocks is None:
            starts[row], ends[row] = begin - end[0], end - end[0]
        else:
            starts[row], ends[row] = clocks.align(rank, begin), clocks.align(rank, end)
    size = next(iter(members.values())).size
    streams = {r: s.stream for r, s in members.items()}
    usual = next(iter(members.values())).usual
    at = tuple(column % len(usual) for column in picked.tolist())
    kinds = tuple(usual[place] for place in at)
    return StreamClass(
        streams, tuple(kept), starts, ends, size, clocks is not None, kinds, at, usual, *_doubt(kept, clocks)
    )


def _doubt(ranks: Sequence[int], clocks: Clocks | None) -> tuple[float, bool, tuple[int, ...]]:
    """Return the fields `doubt`, `drifts` and `exact` of a class of `ranks`."""
    if clocks is None:
        return 0.0, False, ()
    drifts = len({clocks.exact.get(rank, rank) for rank in ranks}) > 1
    fitted = tuple(clocks.fitted.get(rank, rank) for rank in ranks)
    return max((clocks.doubt.get(rank, 0.0) for rank in ranks), default=0.0), drifts, fitted * drifts


# Operations take the groups that were inferred for their streams, and lose them to be inferred again.


def named(
    run: Run, ranks: list[RankOps], found: Mapping[tuple[int, int], tuple[int, ...]], *, sure: bool = False
) -> tuple[Run, list[RankOps]]:
    """Return `run` with the groups in `found` ((rank, stream) → members), and the operations of their streams in them.

    Operations that left together on a stream are collectives, for any name of the kernel (RCCL has one name for all).
    Unless it is `sure`, because nothing else is possible, a group counts as inferred, and may be inferred again.
    """
    number = {g.ranks: g.group for g in run.groups}
    groups = list(run.groups)
    for members in sorted(set(found.values())):
        if members not in number:
            number[members] = len(groups)
            groups.append(InferredGroup(len(groups), members, (), ()))
    every = []
    for rank in ranks:
        group, mine = rank.group.copy(), unnamed_rows(rank)
        for stream in np.unique(rank.stream[mine]).tolist() if rank.stream is not None else []:
            if (rank.rank, stream) in found:
                group[mine & (rank.stream == stream)] = number[found[rank.rank, stream]]
        learnt = mine & (group != rank.group)
        op = tuple(
            COLLECTIVE if new and o == OTHER else o for o, new in zip(rank.op, learnt.tolist(), strict=True)
        )
        before = np.zeros(len(group), bool) if rank.inferred is None else rank.inferred
        inferred = before if sure else learnt | before
        every.append(replace(rank, group=group, op=op, inferred=inferred))
    return replace(run, groups=tuple(groups)), every


def without_inferred(rank: RankOps) -> RankOps:
    """Return `rank` with only the groups that its arguments name."""
    if rank.inferred is None:
        return rank
    return replace(rank, group=np.where(rank.inferred, NO_GROUP, rank.group).astype(rank.group.dtype))
