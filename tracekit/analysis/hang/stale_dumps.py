"""Dumps that are older than their peers': calls that they lack are unknown, not missing.

A rank that died, or with an interpreter that is never released, leaves the last dump that it could write, while its
peers' dumps show a later state. If peers finished a call that such a dump does not hold, the rank must have issued it.
If all waiting then starts from one rank the job hangs there; else dumps of a live job were written at different times.
"""

from dataclasses import replace
from typing import Final, NamedTuple

from tracekit.analysis.hang.rules.order import find_culprits
from tracekit.analysis.hang.rules.rule import Found
from tracekit.analysis.hang.scene import Scene
from tracekit.analysis.hang.wait_chains import all_explained, unseen_waits
from tracekit.findings import Quality
from tracekit.thresholds.hang import LIVE_DUMPS_SHARE, NAMED_IN_DOUBT, STALE_DUMPS_SHARE, STATES_OF_A_HANG

_MAY_MOVE: Final = "the job moves, or several links are stuck; dump a second time, to see whether it does"


class Judgement(NamedTuple):
    """The result of the rules, the scene that they looked at, and the old dumps that were noticed."""

    scene: Scene
    found: Found
    stale: tuple[Quality, ...] = ()
    live: int = 0
    """Dumps that show the job moving; 0 where it may hang."""


def judge(scene: Scene) -> Judgement:
    """Give the culprits, in the scene as it looks once old dumps are recognised."""
    if scene.graph.stuck and (live := lively(scene)):
        return Judgement(scene, matching(find_culprits(scene)), live=live)
    if scene.graph.moving:
        return _without_old_dumps(scene) or Judgement(scene, Found())
    if not scene.graph.stuck:
        return Judgement(scene, Found())
    found = find_culprits(scene)
    return _without_doubtful_devices(scene, found) or Judgement(scene, _explaining(scene, found))


def _explaining(scene: Scene, found: Found) -> Found:
    """Return the culprits without devices that seem to stall, if some waiting does not start from a culprit.

    In dumps of a live job that lie some milliseconds apart devices seem to lag, too; but ranks wait there for others
    as well. One device that stalled makes all ranks wait for it in the end.
    """
    stalled = {rank for rank, accused in found.culprits.items() if accused.kind == "device_stalled"}
    if not stalled or all_explained(scene, found.culprits.keys() | unseen_waits(scene), stalled):
        return found
    names = ", ".join(str(r) for r in sorted(stalled)[:NAMED_IN_DOUBT])
    why = "several links are stuck" if scene.still else _MAY_MOVE
    doubt = f"devices of ranks {names} lag, but some ranks wait without depending on them: {why}"
    kept = {rank: accused for rank, accused in found.culprits.items() if rank not in stalled}
    return replace(found, culprits=kept, doubts=(doubt, *found.doubts), candidates=frozenset(stalled))


def _without_doubtful_devices(scene: Scene, found: Found) -> Judgement | None:
    """Treat a device that seems to stall beside another fault as an old dump, if the other fault holds without it.

    An old dump shows calls as outstanding that have been done since: so does a stalled device.
    """
    doubtful = frozenset(r for r, accused in found.culprits.items() if accused.kind == "device_stalled")
    if not doubtful or doubtful == found.culprits.keys():
        return None
    again = scene.with_stale(doubtful)
    others = find_culprits(again)
    if others.culprits and others.culprits.keys() <= found.culprits.keys() - doubtful:
        return Judgement(again, others, _rows(scene, doubtful))
    return None


