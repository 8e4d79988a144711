"""Jobs that groups do not divide into axes alone: one pipeline without groups, or several programs.

Ranks that share a model or its data reduce or gather gradients, parameters or activations among each other; stages of
one pipeline send each other messages, and reduce little more than a norm. Reductions of only some of them show nothing:
an embedding that the first stage shares with the last one is reduced between these two.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import accumulate, combinations
from typing import Final

import numpy as np
import numpy.typing as npt

from tracekit.axes import AXES, DATA, PIPELINE
from tracekit.disjoint_sets import DisjointSets
from tracekit.errors import MeshError
from tracekit.inference.mesh.group_uses import CHAIN
from tracekit.inference.peers.open_messages import any_open
from tracekit.matching.match import Operations
from tracekit.mesh import GroupUse, Inference, Mesh, from_sizes, infer
from tracekit.mesh.group_descriptions import hinted_dims, is_foreign
from tracekit.rank_events.coded_words import among
from tracekit.rank_events.operation_names import UNDIRECTED
from tracekit.rank_events.step_marks import NO_STEP
from tracekit.thresholds.slowrank import CALLS_OF_PIPELINE, REDUCED_BY_PIPELINE, SIZES_TOLD


def pipeline_of(world: int) -> Mesh:
    """Return the mesh of one pipeline of `world` ranks."""
    return from_sizes(dict.fromkeys(AXES, 1) | {PIPELINE: world}, AXES)


def is_one_pipeline(ops: Operations) -> bool:
    """Return whether messages with known ends connect all recorded ranks, while collectives move almost nothing.

    If sizes are not recorded, few collectives beside many messages count, if not all ranks run the same operations:
    the ends of a pipeline talk to one neighbour only.
    """
    linked = DisjointSets(ops.ranks)
    moved, called = {True: 0, False: 0}, {True: 0, False: 0}
    sized = total = 0
    programs = set()
    of_everybody = _of_everybody(ops)
    for rank, source in ops.per_rank.items():
        message = among(source.op, UNDIRECTED)
        for src, dst in set(zip(source.src[message].tolist(), source.dst[message].tolist(), strict=True)):
            if {src, dst} <= set(ops.ranks):
                linked.join(src, dst)
        for kind in (True, False):
            sizes = source.nelems[message if kind else ~message & of_everybody[ops.of(rank)]]
            moved[kind] += int(sizes[sizes > 0].sum())
            called[kind] += len(sizes)
            sized += int((sizes >= 0).sum())
            total += len(sizes)
        programs.add(tuple(sorted(Counter(source.op).items())))
    if not called[True] or len({linked.find(r) for r in ops.ranks}) > 1:
        return False
    if sized >= SIZES_TOLD * total:
        return moved[False] <= REDUCED_BY_PIPELINE * moved[True]
    return len(programs) > 1 and CALLS_OF_PIPELINE * called[False] <= called[True]


def _of_everybody(ops: Operations) -> npt.NDArray[np.bool_]:
    """Whether each operation's group holds all recorded ranks, or is unknown."""
    few = [not set(ops.ranks).issubset(c.members) for c in ops.channels]
    return ~np.array([*few, False])[ops.channel]


# The program of each rank: equal for ranks of one pipeline stage, which shows the pipeline if no message
# does.

_MESSAGE: Final = "message"
"""Kind of a kernel that carries any number of messages: some have a direction, and others lost it."""


def programs(ops: Operations) -> dict[int, tuple[tuple[str, int], ...]] | None:
    """Return what each rank runs in most steps, if messages lack a peer; None if all messages have one."""
    return run_by_ranks(ops) if any_open(ops) else None


def run_by_ranks(ops: Operations) -> dict[int, tuple[tuple[str, int], ...]]:
    """Return what each rank runs in most steps, as numbers of operations by kind.

    Where steps are marked, ranks without one are left out: operations outside steps may be cut off anywhere.
    """
    found, marked = {}, (ops.step != NO_STEP).any()
    for rank, source in ops.per_rank.items():
        steps: dict[int, Counter[str]] = defaultdict(Counter)
        before = -1
        for step, op, kernel in zip(source.step.tolist(), source.op, source.kernel.tolist(), strict=True):
            kind = _MESSAGE if op in UNDIRECTED else op
            if (step != NO_STEP or not marked) and (kernel != before or kind != _MESSAGE):
                steps[step][kind] += 1
            before = kernel
        if not steps:
            continue
        usual = Counter(tuple(sorted(kinds.items())) for kinds in steps.values())
        found[rank] = max(usual, key=lambda kinds: (usual[kinds], kinds), default=())
    return found


# Jobs of several programs, as an image encoder beside a language model: parts of the world with layouts of their own.
#
# Named groups connect the ranks of a program; what connects programs is a group of all ranks, messages, or a bridge
# that one description names. No axis of one program extends into another: ranks are compared inside their program.


