"""The mesh that an analysis works on: the user's, else the process groups', else a manifest's, else one flat group."""

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tracekit.axes import AXES, PARTS
from tracekit.errors import MeshError, MeshUnknownError, UsageError
from tracekit.findings.shared import MeshFinding, MeshSource, Quality
from tracekit.inference.mesh.group_contradictions import contradiction, shown
from tracekit.inference.mesh.group_uses import group_uses, world_of
from tracekit.inference.mesh.programs import is_one_pipeline, of_programs, pipeline_of, programs, run_by_ranks
from tracekit.matching.channels import WORLD
from tracekit.matching.match import Operations, no_communication
from tracekit.mesh import GroupUse, Inference, Mesh, from_sizes, infer
from tracekit.mesh.parse import mesh_remedy, misnamed, ranks_in, reordered, said, written
from tracekit.mesh.parts import given_parts, with_parts
from tracekit.rank_events.coded_words import among
from tracekit.rank_events.operation_names import UNDIRECTED
from tracekit.rank_events.rank_ops import RankOps
from tracekit.schema import InferredGroup
from tracekit.steps.step_ends import STEP_END
from tracekit.store import Run
from tracekit.text import rank_names
from tracekit.thresholds.slowrank import RANKS_LISTED

KIND = "mesh_unknown"


@dataclass(frozen=True)
class MeshChoice:
    """The mesh, where it came from, and what was assumed."""

    mesh: Mesh
    source: MeshSource
    notes: tuple[str, ...] = ()
    quality: tuple[Quality, ...] = ()
    rest: int = 0  # size of the axis that no group shows, inferred from the ranks that the others leave

    @property
    def finding(self) -> MeshFinding:
        """The mesh as findings show it."""
        mesh = self.mesh
        programs = tuple((tuple(sorted(one.coordinates)), dict(one.sizes)) for one in mesh.programs)
        return MeshFinding(mesh.order, dict(mesh.sizes), self.source, mesh.part_sizes, programs)


def choose(
    run: Run,
    ops: Operations,
    sizes: dict[str, int] | None,
    order: Sequence[str] | None,
    lines: Collection[tuple[int, ...]] = (),
) -> MeshChoice:
    """Return the mesh of `run`; `sizes` and `order` (inner to outer) are the user's; `lines` as in `group_uses`.

    Raises UsageError where they contradict the input, MeshUnknownError where nothing determines the mesh,
    MeshError where groups that the files name contradict each other.
    """
    world = world_of(run, ops)
    uses = group_uses(run, ops, lines)
    if sizes is not None:
        return MeshChoice(_flagged(sizes, order, world, uses, len(ops.ranks)), "flag")
    if is_unknown(run):
        return MeshChoice(infer([], world).mesh, "flat_world")
    hinted = _hinted(run, world, uses)
    if not [u for u in uses if len(u.ranks) > 1]:
        if hinted is not None:
            _check_order(hinted, order, f"the run's manifest says --mesh {written(hinted)}")
            return MeshChoice(hinted, "manifest")
        return _flat(ops, world, remedy(run, world))
    try:
        found = _inferred(uses, world, order, ops)
    except MeshError as error:
        if hinted is not None and contradiction(hinted, uses) is None:
            return MeshChoice(hinted, "manifest")
        raise type(error)(f"{error}; {remedy(run, world)}") from None
    if hinted is not None and found.mesh.sizes != hinted.sizes and contradiction(hinted, uses) is None:
        return MeshChoice(hinted, "manifest", ("the manifest names the axes; the groups agree with it",))
    _check_order(found.mesh, order, said(uses, world) or f"the groups say --mesh {written(found.mesh)}")
    if found.flat:
        _check_messages(run, ops, world)
        return _undivided(world, found.notes, uses, named=_named(run), piped=is_one_pipeline(ops))
    return MeshChoice(found.mesh, "process_groups", found.notes, rest=found.rest)


def check_rest(run: Run, ops: Operations, choice: MeshChoice) -> None:
    """Raise MeshUnknownError if the axis inferred from the rest may be a pipeline with replicas, or several pipelines.

    Ranks of a prime number are one axis, and ranks that exchange no messages do the same work along any axes. Without
    collectives that name no group nothing shows a second axis.
    """
    size, lost = choice.rest, int(((ops.channel < 0) & ~ops.among((*UNDIRECTED, STEP_END))).sum())
    several = any(size % factor == 0 for factor in range(2, size))
    if lost and several and ops.among(UNDIRECTED).any() and not _has_ends(ops, choice.mesh, size):
        raise MeshUnknownError(
            f"no process group shows an axis of {size} ranks, which may be several axes: {lost} collectives name no "
            f"group, so the mesh is unknown; {remedy(run, world_of(run, ops))}"
        )


