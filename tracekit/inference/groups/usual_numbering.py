"""Infers unnamed groups where ranks count up along the axes of a mesh, as launchers number them.

If some ranks left no trace, common ends show only parts of groups. But a mesh with ranks that count up along its axes
has few ways to divide them, and the recorded parts show which.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise

import numpy as np

from tracekit.inference.groups.common_ends import Members, Together, choose, choose_in_step
from tracekit.inference.groups.stream_sequences import NO_GROUP, StreamClass, unnamed_rows
from tracekit.mesh import Mesh
from tracekit.rank_events.rank_ops import RankOps
from tracekit.schema import InferredGroup
from tracekit.store import Run
from tracekit.thresholds.tables import CLEARLY_APART, LEAST_TAIL_NS, MOST_AXES, MOST_CLUSTERED, MOST_WAYS

Cuts = tuple[int, ...]
"""Distances in ranks at which one axis ends and the next begins."""


@dataclass(frozen=True)
class Way:
    """A division of all ranks into groups: in the usual numbering, along one axis or along two with others between."""

    groups: tuple[Members, ...]
    cuts: Cuts = ()
    part: bool = False  # of an axis: shards, replicas, the ends of a line
    gaps: bool = False  # between neighbours in a part of an axis


Shown = list[tuple[StreamClass, list[Way]]]
"""Classes with the ways that may be theirs."""


def usual_groups(
    classes: Sequence[StreamClass], world: int, recorded: Iterable[int]
) -> dict[tuple[int, int], Members]:
    """Return (rank, stream) → members of its group, unrecorded ones too; empty where no single mesh explains all.

    world: ranks of the job. recorded: ranks with a trace. The mesh has the fewest axes that explain all classes with
    common ends that show a division; other streams are left out.
    """
    known = set(recorded)
    found = shown(classes, usual_ways(world), known)
    chain = set(_mesh([allowed for _, allowed in found], world) or ())
    fitting = [(streams, [w for w in allowed if chain.issuperset(w.cuts)]) for streams, allowed in found]
    return members_of([(streams, allowed) for streams, allowed in fitting if chain and allowed], known)


def usual_ways(world: int) -> list[Way]:
    """Return every way to divide a mesh of `world` ranks; empty where there are too many to try."""
    if world > MOST_CLUSTERED:
        return []
    steps = [d for d in range(1, world + 1) if world % d == 0]
    found = [c for c in combinations(steps, 2) if c[1] % c[0] == 0]
    holed = [c for c in combinations(steps, 4) if all(b % a == 0 for a, b in pairwise(c))]
    if len(found) + len(holed) > MOST_WAYS:
        return []
    ranks = np.arange(world)
    made = []
    for cuts in [*found, *holed]:
        inner, outer = cuts[0], cuts[-1]
        block = ranks % inner + inner * (ranks // outer)
        if len(cuts) > len(("inner", "outer")):
            block = block * world + ranks // cuts[1] % (cuts[2] // cuts[1])
        groups: dict[int, list[int]] = defaultdict(list)
        for rank, number in enumerate(block.tolist()):
            groups[number].append(rank)
        made.append(Way(tuple(tuple(g) for g in groups.values()), cuts))
    return made


def _parts(way: Way, ranks: set[int]) -> tuple[Members, ...]:
    """Return the groups of `way` restricted to `ranks`."""
    kept = (tuple(r for r in group if r in ranks) for group in way.groups)
    return tuple(sorted(k for k in kept if k))


def by_parts(
    streams: StreamClass, ways: Sequence[Way], recorded: set[int]
) -> dict[tuple[Members, ...], list[Way]]:
    """Return the ways that fit the class, by their recorded parts."""
    by_part: dict[tuple[Members, ...], list[Way]] = defaultdict(list)
    for way in ways:
        if fits(way.groups, streams, recorded):
            by_part[_parts(way, set(streams.kept))].append(way)
    return by_part


def shown(
    classes: Sequence[StreamClass],
    ways: Sequence[Way],
    recorded: set[int],
    listed: dict[int, set[Members]] | None = None,
) -> Shown:
    """Return the classes with evidence of how they divide the ranks, each with the remaining `ways`.

    Common ends show it. With the groups that files have `listed`, the `ways` are those of the mesh: ranks may come in
    step there, and ends need not separate ways that differ only by such ranks. If no two ranks of a class leave
    together, while they do elsewhere, one rank of each of its groups was recorded; so it is if only one way has groups
    of the recorded size.
    """
    fitting = [(streams, by_parts(streams, ways, recorded)) for streams in classes]
    found: Shown = []
    usual = 0.0
    for streams, alike in fitting:
        together, parts = Together(streams), list(alike)
        chosen = choose(together, parts)
        if chosen is None and listed is not None:
            named = [n for n, p in enumerate(parts) if any(is_listed(w, listed, streams) for w in alike[p])]
            chosen = choose_in_step(together, parts, named)
        if chosen is not None:
            found.append((streams, alike[parts[chosen]]))
            usual = max(usual, together.apart(parts[chosen]) or 0.0, LEAST_TAIL_NS)
    for streams, alike in fitting:
        if any(streams is s for s, _ in found):
            continue
        lonely = [w for parts, some in alike.items() if all(len(p) == 1 for p in parts) for w in some]
        apart = 0.0 < CLEARLY_APART * usual <= Together(streams).closest()
        sized = streams.size > 0 and len(lonely) == sum(len(some) for some in alike.values()) == 1
        if lonely and (apart or sized):
            found.append((streams, lonely))
    return found


def members_of(found: Shown, recorded: set[int]) -> dict[tuple[int, int], Members]:
    """Return the members of each (rank, stream)'s group: those of the finest remaining way of each class.

    Parts of an axis count only if no whole axis fits, and parts with gaps only if no block of neighbours fits: an
    unrecorded member would otherwise be lost. A class with ways that disagree about `recorded` ranks stays open: their
    clocks cannot be compared.
    """
    members: dict[tuple[int, int], Members] = {}
    for streams, allowed in found:
        if len({_parts(w, recorded.intersection(streams.streams)) for w in allowed}) > 1:
            continue
        finest = min(allowed, key=lambda w: (w.part, w.gaps, max(len(g) for g in w.groups), w.groups))
        home = {rank: group for group in finest.groups for rank in group}
        members |= {(rank, stream): home[rank] for rank, stream in streams.streams.items()}
    return members


def fits(way: Sequence[Members], streams: StreamClass, recorded: set[int]) -> bool:
    """Return whether groups of `way` may be those of the class: of the recorded size, no recorded member outside."""
    mine = set(streams.streams)
    shared = [g for g in way if mine.intersection(g)]
    sized = all(streams.size in {-1, len(g)} for g in shared)
    members = {r for g in shared for r in g}
    return sized and mine <= members and members & recorded <= mine


def _mesh(allowed: Sequence[Sequence[Way]], world: int) -> Cuts | None:
    """Return the cuts of the only mesh with the fewest axes that has a way for each class; None without one."""
    if not allowed:
        return None
    steps = [d for d in range(2, world) if world % d == 0]
    for count in range(MOST_AXES):
        chains = [
            (1, *c, world) for c in combinations(steps, count) if all(b % a == 0 for a, b in pairwise(c))
        ]
        fitting = [c for c in chains if all(any(set(w.cuts) <= set(c) for w in some) for some in allowed)]
        if fitting:
            return fitting[0] if len(fitting) == 1 else None
    return None


# The ways to divide the ranks into groups that the mesh and the groups listed by the files allow.


def allowed_ways(run: Run, mesh: Mesh, classes: Sequence[StreamClass], recorded: set[int]) -> Shown:
    """Return each class with the ways of `mesh` with groups of the recorded size that their ranks' files list.

    recorded: ranks with a trace.
    """
    listed, ways = several_listed(run, mesh), list(ways_of(mesh))
    return [
        (c, [w for w in ways if is_listed(w, listed, c) and fits(w.groups, c, recorded)]) for c in classes
    ]


def several_listed(run: Run, mesh: Mesh) -> dict[int, set[Members]]:
    """Return rank → the groups that its file lists, if it names one besides that of all ranks: then it lists all."""
    everybody = tuple(sorted(mesh.coordinates))
    return {rank: groups for rank, groups in listed_groups(run).items() if groups - {everybody}}


def listed_groups(run: Run) -> dict[int, set[Members]]:
    """Return rank → the groups of several ranks that its files name."""
    recorded = [g for g in run.groups if not isinstance(g, InferredGroup)]
    several = {g.group: g.ranks for g in recorded if len(g.ranks) > 1}
    return {record.rank: {several[n] for n in record.groups if n in several} for record in run.ranks}


def only_of_size(run: Run, ranks: Sequence[RankOps], world: Members) -> dict[tuple[int, int], Members]:
    """Return (rank, stream) → the only group of the rank's files with as many members as operations there count.

    Files that name a group besides that of all ranks list all groups of their rank. A stream with operations that name
    a group, or count no members, may carry several.
    """
    listed, found = listed_groups(run), dict[tuple[int, int], Members]()
    for rank in ranks:
        groups, open_ = listed.get(rank.rank, set()), unnamed_rows(rank)
        if rank.stream is None or rank.group_size is None or not groups - {world}:
            continue
        for stream in np.setdiff1d(rank.stream[open_], rank.stream[rank.group != NO_GROUP]).tolist():
            counted = set(rank.group_size[open_ & (rank.stream == stream)].tolist())
            fitting = [group for group in groups if {len(group)} == counted]
            if len(fitting) == 1:
                found[rank.rank, stream] = fitting[0]
    return found


def is_listed(way: Way, listed: dict[int, set[Members]], streams: StreamClass) -> bool:
    """Return whether the files of the class's ranks list their groups in `way`; files without a list allow any."""
    home = {rank: group for group in way.groups for rank in group}
    return all(home[rank] in listed[rank] for rank in streams.streams if rank in listed and rank in home)


