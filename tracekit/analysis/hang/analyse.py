"""Which rank never came: from dumps to one verdict.

The dumps become a `scene` (groups, wait-for graph, mesh), `stale_dumps` recognises old dumps among them, the rules
(`rules.order`) name culprits or leave a doubt, and `describe` puts the answer into the terms of the contract.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from tracekit.analysis.hang.candidates import (
    Candidates,
    advice_on_device,
    candidates_of,
    none_lacks_an_end,
    stuck_call,
)
from tracekit.analysis.hang.describe import (
    culprits_of,
    first_group,
    frontiers_of,
    last_done,
    open_calls,
    sentence,
    waits_of,
)
from tracekit.analysis.hang.message_cycle import message_cycle
from tracekit.analysis.hang.remedies import LONGER_RINGS
from tracekit.analysis.hang.scene import Scene, build_scene
from tracekit.analysis.hang.stale_dumps import Judgement, judge, moving_sentence
from tracekit.analysis.hang.stragglers import stragglers
from tracekit.axes import AXES
from tracekit.dumps.load import DumpSet
from tracekit.errors import MeshError
from tracekit.findings import MeshFinding, MeshSource, Quality, RankCoverage
from tracekit.findings.hang import Culprit, HangFinding, HangVerdict
from tracekit.findings.picture import HangPicture
from tracekit.mesh import GroupUse, Mesh, from_sizes, infer
from tracekit.mesh.parse import mesh_remedy, misnamed, reordered, said, written
from tracekit.mesh.parts import given_parts
from tracekit.text import rank_names
from tracekit.thresholds.hang import NAMED_IN_DOUBT, RANKS_SHOWN


class Layout(NamedTuple):
    """The mesh, and its form in the answer; None if the groups do not determine one, with the reason."""

    mesh: Mesh | None
    finding: MeshFinding | None
    notes: tuple[str, ...]


def analyse(
    dumps: DumpSet, mesh: dict[str, int] | None = None, order: Sequence[str] | None = None
) -> HangFinding:
    """Give the verdict on a set of dumps, with the culprits, the waiting ranks and the doubts.

    mesh: ranks on each axis; order: axes inner to outer. Both override the mesh of the groups. Raises
    MeshError if they do not fit the dumps.
    """
    return illustrated(dumps, mesh, order)[0]


def illustrated(
    dumps: DumpSet, mesh: dict[str, int] | None = None, order: Sequence[str] | None = None
) -> tuple[HangFinding, HangPicture]:
    """Give the verdict as `analyse` does, and what a page draws of it."""
    return judged(dumps, mesh, order)[:2]


def judged(
    dumps: DumpSet,
    mesh: dict[str, int] | None = None,
    order: Sequence[str] | None = None,
    *,
    still: bool = False,
) -> tuple[HangFinding, HangPicture, Scene]:
    """Give the verdict and the picture as `illustrated` does, and the scene on which they rest.

    still: whether other evidence shows that the job did not move.
    """
    seen = replace(build_scene(dumps), still=still)
    layout = layout_of(seen, mesh, order, whole=dumps.whole)
    judgement = judge(replace(seen, mesh=layout.mesh))
    scene, found = judgement.scene, judgement.found
    culprits = culprits_of(scene, found.culprits)
    missing = tuple(r for r in scene.world if r not in scene.dumps)
    verdict, reason = _verdict(judgement, culprits, len(missing))
    if len(scene.dumps) == 1 and missing and not culprits:
        reason = f"{_lone(scene)}; {reason}"
    waits = verdict == "inconclusive" and bool(scene.graph.stuck)
    left = candidates_of(scene, found) if waits and not judgement.live else Candidates()
    finding = HangFinding(
        ranks=RankCoverage(len(scene.world), len(scene.dumps), missing, dumps.rejected),
        mesh=layout.finding,
        verdict=verdict,
        reason=reason,
        culprits=culprits,
        first_group=first_group(scene, culprits),
        victims=tuple(sorted(scene.graph.stuck - found.culprits.keys())) if culprits else (),
        quality=(*dumps.quality, *stragglers(seen.groups), *_guessed(seen), *judgement.stale),
        groups=frontiers_of(scene),
        last_done=last_done(scene),
        notes=(*layout.notes, *found.notes),
        candidates=left.ranks,
        to_decide=left.to_decide,
        open_calls=() if culprits else open_calls(scene, found.open),
        waits=() if culprits or found.open else waits_of(scene, left.ranks[:NAMED_IN_DOUBT]),
    )
    return finding, picture_of(scene, finding), scene


def _lone(scene: Scene) -> str:
    """Return the sentence about the only rank that left evidence."""
    rank, dump = next(iter(scene.dumps.items()))
    dumped, logged = "a dump that was read: add the others' dumps", "lines that were read: add the others'"
    return f"only rank {rank} left {dumped if dump.path else logged}"


def picture_of(scene: Scene, finding: HangFinding) -> HangPicture:
    """Give every rank with its place and whether it waits, failed, or left no dump."""
    mesh = scene.mesh
    ranks = tuple(sorted(scene.world))
    states = dict.fromkeys(ranks, "does not wait")
    states.update(dict.fromkeys(scene.graph.stuck, "waits"))
    states.update(dict.fromkeys(finding.ranks.missing, "no dump"))
    states.update({c.rank: "culprit" for c in finding.culprits})
    hosts = tuple(scene.dumps[r].host if r in scene.dumps else None for r in ranks)
    places: dict[str, tuple[int, ...]] = {}
    if mesh is not None:
        index = [mesh.coordinates[r] for r in ranks]
        axes = [n for n, axis in enumerate(mesh.order) if mesh.sizes[axis] > 1]
        places = {mesh.order[n]: tuple(i[n] for i in index) for n in reversed(axes)}
    return HangPicture(ranks, hosts, places, tuple(states[r] for r in ranks))


def _guessed(scene: Scene) -> list[Quality]:
    """Return a quality row for groups without listed members: these were taken from the ranks that use the name."""
    partial = [f.tail.partial for g in scene.groups if g.guessed for f in g.frontiers.values()]
    if all(partial):
        return []
    detail = "pg_config lists no members: taken as the ranks that use the name"
    return [Quality("unknown_members", detail=detail)]


def _verdict(judgement: Judgement, culprits: tuple[Culprit, ...], missing: int) -> tuple[HangVerdict, str]:
    """Return the verdict and its reason: a moving job, nothing outstanding, culprits, a doubt, or no evidence.

    missing: ranks without a dump.
    """
    scene, found = judgement.scene, judgement.found
    if judgement.live and not culprits:
        return ("inconclusive" if missing else "none"), moving_sentence(
            judgement.live, len(scene.dumps), missing
        )
    if scene.graph.moving and not judgement.live:
        move = scene.graph.moving[0]
        return "none", (
            f"the job was moving: rank {move.done_by} had finished call {move.seq} of group "
            f"{scene.groups[move.group].name}, which the earlier dump of rank {move.not_issued_by} has not issued"
        )
    if not scene.graph.stuck:
        if not any(d.entries or d.has_status for d in scene.dumps.values()):
            return (
                "inconclusive",
                f"the dumps hold no calls at all; was the flight recorder on ({LONGER_RINGS})?",
            )
        left = (
            f"; {missing} ranks left no dump and may be waiting for these: add their dumps" if missing else ""
        )
        idle = f"no call is outstanding on any of {len(scene.dumps)} ranks{left}"
        return ("inconclusive" if missing else "none"), idle
    if culprits:
        verdict: HangVerdict = "mismatch" if all(c.kind == "mismatched_call" for c in culprits) else "hang"
        return verdict, sentence(scene, culprits)
    return "inconclusive", found.doubts[0] if found.doubts else _unexplained(scene)


def _unexplained(scene: Scene) -> str:
    """Give the reason of an answer in which no rule names a culprit or leaves a doubt."""
    first = stuck_call(scene)
    if first is None:
        return _unexplained_messages(scene)
    group = scene.groups[first.group]
    if group.guessed:
        return (
            f"{rank_names(group.ranks)} issued call {first.seq} of group {group.name} ({group.desc}) and none has "
            "finished it; these dumps list no members, so that a rank without a dump may not have come to it"
        )
    return (
        f"all {len(group.ranks)} members of group {group.name} ({group.desc}) issued call {first.seq} and "
        f"none has finished it: the network or a device is stuck{scene.or_moves}; {advice_on_device(scene)}"
    )


def _unexplained_messages(scene: Scene) -> str:
    """Give the reason where messages that wait for each other, or other waits in a circle, block the job."""
    cycle = message_cycle(scene)
    if cycle is not None:
        ranks, other = rank_names(cycle.ranks), "other" if len(cycle.ranks) == 2 else "next in a circle"
        if cycle.sends:
            return (
                f"{ranks} each wait first in a send to the {other}: one of them must receive first, or each must send "
                "and receive in one batch (batch_isend_irecv)"
            )
        return (
            f"{ranks} each wait first in a receive from the {other}: all receive before they send, or one of them has "
            "left out a send"
        )
    if none_lacks_an_end(scene):
        return (
            f"both ends of every outstanding message were issued and none has finished: the network or a device is "
            f"stuck{scene.or_moves}; {advice_on_device(scene)}"
        )
    for rank, askers in sorted(scene.graph.awaited.items()):
        if rank in scene.dumps:
            whose = rank_names(sorted(askers))
            return (
                f"rank {rank} waits in another call and has not joined a message of {whose}: it left its end out, or "
                "the message is one too many"
            )
    return "every rank that others wait for waits itself; the evidence does not show which rank stopped first"


# The mesh of the job: as given, else inferred from the groups in the dumps.


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
        why = f"{error}; {mesh_remedy(len(scene.world))}"
        if order is not None:
            raise MeshError(why) from None
        return Layout(None, None, (f"mesh unknown: {why}",))
    if inferred.flat:
        return Layout(None, None, inferred.notes)
    mesh = inferred.mesh
    if reordered(mesh, order):
        shown = said(_uses(scene), scene.world) or f"the groups say --mesh {written(mesh)}"
        raise MeshError(
            f"--order {','.join(order or ())} contradicts the dumps: {shown} (inner to outer); give that order, or "
            "leave --order out"
        )
    finding = _finding(mesh, "process_groups")
    return Layout(mesh, finding, inferred.notes)


def _finding(mesh: Mesh, source: MeshSource) -> MeshFinding:
    return MeshFinding(mesh.order, dict(mesh.sizes), source, mesh.part_sizes)


def _given(scene: Scene, given: dict[str, int], order: Sequence[str] | None) -> Mesh:
    """Give the mesh of the user; MeshError where it contradicts the dumps, with what their groups say."""
    mesh = from_sizes(given, order or tuple(axis for axis in given if axis in AXES))
    shown = said(_uses(scene), scene.world)
    says = f"; {shown}" if shown else ""
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
