"""The mesh of the job: as given, else inferred from the groups in the dumps."""

from collections.abc import Sequence
from typing import NamedTuple

from tracekit.analysis.hang.scene import Scene
from tracekit.errors import MeshError
from tracekit.findings import MeshFinding
from tracekit.mesh import GroupUse, Mesh, from_sizes, infer
from tracekit.mesh.parse import mesh_remedy


class Layout(NamedTuple):
    """The mesh, and how the answer tells of it; None where the groups do not determine one, with the reason."""

    mesh: Mesh | None
    finding: MeshFinding | None
    notes: tuple[str, ...]


def layout_of(scene: Scene, given: dict[str, int] | None, order: Sequence[str] | None) -> Layout:
    """Give the mesh of these sizes (`given`), else the one that the groups determine.

    order: axes inner to outer. Raises MeshError where `given` or `order` does not fit the dumps.
    """
    if given is not None:
        mesh = from_sizes(given, order or tuple(given))
        if mesh.world_size != len(scene.world):
            raise MeshError(
                f"--mesh describes {mesh.world_size} ranks, the dumps are of {len(scene.world)}; correct it"
            )
        return Layout(mesh, MeshFinding(tuple(mesh.order), dict(mesh.sizes), "flag"), ())
    uses = [
        GroupUse(
            group.ranks,
            (group.desc,) if group.desc else (),
            collectives=max((f.enqueued for f in group.frontiers.values()), default=0),
            p2p=int(group.mixed),
        )
        for group in scene.groups
        if not group.guessed
    ]
    try:
        inferred = infer(uses, scene.world, order)
    except MeshError as error:
        told = f"{error}; {mesh_remedy(len(scene.world))}"
        if order is not None:
            raise MeshError(told) from None
        return Layout(None, None, (f"mesh unknown: {told}",))
    if inferred.flat:
        return Layout(None, None, inferred.notes)
    mesh = inferred.mesh
    finding = MeshFinding(tuple(mesh.order), dict(mesh.sizes), "process_groups")
    return Layout(mesh, finding, inferred.notes)
