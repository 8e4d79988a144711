"""Dumps of a job that moved while they were written, as the recorders' own bookkeeping tells (`dumps.lately`).

Such dumps lie some milliseconds apart, so that ranks seem to lag whose dumps are only older: no host and no device can
be blamed. Calls that do not match do so at any time.
"""

from dataclasses import replace

from tracekit.analysis.hang.rules.rule import Found
from tracekit.analysis.hang.scene import Scene
from tracekit.thresholds.hang import LIVE_DUMPS_SHARE


def lively(scene: Scene) -> int:
    """Count the dumps written while their ranks finished calls; 0 where these are too few to call the job live.

    A job that hangs may have a rank or two whose watchdogs stopped, so that most dumps that hold finished calls must
    show it.
    """
    count = sum(dump.moved_lately for dump in scene.dumps.values())
    able = sum(dump.finished for dump in scene.dumps.values())
    return count if count > LIVE_DUMPS_SHARE * able else 0


def matching(found: Found) -> Found:
    """Give the culprits whose calls do not match, and no other: in a live job no rank has stopped."""
    kept = {r: a for r, a in found.culprits.items() if a.kind == "mismatched_call"}
    return replace(found, culprits=kept, doubts=(), notes=())


def told(count: int, dumps: int, missing: int) -> str:
    """Say what shows that the job moved, and what to do about ranks without a dump."""
    left = f"; {missing} ranks left no dump: dump again, to see whether the others went on" if missing else ""
    return (
        f"the job was moving: on {count} of {dumps} ranks devices had finished calls since their watchdogs last looked "
        f"(they do ten times a second){left}"
    )
