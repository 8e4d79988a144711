"""Rings that have overwritten outstanding calls: the ranks which these would name stay unknown."""

from tracekit.analysis.hang.remedies import LONGER_RINGS
from tracekit.analysis.hang.rules.rule import Found
from tracekit.analysis.hang.scene import Scene


def lost_calls(scene: Scene, _known: Found) -> Found:
    """Give the doubt that outstanding calls have fallen out of the rings.

    Looks for: dumps with an outstanding oldest entry, without a `pg_status` that would show their frontiers, or of
    ranks that send and receive (the status does not show messages).
    Excuses: every rank from the rules that follow, because these depend on calls that no ring shows.
    Returns: no culprit; a doubt that says what to record.
    """
    paired = {r for g in scene.groups if g.mixed for r in g.frontiers}
    cut = [r for r, d in scene.dumps.items() if d.cut and (not d.has_status or r in paired)]
    if not cut:
        return Found()
    doubt = f"the rings of {len(cut)} ranks have lost outstanding calls; record more ({LONGER_RINGS})"
    return Found(doubts=(doubt,))
