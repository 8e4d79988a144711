"""The mesh that an analysis works on: the user's, else the process groups', else a manifest's, else one flat group."""

from collections import Counter, defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from tracekit.analysis.slowrank.message_chains import carriers, holding
from tracekit.axes import AXES
from tracekit.disjoint_sets import DisjointSets
from tracekit.errors import MeshError, UsageError
from tracekit.findings import MeshFinding, MeshSource, Quality
from tracekit.mesh import GroupUse, Mesh, from_sizes, infer
from tracekit.mesh.given import misnamed, reordered, said, written
from tracekit.mesh.group_descriptions import hinted_dims, is_foreign
from tracekit.mesh.parse import mesh_remedy
from tracekit.store import Run
from tracekit.tables.channels import WORLD
from tracekit.tables.match import Operations
from tracekit.tables.operation_names import MESSAGES
from tracekit.thresholds.slowrank import MEMBERS_LISTED


@dataclass(frozen=True)
class MeshChoice:
    """The mesh, where it came from, and what was assumed."""

    mesh: Mesh
    source: MeshSource
    notes: tuple[str, ...] = ()
    quality: tuple[Quality, ...] = ()

    @property
    def finding(self) -> MeshFinding:
        """The mesh as findings show it."""
        return MeshFinding(self.mesh.order, dict(self.mesh.sizes), self.source)


CHAIN: Final = frozenset({"p2p"})
"""Kinds of operations of ranks that only messages connect."""


def world_of(run: Run, ops: Operations) -> tuple[int, ...]:
    """All ranks of the job: as many as the files claim, and at least as many as groups and files name."""
    seen = {*ops.ranks, *(r for g in run.groups for r in g.ranks)}
    size = max(run.world_size or 0, max(seen, default=-1) + 1)
    return tuple(range(size))


def choose(
    run: Run,
    ops: Operations,
    sizes: dict[str, int] | None,
    order: Sequence[str] | None,
    lines: Collection[tuple[int, ...]] = (),
) -> MeshChoice:
    """The mesh of `run`; `sizes` and `order` (inner to outer) are the user's; `lines` as in `group_uses`.

    Raises UsageError where they contradict the input, MeshError where nothing determines the mesh.
    """
    world = world_of(run, ops)
    uses = group_uses(run, ops, lines)
    if sizes is not None:
        return MeshChoice(_flagged(sizes, order, world, uses, len(ops.ranks)), "flag")
    hinted = _hinted(run, world)
    if not [u for u in uses if len(u.ranks) > 1]:
        if hinted is not None:
            _check_order(hinted, order, f"the run's manifest says --mesh {written(hinted)}")
            return MeshChoice(hinted, "manifest")
        return _flat(ops, world)
    try:
        found = infer(uses, world, order, _programs(ops))
    except MeshError:
        if hinted is not None and _contradiction(hinted, uses) is None:
            return MeshChoice(hinted, "manifest")
        raise
    if hinted is not None and found.mesh.sizes != hinted.sizes and _contradiction(hinted, uses) is None:
        return MeshChoice(hinted, "manifest", ("the manifest names the axes; the groups agree with it",))
    wrong = _contradiction(found.mesh, uses, inferred=True)
    if wrong is not None:
        raise MeshError(
            f"process group {_shown(wrong)} fits no mesh with the other groups; {mesh_remedy(len(world))}"
        )
    _check_order(found.mesh, order, said(uses, world) or f"the groups say --mesh {written(found.mesh)}")
    if found.flat and not any(g.names or g.descs for g in run.groups):
        return MeshChoice(found.mesh, "flat_world", found.notes, (_flat_row(world),))
    return MeshChoice(found.mesh, "process_groups", found.notes)


