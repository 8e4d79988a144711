"""Groups of collectives that name none: by the stream they ran on, the mesh, and the ranks that leave together.

Up to torch 2.3 no operation names its group. Where the mesh is known, its lines, planes and blocks are the groups that
a stream can belong to; else the groups are those whose members leave together. What stays open keeps no group, and so
no wait of it is known.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import combinations

import numpy as np

from tracekit.analysis.slowrank.mesh_choice import choose as choose_mesh
from tracekit.errors import MeshError
from tracekit.mesh import Mesh
from tracekit.mesh.parse import mesh_remedy
from tracekit.store import InferredGroup, Run
from tracekit.tables.common_ends import Members, Together, choose, clusters
from tracekit.tables.match import match
from tracekit.tables.operations import RankOps
from tracekit.tables.stream_sequences import StreamClass, stream_classes, unnamed_rows

Ways = list[list[Members]]


def with_groups_of_streams(
    run: Run, ranks: list[RankOps], sizes: dict[str, int] | None, order: Sequence[str] | None
) -> tuple[Run, list[RankOps]]:
    """`run` and its operations with the groups that streams tell; unchanged where every collective names its group.

    `sizes` and `order` are the user's mesh. Raises UsageError where they contradict the input, MeshError where neither
    groups nor common ends tell a mesh.
    """
    if len(ranks) < len(("one", "other")) or not any(unnamed_rows(r).any() for r in ranks):
        return run, ranks
    if not any(len(g.ranks) > 1 for g in run.groups):
        told = _by_ends(stream_classes(ranks)) if sizes is None else {}
        world = _world(run, ranks)
        if sizes is None and not told:
            raise MeshError(
                "the traces name no process groups, and the ends of collectives do not tell which ranks belong "
                f"together; {mesh_remedy(len(world))}"
            )
        # with a group in the run, an operation without one is unknown, and not everybody's
        run, ranks = _named(run, ranks, told or {(-1, -1): world})
    mesh = _mesh(run, ranks, sizes, order)
    if mesh is None:
        return run, ranks
    return _named(run, ranks, _by_mesh(stream_classes(ranks), mesh, {r.rank for r in ranks}))


def _mesh(
    run: Run, ranks: list[RankOps], sizes: dict[str, int] | None, order: Sequence[str] | None
) -> Mesh | None:
    """The mesh as far as it is known before every group is; None where nothing tells it."""
    try:
        return choose_mesh(run, match(ranks, run.groups), sizes, order).mesh
    except MeshError:
        return None


def _world(run: Run, ranks: list[RankOps]) -> Members:
    return tuple(range(max(run.world_size or 0, max(r.rank for r in ranks) + 1)))


def _by_ends(classes: list[StreamClass]) -> dict[tuple[int, int], Members]:
    """(rank, stream) → members of its group, by common ends alone."""
    found: dict[tuple[int, int], Members] = {}
    for streams in classes:
        for group in clusters(Together(streams)):
            if streams.size in {-1, len(group)}:
                found |= {(rank, streams.streams[rank]): group for rank in group}
    return found


def _by_mesh(classes: list[StreamClass], mesh: Mesh, recorded: set[int]) -> dict[tuple[int, int], Members]:
    """(rank, stream) → members of its group, which is one of those that `mesh` allows."""
    found: dict[tuple[int, int], Members] = {}
    for streams in classes:
        ways = [way for way in _ways(mesh) if _fits(way, streams, recorded)]
        chosen = choose(Together(streams), ways)
        if chosen is not None:
            home = {rank: group for group in ways[chosen] for rank in group}
            found |= {(rank, stream): home[rank] for rank, stream in streams.streams.items() if rank in home}
    return found


def _ways(mesh: Mesh) -> Iterator[list[Members]]:
    """Every way in which a process group divides the ranks: along some of the axes, or the two ends of a line."""
    axes = [a for a in mesh.order if mesh.sizes[a] > 1]
    for count in range(1, len(axes) + 1):
        for along in combinations(axes, count):
            yield sorted({mesh.line(rank, along) for rank in mesh.coordinates})
    for axis in axes:
        lines = {mesh.line(rank, (axis,)) for rank in mesh.coordinates}
        if mesh.sizes[axis] > len(("first", "last")):
            yield sorted((line[0], line[-1]) for line in lines)


def _fits(way: list[Members], streams: StreamClass, recorded: set[int]) -> bool:
    """Whether groups of `way` may be those of the class: of the told size, with no recorded member outside."""
    mine = set(streams.streams)
    shared = [g for g in way if mine.intersection(g)]
    sized = all(streams.size in {-1, len(g)} for g in shared)
    members = {r for g in shared for r in g}
    return sized and mine <= members and members & recorded <= mine


def _named(
    run: Run, ranks: list[RankOps], found: dict[tuple[int, int], Members]
) -> tuple[Run, list[RankOps]]:
    """`run` with the groups in `found`, and the operations of their streams in them."""
    number = {g.ranks: g.group for g in run.groups}
    groups = list(run.groups)
    for members in sorted(set(found.values())):
        if members not in number:
            number[members] = len(groups)
            groups.append(InferredGroup(len(groups), members, (), ()))
    named = []
    for rank in ranks:
        group, mine = rank.group.copy(), unnamed_rows(rank)
        for stream in np.unique(rank.stream[mine]).tolist() if rank.stream is not None else []:
            if (rank.rank, stream) in found:
                group[mine & (rank.stream == stream)] = number[found[rank.rank, stream]]
        named.append(replace(rank, group=group))
    return replace(run, groups=tuple(groups)), named
