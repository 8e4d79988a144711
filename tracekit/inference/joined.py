"""Matches the operations of all ranks and chooses the mesh; messages without a peer get theirs from both.

The mesh limits which ranks may exchange messages, and the messages may determine the mesh.
"""

from collections.abc import Sequence
from typing import NamedTuple

from tracekit.axes import PIPELINE
from tracekit.disjoint_sets import DisjointSets
from tracekit.errors import MeshError
from tracekit.inference.mesh.group_uses import group_uses, world_of
from tracekit.inference.mesh.mesh_choice import MeshChoice, choose, is_unknown
from tracekit.inference.mesh.programs import is_one_pipeline
from tracekit.inference.peers.line_order import with_line_order
from tracekit.inference.peers.neighbours import linked, with_only_neighbours
from tracekit.inference.peers.open_messages import (
    agreeing,
    any_open,
    half_known,
    open_kernels,
    set_aside,
    taken_back,
    with_links,
)
from tracekit.inference.peers.pipeline_order import with_pipeline_order
from tracekit.inference.peers.places_in_groups import with_recorded_places
from tracekit.inference.peers.stream_order import filled
from tracekit.matching.clock import align
from tracekit.matching.match import Operations, rematch
from tracekit.mesh import Mesh, infer
from tracekit.store import Run
from tracekit.thresholds.slowrank import AXIS_RIVAL, CLOCK_DOUBTS
from tracekit.thresholds.tables import COMMON_END_NS


class Joined(NamedTuple):
    """Operations with the inferred peers of messages, the mesh, and the pipelines along which peers were inferred."""

    ops: Operations
    choice: MeshChoice
    lines: frozenset[tuple[int, ...]]


def joined(
    run: Run,
    ops: Operations,
    sizes: dict[str, int] | None,
    order: Sequence[str] | None,
    lines: frozenset[tuple[int, ...]] = frozenset(),
) -> Joined:
    """Return `ops` with the inferred peers of messages, and the mesh; `sizes` and `order` are the user's.

    `lines` are the pipelines along which peers were inferred before. Raises UsageError where the user's mesh
    contradicts the input, MeshError where nothing determines the mesh.
    """
    best = _best_linked(run, ops, sizes, order)
    if best is not None:
        ops, lines = best.ops, lines | best.lines if best.links else lines
    return Joined(ops, choose(run, ops, sizes, order, lines), lines)


def _best_linked(
    run: Run, ops: Operations, sizes: dict[str, int] | None, order: Sequence[str] | None
) -> "_Linked | None":
    """The links along the one axis that has clearly most of them; None where no axis is clear or no message open."""
    if not ops.among(("send_recv",)).any():
        return None
    tried = [
        _linked(run, ops, mesh, axis, sure=sure) for mesh, axis, sure in _candidates(run, ops, sizes, order)
    ]
    tried.sort(key=lambda t: -t.links)
    alone = len(tried) == 1 or (tried and tried[1].links <= AXIS_RIVAL * tried[0].links)
    if not alone or not (tried[0].links or tried[0].sure):
        return None
    best = tried[0]
    whole = any(len(line) == len(world_of(run, ops)) for line in best.lines)
    if not best.sure and (not _connected(best) or (whole and not is_one_pipeline(best.ops))):
        return None  # only these links suggest a pipeline
    return best


class _Linked(NamedTuple):
    """Operations with open messages linked along the lines of one axis, and the number of links."""

    ops: Operations
    lines: set[tuple[int, ...]]
    links: int
    sure: bool  # that the axis is a pipeline


def _connected(found: _Linked) -> bool:
    """Whether messages connect all ranks of each fully recorded line; expert tokens connect only parts of a line."""
    sets = DisjointSets(found.ops.ranks)
    for channel in found.ops.channels:
        if channel.p2p and set(channel.members) <= set(found.ops.ranks):
            sets.join(*channel.members)
    whole = [line for line in found.lines if set(line) <= set(found.ops.ranks)]
    return all(len({sets.find(rank) for rank in line}) == 1 for line in whole)


def _linked(run: Run, ops: Operations, mesh: Mesh, axis: str, *, sure: bool) -> _Linked:
    """Return `ops` with the links found along `axis`.

    Linked messages align clocks that share no collective, so that more messages can be linked in the next round.
    """
    lines = {mesh.line(r, [axis]) for r in mesh.coordinates}
    pairs = [pair for line in lines for pair in _neighbours(mesh, axis, line)]
    ops = rematch(ops, list(ops.per_rank.values()), run.groups)
    count = 0
    if sure:
        ops, count = _by_order(
            run, ops, [tuple(sorted(s, key=lambda r: mesh.coords(r)[axis])) for s in lines]
        )
    one_sided = half_known(ops)
    if one_sided:
        ops = rematch(ops, set_aside(ops.per_rank.values(), one_sided), run.groups)
    for _ in range(mesh.sizes[axis]):
        clocks = align(ops)
        doubt = CLOCK_DOUBTS * clocks.residual_ns
        links = linked(open_kernels(ops, clocks), pairs, doubt, sure=sure)
        links = agreeing(links, ops, one_sided)
        if not links:
            break
        count += len(links)
        ops = rematch(ops, with_links(ops, links), run.groups)
    if one_sided:
        ops = rematch(ops, taken_back(ops.per_rank.values(), one_sided), run.groups)
    if count:
        clocks = align(ops)
        doubt = CLOCK_DOUBTS * clocks.residual_ns
        ops = rematch(ops, filled(ops, clocks, COMMON_END_NS + doubt), run.groups)
    return _Linked(ops, lines, count, sure)


def _by_order(run: Run, ops: Operations, stages: Sequence[tuple[int, ...]]) -> tuple[Operations, int]:
    """Return `ops` with the peers from places and orders along the pipelines `stages`, and their number."""
    count = 0
    for learn in (with_recorded_places, with_only_neighbours, with_pipeline_order, with_line_order):
        learnt, more = learn(ops, align(ops), stages)
        ops = rematch(ops, learnt, run.groups) if more else ops
        count += more
    return ops, count


def _candidates(
    run: Run, ops: Operations, sizes: dict[str, int] | None, order: Sequence[str] | None
) -> list[tuple[Mesh, str, bool]]:
    """Return (mesh, axis, whether it is surely a pipeline) along which messages may go; one of them is right.

    If the mesh has no pipeline, one of its axes may be a pipeline with messages that are open in steps.
    """
    try:
        mesh = None if is_unknown(run) else choose(run, ops, sizes, order).mesh
    except MeshError:
        mesh = _of_groups(run, ops, order)
    if mesh is None or (sizes is not None and mesh.stages == 1):
        return []
    if mesh.stages > 1:
        return [(mesh, PIPELINE, True)]
    return [(mesh, axis, False) for axis in mesh.order if mesh.sizes[axis] > 1] if any_open(ops) else []


def _of_groups(run: Run, ops: Operations, order: Sequence[str] | None) -> Mesh | None:
    """Return the mesh from the groups alone, possibly with wrong names of axes; None if they give none."""
    try:
        return infer(group_uses(run, ops), world_of(run, ops), order).mesh
    except MeshError:
        return None


def _neighbours(mesh: Mesh, axis: str, line: tuple[int, ...]) -> list[tuple[int, int]]:
    """Return neighbours on a line along an axis; its last rank may talk to the first: stages are interleaved."""
    stages = sorted(line, key=lambda r: mesh.coords(r)[axis])
    return [(a, b) for a, b in zip(stages, [*stages[1:], stages[0]], strict=True) if a != b]
