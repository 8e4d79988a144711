"""Dumps of a job that moved while they were written, as the recorders' own bookkeeping shows (`dumps.lately`).

Such dumps lie some milliseconds apart, so ranks with older dumps seem to lag: no host and no device can be blamed.
Mismatched calls are valid evidence at any time.
"""

from dataclasses import replace

from tracekit.analysis.hang.rules.rule import Found
from tracekit.analysis.hang.scene import Scene
from tracekit.thresholds.hang import LIVE_DUMPS_SHARE, STATES_OF_A_HANG


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


def told(count: int, dumps: int, missing: int) -> str:
    """Say what shows that the job moved, and what to do about ranks without a dump."""
    left = f"; {missing} ranks left no dump: dump again to see whether these went on" if missing else ""
    return (
        f"the job was moving: on {count} of {dumps} ranks devices had finished calls since their watchdogs last looked "
        f"(they do ten times a second){left}"
    )