def ways_of(mesh: Mesh) -> Iterator[Way]:
    """Return every way in which a process group divides the ranks.

    It extends along some of the axes, along part of one and all of some others (as shards and replicas do), or it is
    the two ends of a line.
    """
    axes = [a for a in mesh.order if mesh.sizes[a] > 1]
    for count in range(1, len(axes) + 1):
        for along in combinations(axes, count):
            yield Way(tuple(sorted({mesh.line(rank, along) for rank in mesh.coordinates})))
            for axis in along:
                yield from _parts_of(mesh, axis, along)
    for axis in axes:
        lines = {mesh.line(rank, (axis,)) for rank in mesh.coordinates}
        if mesh.sizes[axis] > len(("first", "last")):
            yield Way(tuple(sorted((line[0], line[-1]) for line in lines)), part=True, gaps=True)


def _parts_of(mesh: Mesh, axis: str, along: tuple[str, ...]) -> Iterator[Way]:
    """Yield the ways along `along` with `axis` divided into its inner and its outer part."""
    for way in usual_ways(mesh.sizes[axis]):
        if not 1 < len(way.groups) < mesh.sizes[axis]:
            continue
        block = {index: number for number, group in enumerate(way.groups) for index in group}
        place = mesh.order.index(axis)
        parts: dict[tuple[Members, int], list[int]] = defaultdict(list)
        for rank in sorted(mesh.coordinates):
            parts[mesh.line(rank, along), block[mesh.coordinates[rank][place]]].append(rank)
        yield Way(tuple(sorted(tuple(p) for p in parts.values())), part=True, gaps=way.cuts[0] > 1)