def _has_ends(ops: Operations, mesh: Mesh, size: int) -> bool:
    """Whether all pipelines have `size` stages by their messages: the first and last stage talk to one neighbour."""
    sent = {rank: int(among(source.op, UNDIRECTED).sum()) for rank, source in ops.per_rank.items()}
    lines = {mesh.pipeline(rank) for rank in sent}
    ordered = [[sent.get(rank, 0) for rank in sorted(line, key=mesh.stage)] for line in lines]
    return all(len(line) == size and max(line[0], line[-1]) < min(line[1:-1]) for line in ordered)


def remedy(run: Run, world: Sequence[int]) -> str:
    """Return what the user can do where the mesh of `world` is unknown."""
    return mesh_remedy(len(world), known=run.world_size is not None)


def _inferred(
    uses: Sequence[GroupUse],
    world: tuple[int, ...],
    order: Sequence[str] | None,
    ops: Operations,
) -> Inference:
    """Return the mesh from the groups; unnamed groups that fit no mesh with the others are set aside.

    Where named groups fit no mesh, or leave an axis that no communication shows, they may be of several programs.
    Raises MeshError if the named groups contradict each other, or fit no mesh.
    """
    named, kinds = [u for u in uses if u.named], programs(ops)
    try:
        found = infer(uses, world, order, kinds)
        wrong = contradiction(found.mesh, uses, inferred=True)
    except MeshError:
        if (beside := of_programs(uses, world, order, kinds, run_by_ranks(ops))) is not None:
            return beside
        if not 0 < len(named) < len(uses):
            raise
        wrong = named[0]
    if wrong is not None and 0 < len(named) < len(uses):
        found = infer(named, world, order, kinds)
        wrong = contradiction(found.mesh, named, inferred=True)
    apart = wrong is not None or (found.rest and kinds is None)
    if apart and (beside := of_programs(uses, world, order, kinds, run_by_ranks(ops))) is not None:
        return beside
    if wrong is None:
        return found
    outside = (
        set(world) - set(ops.ranks) - {rank for u in named if len(u.ranks) < len(world) for rank in u.ranks}
    )
    why = f"process group {shown(wrong)} fits no mesh with the other groups"
    if outside:
        why += f", and no group shows where {rank_names(outside, RANKS_LISTED)} without a trace belong"
    raise (MeshUnknownError if outside else MeshError)(why)


def _flagged(
    sizes: dict[str, int],
    order: Sequence[str] | None,
    world: tuple[int, ...],
    uses: Sequence[GroupUse],
    read: int,
) -> Mesh:
    sizes = {**sizes, **{axis: 1 for axis in AXES if axis not in sizes}}  # as `parse_mesh` fills them in
    product = ranks_in(sizes)
    if product != len(world):
        axes = ",".join(f"{d}={n}" for d, n in sizes.items())
        raise UsageError(
            f"--mesh {axes} has {product} ranks, but the job has {len(world)} ranks ({read} were read); give the sizes "
            f"of the whole job, with product {len(world)}{_adds_none(sizes)}{_says(uses, world)}"
        )
    mesh, refusal = from_sizes(sizes, order or tuple(axis for axis in sizes if axis in AXES)), ""
    try:
        mesh = given_parts(mesh, sizes, uses)
    except MeshError as error:
        refusal = str(error)
    wrong = contradiction(mesh, uses)
    if wrong is not None:
        raise UsageError(
            f"--mesh contradicts the traces: process group {shown(wrong)} lies along none of its axes; "
            f"correct the sizes or the order (inner to outer as written, or --order){_says(uses, world)}"
        )
    if named := misnamed(mesh, uses):
        raise UsageError(
            f"--mesh contradicts the traces: process group {shown(named[0])} does not lie along its axis {named[1]}; "
            f"correct the sizes or the order (inner to outer as written, or --order){_says(uses, world)}"
        )
    if refusal:
        raise UsageError(f"--mesh contradicts the traces: {refusal}{_says(uses, world)}")
    return mesh


def _adds_none(sizes: dict[str, int]) -> str:
    """What an axis inside another is, where the user gives one: its size is no factor."""
    given = [PARTS[axis] for axis in sizes if axis in PARTS]
    return "".join(f"; {part.name} divides the ranks of {part.inside} and adds none" for part in given)


def _says(uses: Sequence[GroupUse], world: tuple[int, ...]) -> str:
    known = said(uses, world)
    return f"; {known}" if known else ""