def _without_old_dumps(scene: Scene) -> Judgement | None:
    """Judge a job that seems to move, with the calls that its old dumps lack as unknown.

    None if no rank waits then, or too many dumps are old: then the job did move. A few old dumps do not show that it
    still does: if no rank explains all waiting, only mismatched calls are named, which are valid at any time.
    """
    issued: dict[tuple[int, int], int] = {}
    for move in scene.graph.moving:
        key = (move.group, move.not_issued_by)
        issued[key] = max(move.seq, issued.get(key, 0))
    stale = frozenset(rank for _, rank in issued)
    if len(stale) > max(1, STALE_DUMPS_SHARE * len(scene.dumps)):
        return None
    again = scene.with_stale(stale, issued)
    if not again.graph.stuck or again.graph.moving:
        return None
    found = find_culprits(again)
    if not found.culprits or not all_explained(again, found.culprits):
        found = matching(found)
    if not found.culprits:
        found = replace(found, doubts=(_older(scene, stale),), candidates=frozenset())
    return Judgement(again, found, _rows(scene, stale))


def _older(scene: Scene, stale: frozenset[int]) -> str:
    """Return the sentence on the dumps that are older than what their peers show."""
    move = scene.graph.moving[0]
    names = ", ".join(str(r) for r in sorted(stale)[:NAMED_IN_DOUBT])
    whose = f"the dumps of ranks {names} are" if len(stale) > 1 else f"the dump of rank {names} is"
    return (
        f"{whose} older than the others' (rank {move.done_by} had finished call {move.seq} of "
        f"group {scene.groups[move.group].name}, and the dump of rank {move.not_issued_by} does not hold that call); "
        "without newer dumps it is unknown which rank stopped, or whether the job moves; dump all ranks at once"
    )


def _rows(scene: Scene, ranks: frozenset[int]) -> tuple[Quality, ...]:
    return tuple(
        Quality(
            "stale_dump",
            scene.dumps[rank].path,
            1,
            f"rank {rank} probably wrote it before its peers' last calls: what it did after that is unknown",
        )
        for rank in sorted(ranks)
    )


# Dumps of a job that moved while they were written, as the recorders' own bookkeeping shows (`dumps.lately`).
#
# Such dumps lie some milliseconds apart, so ranks with older dumps seem to lag: no host and no device can be
# blamed. Mismatched calls are valid evidence at any time.


def lively(scene: Scene) -> int:
    """Count the dumps written while their ranks finished calls; 0 where these are too few to call the job live.

    In a hung job the watchdogs of a rank or two may have stopped, so most of the dumps that can show it must show it.
    """
    moved = {rank for rank, dump in scene.dumps.items() if dump.moved_lately}
    able = {rank for rank, dump in scene.dumps.items() if dump.finished}
    if scene.outstanding_only:
        moved, able = _seen_unalike(scene), {rank for rank, dump in scene.dumps.items() if dump.entries}
    return len(moved) if len(moved) > LIVE_DUMPS_SHARE * len(able) else 0


def _seen_unalike(scene: Scene) -> set[int]:
    """Return the ranks with a status further back than their outstanding calls, if such members do not agree.

    Dumps of outstanding calls alone leave out what has ended since the watchdog looked. Once a job hangs all watchdogs
    have seen the same calls end, or two states of them: a call may have ended on a part of its group.
    """
    moved: set[int] = set()
    for group in scene.groups:
        behind = {
            frontier.rank: frontier.tail.status_completed
            for frontier in group.frontiers.values()
            if not group.mixed and 0 <= frontier.tail.status_completed < frontier.tail.entry_completed
        }
        if len(set(behind.values())) > STATES_OF_A_HANG:
            moved.update(behind)
    return moved


def matching(found: Found) -> Found:
    """Return only the culprits with mismatched calls: in a live job no rank has stopped."""
    kept = {r: a for r, a in found.culprits.items() if a.kind == "mismatched_call"}
    return replace(found, culprits=kept, doubts=(), notes=())


def moving_sentence(count: int, dumps: int, missing: int) -> str:
    """Say what shows that the job moved, and what to do about ranks without a dump."""
    left = f"; {missing} ranks left no dump: dump again to see whether these went on" if missing else ""
    return (
        f"the job was moving: on {count} of {dumps} ranks devices had finished calls since their watchdogs last looked "
        f"(they do ten times a second){left}"
    )
