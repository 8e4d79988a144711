"""Infers the groups of collectives that name none: from their stream, the mesh, and the ranks that leave together.

Up to torch 2.3 no operation names its group. If the mesh is known, its lines, planes and blocks are the groups that a
stream can belong to; else members of a group leave together, or, if ranks are missing, the groups follow from a mesh of
the usual numbering. An operation that stays open has no group, so its wait is unknown.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from tracekit.errors import MeshError, MeshUnknownError
from tracekit.inference.groups.common_ends import Members, Together, clusters
from tracekit.inference.groups.groups_by_place import with_groups_of_places
from tracekit.inference.groups.places_apart import streams_apart
from tracekit.inference.groups.stream_sequences import (
    NO_GROUP,
    UNTOLD_KINDS,
    StreamClass,
    named,
    stream_classes,
    streams_of_all,
    unnamed_rows,
)
from tracekit.inference.groups.thread_groups import (
    groups_of_threads,
    silent_messages,
    with_all_to_alls,
    with_paired_all_to_alls,
)
from tracekit.inference.groups.usual_numbering import (
    Way,
    allowed_ways,
    is_listed,
    listed_groups,
    members_of,
    only_of_size,
    several_listed,
    shown,
    usual_groups,
    ways_of,
)
from tracekit.inference.joined import joined
from tracekit.inference.mesh.group_contradictions import contradiction
from tracekit.inference.mesh.group_uses import group_uses, world_of
from tracekit.inference.mesh.mesh_choice import choose as choose_mesh
from tracekit.inference.mesh.mesh_choice import is_unknown, remedy
from tracekit.inference.mesh.programs import programs
from tracekit.matching.clock import align
from tracekit.matching.match import Operations, match, rematch
from tracekit.mesh import Mesh, infer
from tracekit.rank_events.rank_ops import RankOps
from tracekit.schema import Group
from tracekit.store import Run
from tracekit.thresholds.inference import ENDS_WIDTH_NS, ROUNDS_OF_CLOCKS
from tracekit.thresholds.tables import TAIL_NS


def with_groups_of_streams(
    run: Run, ranks: list[RankOps], sizes: dict[str, int] | None, order: Sequence[str] | None
) -> tuple[Run, list[RankOps]]:
    """Return `run` and its operations with the groups from streams; unchanged if every collective names its group.

    `sizes` and `order` are the user's mesh. Raises UsageError if they contradict the input, MeshUnknownError if neither
    groups nor common ends give a mesh.
    """
    if len(ranks) < len(("one", "other")) or is_unknown(run):
        return run, ranks
    if any(unnamed_rows(r).any() for r in ranks):
        run, named_ranks = _by_streams(run, streams_apart(ranks), sizes, order)
        ranks = [replace(new, stream=old.stream) for new, old in zip(named_ranks, ranks, strict=True)]
    silent = any(silent_messages(r).any() for r in ranks)
    mesh = _mesh(run, ranks, sizes, order) if silent else None
    if mesh is None:
        return run, ranks
    known = sizes is not None or several_listed(run, mesh).keys() >= {r.rank for r in ranks}
    if known and mesh.stages == 1:  # no stage sends to another one, so that two ranks exchange
        return with_all_to_alls(run, ranks, mesh, least=2)
    return with_all_to_alls(run, ranks, mesh)


def _by_streams(
    run: Run, ranks: list[RankOps], sizes: dict[str, int] | None, order: Sequence[str] | None
) -> tuple[Run, list[RankOps]]:
    """Return what `with_groups_of_streams` does, for streams that carry one group each."""
    everybody = streams_of_all(ranks, _world(run, ranks)) | _only_worlds(run, ranks)
    run, ranks = named(run, ranks, everybody | only_of_size(run, ranks, _world(run, ranks)), sure=True)
    run, ranks = named(run, ranks, groups_of_threads(ranks, run.groups), sure=True)
    if not any(unnamed_rows(r).any() for r in ranks):
        return run, ranks
    if not any(len(g.ranks) > 1 for g in run.groups):
        members_of_streams = _members_of_streams(run, ranks, order) if sizes is None else None
        if (
            members_of_streams is None
            and (sizes is None or sum(size > 1 for size in sizes.values()) == 1)
            and _one_stream_each(ranks)
            and not _leaves_apart(ranks, _world(run, ranks))
        ):
            members_of_streams = _everybodys(run, ranks)
        if (
            members_of_streams is None
            and sizes is None
            and not _is_pipeline(*named(run, ranks, {(-1, -1): _world(run, ranks)}), order)
        ):
            raise MeshUnknownError(
                "the traces name no process groups, and the ends of collectives do not show which ranks belong "
                f"together; {remedy(run, _world(run, ranks))}"
            )
        # with a group in the run, an operation without one is unknown rather than the world's
        run, ranks = named(run, ranks, members_of_streams or {(-1, -1): _world(run, ranks)})
    mesh = _mesh(run, ranks, sizes, order)
    if mesh is None:
        return run, ranks
    run, ranks = named(run, ranks, groups_of_threads(ranks, _possible(mesh)))
    run, ranks = with_groups_of_places(run, ranks, mesh)
    return named(run, ranks, _by_mesh(run, stream_classes(ranks), mesh, {r.rank for r in ranks}))


def _only_worlds(run: Run, ranks: list[RankOps]) -> dict[tuple[int, int], Members]:
    """Return (rank, stream) → all ranks, if no file names another group of several ranks; empty if ends contradict.

    From torch 2.3 a file lists the groups of its rank, so an unnamed operation, as in a CUDA graph, is in one of these,
    unless operations count fewer members.
    """
    world = _world(run, ranks)
    counted = {n for r in ranks if r.group_size is not None for n in r.group_size[unnamed_rows(r)].tolist()}
    if any(found != {world} for found in listed_groups(run).values()) or not counted <= {-1, len(world)}:
        return {}
    return {} if _leaves_apart(ranks, world) else _everybodys(run, ranks)


def _everybodys(run: Run, ranks: list[RankOps]) -> dict[tuple[int, int], Members]:
    """Return (rank, stream) → all ranks, for all streams with collectives that name no group."""
    world = _world(run, ranks)
    open_ = ((r.rank, r.stream[unnamed_rows(r)]) for r in ranks if r.stream is not None)
    return {(rank, s): world for rank, streams in open_ for s in np.unique(streams).tolist()}


def _leaves_apart(ranks: list[RankOps], world: Members) -> bool:
    """Return whether ends show that the collectives of streams do not belong to all ranks."""
    apart = [Together(c).apart([world]) for c in stream_classes(ranks)]
    return any(a is not None and a > ENDS_WIDTH_NS for a in apart)


def _one_stream_each(ranks: list[RankOps]) -> bool:
    """Whether each rank communicates on one stream only, in the same collectives, over a step or more.

    Before torch 2.3, where files list no groups, each communicator has a stream of its own. Ranks with only one
    form one group, since they would be several jobs otherwise. Windows of less than a step may show only one of several
    groups, and messages may connect ranks in other ways.
    """
    kinds = {frozenset(r.op) for r in ranks}
    if len(kinds) > 1 or kinds & {frozenset()} or any(kinds_of & UNTOLD_KINDS for kinds_of in kinds):
        return False
    return all(
        len(r.steps) >= len(("begun", "ended"))
        and bool(unnamed_rows(r).all())
        and len(np.unique(r.stream if r.stream is not None else [])) == 1
        for r in ranks
    )


def _members_of_streams(
    run: Run, ranks: list[RankOps], order: Sequence[str] | None
) -> dict[tuple[int, int], Members] | None:
    """Return (rank, stream) → members of its group, by common ends; None if they give no mesh.

    If all ranks were recorded they may be numbered in any way; else they count up along the axes.
    """
    classes, world = stream_classes(ranks), _world(run, ranks)
    for members in (
        _by_ends(classes) if len(ranks) == len(world) else {},
        _by_numbers(classes, world, ranks),
    ):
        if members and _is_mesh(*named(run, ranks, members), order):
            return members
    return None


def _is_pipeline(run: Run, ranks: list[RankOps], order: Sequence[str] | None) -> bool:
    """Whether messages show that all ranks of `run` are one pipeline, where no ends show any group."""
    return joined(run, match(ranks, run.groups), None, order).choice.mesh.stages > 1


def _by_numbers(
    classes: list[StreamClass], world: Members, ranks: list[RankOps]
) -> dict[tuple[int, int], Members]:
    return usual_groups(classes, len(world), [r.rank for r in ranks])


def _is_mesh(run: Run, ranks: list[RankOps], order: Sequence[str] | None) -> bool:
    """Whether all groups of `run` lie along the axes of one mesh, whatever their names."""
    ops = match(ranks, run.groups)
    uses = [replace(u, named=True) for u in group_uses(run, ops)]
    try:
        mesh = infer(uses, world_of(run, ops), order, programs(ops)).mesh
        return contradiction(mesh, uses, inferred=True) is None
    except MeshError:
        return False


def _mesh(
    run: Run, ranks: list[RankOps], sizes: dict[str, int] | None, order: Sequence[str] | None
) -> Mesh | None:
    """Return the mesh as far as it is known before all groups are; None if it is unknown."""
    try:
        return choose_mesh(run, match(ranks, run.groups), sizes, order).mesh
    except MeshError:
        return None


def _world(run: Run, ranks: list[RankOps]) -> Members:
    return tuple(range(max(run.world_size or 0, max(r.rank for r in ranks) + 1)))


def _by_ends(classes: list[StreamClass]) -> dict[tuple[int, int], Members]:
    """Return (rank, stream) → members of its group, from common ends only."""
    found: dict[tuple[int, int], Members] = {}
    for streams in classes:
        for group in clusters(Together(streams)):
            if streams.size in {-1, len(group)}:
                found |= {(rank, streams.streams[rank]): group for rank in group}
    return found


def _possible(mesh: Mesh) -> list[Group]:
    """Return the groups of all ways in which `mesh` can be divided; their order of creation is unknown."""
    members = [group for way in ways_of(mesh) if not way.part for group in way.groups]
    return [Group(n, ranks, (), ()) for n, ranks in enumerate(members)]


def _by_mesh(
    run: Run, classes: list[StreamClass], mesh: Mesh, recorded: set[int]
) -> dict[tuple[int, int], Members]:
    """Return (rank, stream) → members of its group, among the groups that `mesh` allows and its ranks' files list.

    A stream that ends with no listed group stays open: there the clocks are wrong.
    """
    listed = several_listed(run, mesh)
    decided = shown(classes, list(ways_of(mesh)), recorded, listed)
    found = [(streams, [way for way in ways if is_listed(way, listed, streams)]) for streams, ways in decided]
    open_ = [c for c in classes if not any(c is streams for streams, _ in decided)]
    for streams, ways in allowed_ways(run, mesh, open_, recorded):
        if listed.keys() >= streams.streams.keys():
            found += [(c, w) for c, w in shown([streams], ways, recorded) if _leave_together(c, w)]
    return members_of([(streams, allowed) for streams, allowed in found if allowed], recorded)


def _leave_together(streams: StreamClass, ways: Sequence[Way]) -> bool:
    """Whether the groups of `ways` leave within the tail of a transfer."""
    ends = [Together(streams).apart(way.groups) for way in ways]
    return all(e is not None and e <= TAIL_NS for e in ends)


def with_rare_groups(run: Run, ops: Operations, mesh: Mesh) -> tuple[Run, Operations]:
    """Return `run` and `ops` with the groups of collectives that are too rare to be found without a common clock.

    They often matter most: once a step all ranks wait in one. The clocks follow from matched operations. If a stream
    carries several groups, groups inferred without the clocks are inferred again, place by place.
    """
    run, ops = with_paired_all_to_alls(run, ops, mesh)
    ranks = list(ops.per_rank.values())
    if is_unknown(run) or len(ranks) < len(("one", "other")) or not any(_open(r) for r in ranks):
        return run, ops
    for _ in range(ROUNDS_OF_CLOCKS):
        run, renamed = with_groups_of_places(run, ranks, mesh, align(ops))
        run, renamed = named(
            run, renamed, _by_mesh(run, stream_classes(renamed, align(ops)), mesh, set(ops.ranks))
        )
        if all((a.group == b.group).all() for a, b in zip(ranks, renamed, strict=True)):
            break
        ranks, ops = renamed, rematch(ops, renamed, run.groups)
    own = _by_own_streams(run, ranks)
    return (run, rematch(ops, named(run, ranks, own)[1], run.groups)) if own else (run, ops)


def _by_own_streams(run: Run, ranks: list[RankOps]) -> dict[tuple[int, int], Members]:
    """Return (rank, stream) → members, for streams with operations of one known group and others without a group.

    Empty unless the files know the world and list no groups, as before torch 2.3: each communicator has a stream there.
    """
    if any(run.record(r.rank).world_size is None or run.record(r.rank).groups for r in ranks):
        return {}
    members, found = {g.group: g.ranks for g in run.groups}, {}
    for rank in ranks:
        open_ = unnamed_rows(rank)
        for stream in np.unique(rank.stream[open_]).tolist() if rank.stream is not None else []:
            known = np.unique(rank.group[(rank.stream == stream) & (rank.group != NO_GROUP)]).tolist()
            if len(known) == 1:
                found[rank.rank, stream] = members[known[0]]
    return found


def _open(rank: RankOps) -> bool:
    """Whether a collective of the rank names no group, or has an inferred one."""
    return bool(unnamed_rows(rank).any() or (rank.inferred is not None and rank.inferred.any()))
