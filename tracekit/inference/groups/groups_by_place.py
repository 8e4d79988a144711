"""Groups of streams that carry several groups: each position of the step gets the ranks that leave together there."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
import numpy.typing as npt

from tracekit.inference.groups.common_ends import Members
from tracekit.inference.groups.places_apart import (
    carries_others,
    leave_apart,
    stand_still_as_one,
    ways_by_place,
)
from tracekit.inference.groups.stream_sequences import (
    NO_GROUP,
    StreamClass,
    named,
    places_on,
    stream_classes,
    unnamed_rows,
    without_inferred,
)
from tracekit.inference.groups.usual_numbering import Way, allowed_ways, by_parts, members_of
from tracekit.matching.clock import Clocks
from tracekit.mesh import Mesh
from tracekit.rank_events.coded_words import among
from tracekit.rank_events.rank_ops import RankOps
from tracekit.store import Run
from tracekit.units import I64


def with_groups_of_places(
    run: Run, ranks: list[RankOps], mesh: Mesh, clocks: Clocks | None = None
) -> tuple[Run, list[RankOps]]:
    """Return `run` and `ranks` with groups for the streams that carry several; all others stay as they are.

    With `clocks`, groups that were inferred before are inferred again, and dropped if their members leave apart. Then
    each kind is also compared by itself, over ranks with streams that carry other groups as well: all stages of a
    pipeline reduce norms in one group, each on the stream of its own.
    """
    bare = [without_inferred(r) for r in ranks]
    recorded = {r.rank for r in ranks}
    known, members = {r.rank: r for r in ranks}, {g.group: g.ranks for g in run.groups}
    numbered = _Numbered(known, {r.rank: r for r in bare}, recorded, members)
    kinds = sorted(
        {k for r in bare for k, open_ in zip(r.op, unnamed_rows(r).tolist(), strict=True) if open_}
    )
    for kind in (None, *(kinds if clocks is not None else ())):
        for streams, ways in allowed_ways(run, mesh, numbered.classes(clocks, kind), recorded):
            numbered.add(streams, ways, kind)
    run, renamed = named(run, numbered.ranks(), numbered.found)
    parted = _parted(run, ranks, numbered, kinds) if clocks is not None else {}
    return run, [_joined(old, new, parted.get(old.rank)) for old, new in zip(ranks, renamed, strict=True)]


def _of_kind(rank: RankOps, *, kind: str | None) -> npt.NDArray[np.bool_]:
    """Whether each operation names no group and is of a kind, or of any."""
    unnamed = unnamed_rows(rank)
    return unnamed if kind is None else unnamed & among(rank.op, (kind,))


Hint = dict[int, Members]
"""Rank → members of the group that the arguments of an operation name."""


def fitting(ways: Sequence[Way], hint: Hint) -> list[Way]:
    """Return the `ways` that contain the groups of a hint."""
    return [w for w in ways if set(hint.values()).issubset(w.groups)]


@dataclass
class _Numbered:
    """Streams with a separate number for the positions of each of their groups."""

    known: dict[int, RankOps]  # with the groups that were inferred before
    bare: dict[int, RankOps]
    recorded: set[int]
    members: dict[int, Members]  # of each group, by number
    found: dict[tuple[int, int], Members] = field(default_factory=dict)  # (rank, number) → members
    seen: list[tuple[StreamClass, str | None]] = field(default_factory=list)  # with their kind, if restricted
    rows: dict[tuple[int, int], I64] = field(default_factory=dict)  # (rank, number) → its operations
    excluded: list[tuple[int, I64, set[Members]]] = field(default_factory=list)
    """Rank, operations, and the groups that contain theirs according to their ends, without showing which."""
    free: int = field(init=False)

    def __post_init__(self) -> None:
        used = (r.stream for r in self.bare.values() if r.stream is not None)
        self.free = 1 + max((int(s.max(initial=0)) for s in used), default=0)

    def classes(self, clocks: Clocks | None, kind: str | None) -> list[StreamClass]:
        """Return the classes of streams with unnamed groups, or of their operations of one `kind`, by place."""
        bare, rows = list(self.bare.values()), partial(_of_kind, kind=kind)
        found = stream_classes(bare, clocks, by_place=True, rows=rows)
        return found if kind is None else [part for one in found for part in self._by_size(one, kind)]

    def _by_size(self, streams: StreamClass, kind: str) -> list[StreamClass]:
        """Return a class, divided by sizes of groups where those inferred before leave together, but not with others.

        Streams of different groups may run one kind equally often.
        """
        places = sorted(set(streams.places))
        before = _division(self.known, self.rows_of(streams, places, kind), self.members)
        size = {rank: len(group) for group in before for rank in group}
        whole = sum(map(len, before)) == len(size) and streams.streams.keys() <= size.keys()
        if not whole or len(set(size.values())) == 1 or any(leave_apart(streams, p, before) for p in places):
            return [streams]
        if not all(leave_apart(streams, place, [streams.kept]) for place in places):
            return [streams]
        parts = (streams.of([r for r in streams.streams if size[r] == n]) for n in sorted(set(size.values())))
        return [part for part in parts if len(part.kept) > 1]

    def add(self, streams: StreamClass, ways: Sequence[Way], kind: str | None) -> None:
        """Number the positions of a class by their ways, if it carries several groups or is one `kind` only."""
        by_part = by_parts(streams, ways, self.recorded)
        parts = list(by_part)
        hints = self._hints(streams, kind)
        barred = {p: [n for n, k in enumerate(parts) if not fitting(by_part[k], h)] for p, h in hints.items()}
        found = ways_by_place(streams, parts, barred)
        for place, hint in hints.items():
            left = [n for n, key in enumerate(parts) if fitting(by_part[key], hint)]
            if len(left) == 1:
                found[place] = left[0]
        places = defaultdict(list)
        for place, way in found.items():
            places[way, tuple(sorted(hints.get(place, {}).items()))].append(place)
        self.seen.append((streams, kind))
        several = len(places) > 1 or any(carries_others(streams, parts[way], found) for way, _ in places)
        if kind is None and not several and not self._beside_named(streams):
            return
        for (way, pairs), mine in sorted(places.items()):
            self._number(streams, fitting(by_part[parts[way]], dict(pairs)), mine, kind)

    def _beside_named(self, streams: StreamClass) -> bool:
        """Whether a stream of the class also carries operations that name their group."""
        mine = ((self.bare[rank], stream) for rank, stream in streams.streams.items())
        return any((ops.group[ops.stream == stream] != NO_GROUP).any() for ops, stream in mine)

    def _hints(self, streams: StreamClass, kind: str | None) -> dict[int, Hint]:
        """Return place → rank → members of the group that arguments name there, if they name one."""
        hints: dict[int, Hint] = defaultdict(dict)
        for rank, stream in streams.streams.items():
            ops = self.bare[rank]
            if ops.hint is None or (ops.hint == NO_GROUP).all():
                continue
            at = places_on(ops, stream, streams.usual, _of_kind(ops, kind=kind))
            for place in np.unique(at[(ops.hint != NO_GROUP) & (at != NO_GROUP)]).tolist():
                recorded = np.unique(ops.hint[at == place])
                recorded = recorded[recorded != NO_GROUP]
                if len(recorded) == 1:
                    hints[place][rank] = self.members[int(recorded[0])]
        return hints

    def _number(self, streams: StreamClass, ways: list[Way], places: list[int], kind: str | None) -> None:
        """Number the operations of a class at `places`; kinds that run only there are numbered in all steps."""
        new = replace(streams, streams=dict.fromkeys(streams.streams, self.free))
        found = members_of([(new, ways)], self.recorded)
        for rank, rows in self.rows_of(streams, places, kind).items():
            if found:
                self.rows[rank, self.free] = rows
            else:
                self.excluded.append((rank, rows, {g for way in ways for g in way.groups}))
        self.found |= found
        self.free += 1

    def rows_of(self, streams: StreamClass, places: Sequence[int], kind: str | None) -> dict[int, I64]:
        """Return rank → its operations of a class at `places`; kinds that run only there count in all steps."""
        kinds = {k for i, k in enumerate(streams.usual) if i in places}
        kinds -= {k for i, k in enumerate(streams.usual) if i not in places}
        found = {}
        for rank, stream in streams.streams.items():
            ops = self.bare[rank]
            chosen = _of_kind(ops, kind=kind)
            mine = chosen & (ops.stream == stream) & among(ops.op, kinds)
            found[rank] = np.flatnonzero(
                mine | np.isin(places_on(ops, stream, streams.usual, chosen), places)
            )
        return found

    def open_places(self, streams: StreamClass, kind: str | None) -> Iterator[tuple[int, dict[int, I64]]]:
        """Yield each place of a class without an operation that was inferred again, and its operations by rank."""
        done = {rank: np.zeros(len(ops.op), bool) for rank, ops in self.bare.items()}
        for (rank, _), rows in self.rows.items():
            done[rank][rows] = True
        bare = {rank: self.bare[rank] for rank in streams.streams}
        at = {
            r: places_on(o, streams.streams[r], streams.usual, _of_kind(o, kind=kind))
            for r, o in bare.items()
        }
        for place in range(len(streams.usual)):
            here = {rank: np.flatnonzero(places == place) for rank, places in at.items()}
            if not any(done[rank][mine].any() for rank, mine in here.items()):
                yield place, here

    def ranks(self) -> list[RankOps]:
        """Return the operations with these numbers as their streams."""
        stream = {rank: ops.stream.copy() for rank, ops in self.bare.items() if ops.stream is not None}
        for (rank, number), rows in self.rows.items():
            stream[rank][rows] = number
        return [replace(ops, stream=stream.get(rank)) for rank, ops in self.bare.items()]


def _parted(
    run: Run, ranks: list[RankOps], numbered: _Numbered, kinds: Sequence[str]
) -> dict[int, npt.NDArray[np.bool_]]:
    """Return rank → whether each operation loses its inferred group, because the evidence now contradicts it.

    Its members leave apart on the common clock, or those of another group together; or, for any clocks, they are idle
    as one while members of other groups are not. Operations of that kind outside the steps lose it as well.
    """
    ops = {r.rank: r for r in ranks}
    members = {g.group: g.ranks for g in run.groups}
    lost = {r.rank: np.zeros(len(r.op), bool) for r in ranks}
    for streams, kind in numbered.seen:
        wrong = [
            place
            for place, rows in numbered.open_places(streams, kind)
            if leave_apart(streams, place, _division(ops, rows, members))
        ]
        _mark(lost, numbered.rows_of(streams, wrong, kind))
    for kind in kinds:
        for streams in numbered.classes(None, kind):
            wrong = [
                place
                for place, rows in numbered.open_places(streams, kind)
                if stand_still_as_one(streams, place, _division(ops, rows, members))
            ]
            _mark(lost, numbered.rows_of(streams, wrong, kind))
    for rank, mine, possible in numbered.excluded:
        other = [row for row in mine.tolist() if members.get(int(ops[rank].group[row])) not in possible]
        lost[rank][other] = True
    return lost


def _mark(lost: dict[int, npt.NDArray[np.bool_]], rows: Mapping[int, I64]) -> None:
    """Mark the rows of each rank in `lost`."""
    for rank, mine in rows.items():
        lost[rank][mine] = True


def _division(
    ops: Mapping[int, RankOps], rows: Mapping[int, I64], members: Mapping[int, Members]
) -> list[Members]:
    """Return the groups of the operations `rows` of each rank."""
    groups = {int(g) for rank, mine in rows.items() for g in np.unique(ops[rank].group[mine])}
    return sorted(members[g] for g in groups - {NO_GROUP})


def _joined(old: RankOps, new: RankOps, lost: npt.NDArray[np.bool_] | None) -> RankOps:
    """Return `old` with the groups of `new`; where `new` has no group its own stay, except at the rows `lost`."""
    group = old.group.copy()
    if lost is not None:
        group[lost] = NO_GROUP
    known = new.group != NO_GROUP
    group[known] = new.group[known]
    before = np.zeros(len(group), bool) if old.inferred is None else old.inferred
    learnt = before if new.inferred is None else before | new.inferred
    return replace(old, group=group, op=new.op, inferred=learnt & (group != NO_GROUP))