def of_programs(
    uses: Sequence[GroupUse],
    world: Sequence[int],
    order: Sequence[str] | None,
    programs: Mapping[int, object] | None,
    run: Mapping[int, object],
) -> Inference | None:
    """Return the meshes of the programs of a job as one mesh; None unless groups show one division of `world` alone.

    Arguments as of `infer`; `run` is what each recorded rank runs in a step. Groups without a description beside
    messages may connect ends of a pipeline instead. An axis of all ranks is of one program, and parts of equal layouts
    are an axis that no group shows, unless they run different operations.
    """
    chains = [u for u in uses if u.ops == CHAIN]
    inside = [
        u
        for u in uses
        if u.named and 1 < len(u.ranks) < len(world) and not is_foreign(u.descs) and u not in chains
    ]
    shared = any(len(u.ranks) == len(world) and u.collectives and hinted_dims(u.descs) for u in uses)
    if shared or (any(u.p2p for u in uses) and any(u.collectives and not u.descs for u in inside)):
        return None
    bridges = [frozenset[str](), *sorted({frozenset(u.descs) for u in inside if u.descs}, key=sorted)]
    found: dict[tuple[tuple[int, ...], ...], Inference] = {}
    for bridge in bridges:
        groups = [u for u in inside if not bridge or frozenset(u.descs) != bridge]
        parts = _connected(groups, world)
        unseen = any(len(part) == 1 and part[0] not in run for part in parts)
        if len(parts) == 1 or unseen or parts in found:
            continue
        one = _beside(parts, [*groups, *chains], order, programs)
        if one is not None and _differ(one.mesh, run):
            found[parts] = one
            if not bridge:
                break
    return next(iter(found.values())) if len(found) == 1 else None


def _connected(groups: Sequence[GroupUse], world: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    """The ranks that `groups` connect, each part sorted."""
    sets = DisjointSets(world)
    for use in groups:
        for rank in use.ranks:
            sets.join(use.ranks[0], rank)
    parts: dict[int, list[int]] = {}
    for rank in sorted(world):
        parts.setdefault(sets.find(rank), []).append(rank)
    return tuple(tuple(part) for part in parts.values())


def _beside(
    parts: Sequence[tuple[int, ...]],
    groups: Sequence[GroupUse],
    order: Sequence[str] | None,
    programs: Mapping[int, object] | None,
) -> Inference | None:
    """The mesh of each of `parts`, joined; None where one is unknown.

    Where messages connect parts, some of them may be of a pipeline inside one, unless descriptions name its axes.
    """
    found = []
    crossing = any(not any(set(u.ranks) <= set(part) for part in parts) for u in groups)
    for part in parts:
        mine = [u for u in groups if set(u.ranks) <= set(part)]
        runs = None if programs is None else {rank: programs[rank] for rank in part if rank in programs}
        try:
            found.append(infer(mine, part, order, runs))
        except MeshError:
            return None
    if any(one.ignored or (crossing and one.notes) for one in found):
        return None
    meshes = [one.mesh for one in found]
    notes = dict.fromkeys(note for one in found for note in one.notes if not one.flat)
    return Inference(_joined(meshes), tuple(notes), flat=False, rest=max(one.rest for one in found))


def _differ(mesh: Mesh, run: Mapping[int, object]) -> bool:
    """Whether no rank of a program runs what a rank of another program of the same layout does."""
    kinds = [{run[rank] for rank in one.coordinates if rank in run} for one in mesh.programs]
    alike = (
        kinds[n] and kinds[m] and not kinds[n] & kinds[m]
        for m, n in combinations(range(len(kinds)), 2)
        if mesh.programs[m].sizes == mesh.programs[n].sizes
    )
    return all(alike)


def _joined(meshes: Sequence[Mesh]) -> Mesh:
    """One mesh of several: stages and replicas are numbered one program after another.

    Sizes of other axes are the largest of a program. Axes inside others are left out: ranks of one program may have
    none.
    """
    after = {axis: [0, *accumulate(mesh.sizes[axis] for mesh in meshes)] for axis in (PIPELINE, DATA)}
    sizes = {axis: max(mesh.sizes[axis] for mesh in meshes) for axis in AXES}
    sizes |= {axis: begins[-1] for axis, begins in after.items()}
    coordinates = {}
    for number, mesh in enumerate(meshes):
        for rank in mesh.coordinates:
            at = mesh.coords(rank)
            coordinates[rank] = tuple(at[d] + (after[d][number] if d in after else 0) for d in AXES)
    own = tuple(replace(mesh, parts={}) for mesh in meshes)
    return Mesh(AXES, sizes, coordinates, programs=own)
