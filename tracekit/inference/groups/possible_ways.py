"""The ways to divide the ranks into groups that the mesh and the groups listed by the files allow."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import combinations

from tracekit.inference.groups.common_ends import Members
from tracekit.inference.groups.stream_sequences import StreamClass
from tracekit.inference.groups.usual_numbering import Shown, Way, fits, usual_ways
from tracekit.mesh import Mesh
from tracekit.store import InferredGroup, Run


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
            yield Way(tuple(sorted((line[0], line[-1]) for line in lines)), part=True)


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
        yield Way(tuple(sorted(tuple(p) for p in parts.values())), part=True)