def group_uses(run: Run, ops: Operations, lines: Collection[tuple[int, ...]] = ()) -> list[GroupUse]:
    """Process groups with the calls that the traces show; messages that no group of their own carries form one.

    `lines` are the pipelines along which the ends of messages were inferred.
    """
    calls: dict[int, Counter[int]] = defaultdict(Counter)
    kinds: dict[int, set[str]] = defaultdict(set)
    exposed: dict[int, list[bool]] = defaultdict(list)
    changes: dict[int, list[bool]] = defaultdict(list)
    pairs: Counter[tuple[int, int]] = Counter()
    for rank, source in ops.per_rank.items():
        shown = (ops.exposed[ops.of(rank)] > 0).tolist()
        rows = zip(
            source.op, source.group.tolist(), source.src.tolist(), source.dst.tolist(), shown, strict=True
        )
        before: dict[int, str] = {}
        for op, group, src, dst, waited in rows:
            if op in MESSAGES or (src >= 0 and dst >= 0):
                pairs[min(src, dst), max(src, dst)] += 1
            elif group != WORLD:
                calls[group][rank] += 1
                kinds[group].add(op)
                exposed[group].append(waited)
                changes[group].append(before.get(group, op) != op)
                before[group] = op
    whole = len(world_of(run, ops))
    pipelines = [g.ranks for g in run.groups if hinted_dims(g.descs) == {"pp"}]
    p2p = carriers([g.ranks for g in run.groups], pairs, {*lines, *holding(pipelines, pairs)})
    uses = [
        GroupUse(
            g.ranks, g.descs, max(calls[g.group].values(), default=0), p2p.get(g.ranks, 0),
            frozenset(kinds[g.group]), _share(exposed[g.group]), _share(changes[g.group]),
        )
        for g in run.groups
    ]  # fmt: skip
    known = {u.ranks for u in uses}
    chains = [GroupUse(c, (), 0, n, CHAIN) for c, n in p2p.items() if c not in known]
    return uses + [u for u in chains if len(u.ranks) < whole or not uses]


def _programs(ops: Operations) -> dict[int, tuple[tuple[str, int], ...]] | None:
    """What each rank runs in most steps, where messages have no known peer; None where there are none of these."""
    if not (ops.op == "send_recv").any():
        return None
    found = {}
    for rank, source in ops.per_rank.items():
        steps: dict[int, Counter[str]] = defaultdict(Counter)
        for step, op in zip(source.step.tolist(), source.op, strict=True):
            steps[step][op] += 1
        usual = Counter(tuple(sorted(kinds.items())) for kinds in steps.values())
        found[rank] = max(usual, key=lambda kinds: (usual[kinds], kinds), default=())
    return found


def _share(flags: list[bool]) -> float:
    return sum(flags) / len(flags) if flags else 0.0


def _flagged(
    sizes: dict[str, int],
    order: Sequence[str] | None,
    world: tuple[int, ...],
    uses: Sequence[GroupUse],
    read: int,
) -> Mesh:
    product = int(np.prod(list(sizes.values())))
    if product != len(world):
        told = ",".join(f"{d}={n}" for d, n in sizes.items())
        raise UsageError(
            f"--mesh {told} has {product} ranks, but the job has {len(world)} ranks, of which {read} were read; give "
            f"the sizes of the whole job, whose product is {len(world)}{_says(uses, world)}"
        )
    mesh = from_sizes(sizes, order or tuple(sizes))
    wrong = _contradiction(mesh, uses)
    if wrong is not None:
        raise UsageError(
            f"--mesh contradicts the traces: process group {_shown(wrong)} lies along none of its axes; "
            f"mend the sizes or the order (inner to outer as written, or --order){_says(uses, world)}"
        )
    if named := misnamed(mesh, uses):
        raise UsageError(
            f"--mesh contradicts the traces: process group {_shown(named[0])} does not lie along its axis {named[1]}; "
            f"mend the sizes or the order (inner to outer as written, or --order){_says(uses, world)}"
        )
    return mesh


def _says(uses: Sequence[GroupUse], world: tuple[int, ...]) -> str:
    told = said(uses, world)
    return f"; {told}" if told else ""


def _check_order(mesh: Mesh, order: Sequence[str] | None, told: str) -> None:
    """Raise UsageError where the user's order numbers the ranks otherwise than the mesh that was found."""
    if reordered(mesh, order):
        raise UsageError(
            f"--order {','.join(order or ())} contradicts the traces: {told} (inner to outer); give that order, or "
            "leave --order out"
        )


def _shown(use: GroupUse) -> str:
    members = ", ".join(map(str, use.ranks[:MEMBERS_LISTED])) + (
        ", …" if len(use.ranks) > MEMBERS_LISTED else ""
    )
    return f"[{members}]" + (f" ({', '.join(use.descs)})" if use.descs else "")