def _check_order(mesh: Mesh, order: Sequence[str] | None, evidence: str) -> None:
    """Raise UsageError where the user's order numbers the ranks differently from the inferred mesh."""
    if reordered(mesh, order):
        raise UsageError(
            f"--order {','.join(order or ())} contradicts the traces: {evidence} (inner to outer); give that order, or "
            "leave --order out"
        )


def _hinted(run: Run, world: tuple[int, ...], uses: Sequence[GroupUse]) -> Mesh | None:
    if not run.mesh_hint:
        return None
    sizes = {str(d): int(n) for d, n in run.mesh_hint.get("sizes", {}).items()}
    order = [str(d) for d in run.mesh_hint.get("order", []) if d in AXES]
    if not set(sizes) <= set(AXES) or not sizes or ranks_in(sizes) != len(world):
        return None
    full = {**sizes, **{d: 1 for d in AXES if d not in sizes}}
    return with_parts(from_sizes(full, [*order, *(d for d in AXES if d not in order)]), uses)


def _flat(ops: Operations, world: tuple[int, ...], remedy: str) -> MeshChoice:
    """Return one data-parallel group of all ranks, or one pipeline.

    Without any communication each rank is looked at by itself, and missing ranks leave nothing open. Elsewhere raises
    MeshUnknownError with the `remedy` if a rank is missing, or ranks of no pipeline call different operations.
    """
    missing = sorted(set(world) - set(ops.ranks))
    alone = len(ops.start) > 0 and bool(ops.among((STEP_END,)).all())
    if missing and not alone:
        raise MeshUnknownError(
            f"the traces name no process groups and rank {missing[0]} is missing, so the mesh is unknown; {remedy}"
        )
    sequences = [ops.per_rank[r].op for r in ops.ranks]
    if len(world) > 1 and not any(sequences):
        raise no_communication(ops, MeshError)
    piped = is_one_pipeline(ops)
    for rank, sequence in zip(ops.ranks, sequences, strict=True) if not piped and not alone else ():
        if Counter(sequence) != Counter(sequences[0]):
            raise MeshUnknownError(
                f"the traces name no process groups, and ranks {ops.ranks[0]} and {rank} call different collectives, "
                f"so the mesh is unknown; {remedy}"
            )
    return _undivided(world, (), (), named=False, piped=piped)


def _named(run: Run) -> bool:
    """Whether a file names a process group."""
    return any(g.names or g.descs for g in run.groups)


def _check_messages(run: Run, ops: Operations, world: tuple[int, ...]) -> None:
    """Raise MeshUnknownError if messages may lie along an axis that neither names nor other ranks show."""
    if not _named(run) and len(ops.ranks) < len(world) and ops.among(("send_recv",)).any():
        raise MeshUnknownError(
            "messages name no peer, no process group is named and ranks are missing, so the mesh is unknown; "
            f"{remedy(run, world)}"
        )


def _undivided(
    world: tuple[int, ...], notes: tuple[str, ...], uses: Sequence[GroupUse], *, named: bool, piped: bool
) -> MeshChoice:
    """The mesh of a world that no group divides: one pipeline, or one data-parallel group."""
    taken = "messages connect the ranks and almost nothing is reduced: the world is taken as one pipeline"
    mesh = with_parts(pipeline_of(len(world)) if piped else infer([], world).mesh, uses)
    if named:
        return MeshChoice(mesh, "process_groups", (taken,) if piped else notes)
    reading = taken if piped else "the world is taken as one data-parallel group"
    row = Quality("flat_world", None, len(world), f"no process groups in the traces: {reading}")
    if len(world) == 1:
        return MeshChoice(mesh, "flat_world")
    return MeshChoice(mesh, "flat_world", () if piped else notes, (row,))


# Runs with an unknown mesh: all ranks are compared with each other, and the answer stays open.


def without_mesh(
    run: Run, ranks: Sequence[RankOps], world: Sequence[int], reason: str
) -> tuple[Run, list[RankOps]]:
    """Return `run` marked as having an unknown mesh, and its operations, without inferred groups.

    world: all ranks of the job. reason: why the mesh is unknown, and the remedy.
    """
    groups = tuple(g for g in run.groups if not isinstance(g, InferredGroup))
    if not any(len(g.ranks) > 1 for g in groups):  # else an operation without a group would be the world's
        groups = (*groups, InferredGroup(len(groups), tuple(world), (), ()))
    known = [g.group for g in groups]
    kept = [replace(r, group=np.where(np.isin(r.group, known), r.group, WORLD)) for r in ranks]
    row = Quality(KIND, None, len(world), reason)
    return replace(run, groups=groups, quality=(*run.quality, row)), kept


def is_unknown(run: Run) -> bool:
    """Whether the mesh of `run` is unknown, as `without_mesh` marks it."""
    return any(q.kind == KIND for q in run.quality)
