"""The mesh of the job: as given, else inferred from the groups in the dumps."""

from collections.abc import Sequence
from typing import NamedTuple

from tracekit.analysis.hang.scene import Scene
from tracekit.axes import AXES
from tracekit.errors import MeshError
from tracekit.findings import MeshFinding, MeshSource
from tracekit.mesh import GroupUse, Mesh, from_sizes, infer
from tracekit.mesh.given import misnamed, reordered, said, written
from tracekit.mesh.parse import mesh_remedy
from tracekit.mesh.parts import given_parts
from tracekit.thresholds.hang import RANKS_SHOWN


class Layout(NamedTuple):
    """The mesh, and its form in the answer; None if the groups do not determine one, with the reason."""

    mesh: Mesh | None
    finding: MeshFinding | None
    notes: tuple[str, ...]


def layout_of(
    scene: Scene, given: dict[str, int] | None, order: Sequence[str] | None, *, whole: bool = True
) -> Layout:
    """Give the mesh of these sizes (`given`), else the one that the groups determine.

    order: axes inner to outer. whole: whether the scene holds all groups of the job; a log names those alone in
    which a call timed out. Raises MeshError where `given` or `order` does not fit the dumps.
    """
    if given is not None:
        return Layout(mesh := _given(scene, given, order), _finding(mesh, "flag"), ())
    try:
        inferred = infer(_uses(scene), scene.world, order, whole=whole)
    except MeshError as error:
        told = f"{error}; {mesh_remedy(len(scene.world))}"
        if order is not None:
            raise MeshError(told) from None
        return Layout(None, None, (f"mesh unknown: {told}",))
    if inferred.flat:
        return Layout(None, None, inferred.notes)
    mesh = inferred.mesh
    if reordered(mesh, order):
        told = said(_uses(scene), scene.world) or f"the groups say --mesh {written(mesh)}"
        raise MeshError(
            f"--order {','.join(order or ())} contradicts the dumps: {told} (inner to outer); give that order, or "
            "leave --order out"
        )
    finding = _finding(mesh, "process_groups")
    return Layout(mesh, finding, inferred.notes)


def _finding(mesh: Mesh, source: MeshSource) -> MeshFinding:
    return MeshFinding(mesh.order, dict(mesh.sizes), source, mesh.part_sizes)


def _given(scene: Scene, given: dict[str, int], order: Sequence[str] | None) -> Mesh:
    """Give the mesh of the user; MeshError where it contradicts the dumps, with what their groups say."""
    mesh = from_sizes(given, order or tuple(axis for axis in given if axis in AXES))
    told = said(_uses(scene), scene.world)
    says = f"; {told}" if told else ""
    if mesh.world_size != len(scene.world):
        raise MeshError(
            f"--mesh describes {mesh.world_size} ranks, the dumps are of {len(scene.world)}; correct it{says}"
        )
    if named := misnamed(mesh, _uses(scene)):
        (use, axis) = named
        few = ", ".join(map(str, use.ranks[:RANKS_SHOWN])) + (", …" if len(use.ranks) > RANKS_SHOWN else "")
        raise MeshError(
            f"--mesh contradicts the dumps: group {use.descs[0]} of ranks {few} does not lie along its axis {axis}; "
            f"correct it{says}"
        )
    try:
        return given_parts(mesh, given, _uses(scene))
    except MeshError as error:
        raise MeshError(f"--mesh contradicts the dumps: {error}{says}") from None


def _uses(scene: Scene) -> list[GroupUse]:
    """Give the groups of the scene as an inference takes them."""
    return [
        GroupUse(
            group.ranks,
            (group.desc,) if group.desc else (),
            collectives=max((f.enqueued for f in group.frontiers.values()), default=0),
            p2p=int(group.mixed),
        )
        for group in scene.groups
        if not group.guessed
    ]