def _contradiction(mesh: Mesh, uses: Sequence[GroupUse], *, inferred: bool = False) -> GroupUse | None:
    """The first group in use that is no line, plane or block of the mesh; None where all fit.

    The two ends of a line fit as well: the first and last stage of a pipeline share a group of their own where they
    share the embedding. So do parts of an axis that connect all of it, as replicas and shards do; unless the mesh is
    `inferred` from the groups, their descriptions must name that axis.
    """
    parts: dict[str, list[tuple[GroupUse, list[int]]]] = defaultdict(list)
    for use in uses:
        busy = use.collectives or use.p2p
        if not busy or len(use.ranks) < 2 or is_foreign(use.descs) or mesh.dims_of(use.ranks) is not None:
            continue
        if any(r not in mesh.coordinates for r in use.ranks):
            return use
        if use.ops == CHAIN and sum(len(set(c)) > 1 for c in _columns(mesh, use)) == 1:
            continue  # messages along one axis, of which a rank between was not recorded
        axis, values = _part(mesh, use, inferred=inferred)
        if values == [0, mesh.sizes.get(axis, 0) - 1]:
            continue
        if not values:
            return use
        parts[axis].append((use, values))
    for axis, found in parts.items():
        whole = DisjointSets(range(mesh.sizes[axis]))
        for _, values in found:
            for value in values:
                whole.join(values[0], value)
        if any(whole.find(value) for value in range(mesh.sizes[axis])):
            return found[0][0]
    return None


def _columns(mesh: Mesh, use: GroupUse) -> list[tuple[int, ...]]:
    """By axis of `mesh.order` the members' indices on it."""
    return list(zip(*(mesh.coordinates[r] for r in use.ranks), strict=True))


def _part(mesh: Mesh, use: GroupUse, *, inferred: bool) -> tuple[str, list[int]]:
    """(axis, indices on it) of a group that is part of the line or block that its description names; else none."""
    columns = [sorted(set(c)) for c in _columns(mesh, use)]
    along = {axis for axis, values in zip(mesh.order, columns, strict=True) if len(values) > 1}
    partial = [
        (axis, values)
        for axis, values in zip(mesh.order, columns, strict=True)
        if 1 < len(values) < mesh.sizes[axis]
    ]
    full = int(np.prod([len(values) for values in columns])) == len(use.ranks)
    hints = hinted_dims(use.descs)
    if not full or len(partial) != 1:
        return "", []
    axis, values = partial[0]
    ends = values == [0, mesh.sizes[axis] - 1]
    told = along == hints or (along == {axis} and (ends or (inferred and not hints)))
    return (axis, values) if told else ("", [])


def _hinted(run: Run, world: tuple[int, ...]) -> Mesh | None:
    if not run.mesh_hint:
        return None
    sizes = {str(d): int(n) for d, n in run.mesh_hint.get("sizes", {}).items()}
    order = [str(d) for d in run.mesh_hint.get("order", []) if d in AXES]
    if not set(sizes) <= set(AXES) or int(np.prod(list(sizes.values()) or [0])) != len(world):
        return None
    full = {**sizes, **{d: 1 for d in AXES if d not in sizes}}
    return from_sizes(full, [*order, *(d for d in AXES if d not in order)])


def _flat(ops: Operations, world: tuple[int, ...]) -> MeshChoice:
    """One data-parallel group of all ranks; MeshError unless all are there and call the same operations."""
    missing = sorted(set(world) - set(ops.ranks))
    if missing:
        raise MeshError(
            f"the traces name no process groups and rank {missing[0]} is missing, so the mesh is unknown; "
            f"{mesh_remedy(len(world))}"
        )
    sequences = [ops.per_rank[r].op for r in ops.ranks]
    if len(world) > 1 and not any(sequences):
        raise MeshError(
            "the traces hold no communication, so ranks cannot be compared; record communication as well"
        )
    for rank, sequence in zip(ops.ranks, sequences, strict=True):
        if Counter(sequence) != Counter(sequences[0]):
            raise MeshError(
                f"the traces name no process groups, and ranks {ops.ranks[0]} and {rank} call different collectives, "
                f"so the mesh is unknown; {mesh_remedy(len(world))}"
            )
    found = infer([], world)
    return MeshChoice(found.mesh, "flat_world", (), (_flat_row(world),))


def _flat_row(world: tuple[int, ...]) -> Quality:
    told = "no process groups in the traces: the world is taken as one data-parallel group"
    return Quality("flat_world", None, len(world), told)
