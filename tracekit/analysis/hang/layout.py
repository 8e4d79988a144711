"""The mesh of the job: as given, else inferred from the groups in the dumps."""

from collections.abc import Sequence
from typing import NamedTuple

from tracekit.analysis.hang.scene import Scene
from tracekit.errors import MeshError
from tracekit.findings import MeshFinding
from tracekit.mesh import GroupUse, Mesh, from_sizes, infer
from tracekit.mesh.given import misnamed, reordered, said, written
from tracekit.thresholds.hang import RANKS_SHOWN


class Layout(NamedTuple):
    """The mesh, and how the answer tells of it; None where the groups do not determine one, with the reason."""

    mesh: Mesh | None
    finding: MeshFinding | None
    notes: tuple[str, ...]


def layout_of(scene: Scene, given: dict[str, int] | None, order: Sequence[str] | None) -> Layout:
    """Give the mesh of these sizes (`given`), else the one that the groups determine.

    order: axes inner to outer. Raises MeshError where `given` or `order` contradicts the dumps.
    """
    if given is not None:
        mesh = from_sizes(given, order or tuple(given))
        if mesh.world_size != len(scene.world):
            raise MeshError(
                f"--mesh describes {mesh.world_size} ranks, the dumps are of {len(scene.world)}; correct it"
                f"{_says(scene)}"
            )
        if named := misnamed(mesh, _uses(scene)):
            raise MeshError(
                f"--mesh contradicts the dumps: group {named[0].descs[0]} of ranks {_few(named[0].ranks)} does not lie "
                f"along its axis {named[1]}; correct it{_says(scene)}"
            )
        return Layout(mesh, MeshFinding(tuple(mesh.order), dict(mesh.sizes), "flag"), ())
    try:
        inferred = infer(_uses(scene), scene.world, order)
    except MeshError as error:
        if order is not None:
            raise
        return Layout(None, None, (f"mesh unknown: {error}",))
    if inferred.flat:
        return Layout(None, None, inferred.notes)
    mesh = inferred.mesh
    if reordered(mesh, order):
        told = said(_uses(scene), scene.world) or f"the groups say --mesh {written(mesh)}"
        raise MeshError(
            f"--order {','.join(order or ())} contradicts the dumps: {told} (inner to outer); give that order, or "
            "leave --order out"
        )
    finding = MeshFinding(tuple(mesh.order), dict(mesh.sizes), "process_groups")
    return Layout(mesh, finding, inferred.notes)


def _uses(scene: Scene) -> list[GroupUse]:
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


def _says(scene: Scene) -> str:
    told = said(_uses(scene), scene.world)
    return f"; {told}" if told else ""


def _few(ranks: Sequence[int]) -> str:
    return ", ".join(map(str, ranks[:RANKS_SHOWN])) + (", …" if len(ranks) > RANKS_SHOWN else "")
