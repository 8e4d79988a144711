"""Ranks that wait in a group without another member in these dumps: another job, such as an inference engine.

Trainers that send weights to an engine make a group with its processes. Dumps number its members from 0, as if they
were ranks of the trainers, or list none. Ranks that wait for such a rank, and the rank itself, have done nothing wrong.
"""

from collections.abc import Iterator

from tracekit.analysis.hang.remedies import OUTSIDE
from tracekit.analysis.hang.rules.rule import Found
from tracekit.analysis.hang.scene import Scene
from tracekit.analysis.hang.wait_chains import all_explained, unseen_waits
from tracekit.dumps.rank_dump import GroupTail


def outside_group(scene: Scene, _known: Found) -> Found:
    """Give no culprit, but the call in which a rank waits for processes that left no dump here.

    Looks for: an outstanding call of a group that no other dump holds, though its members are not listed, or are ranks
    with dumps that list groups.
    Excuses: nothing; without effect where some waiting does not start from these ranks.
    Returns: a doubt that names the call; no rank is a candidate.
    """
    waits = dict(_waits_outside(scene))
    if not waits or not all_explained(scene, waits.keys() | unseen_waits(scene), waits.keys()):
        return Found()
    rank, tail = min(waits.items(), key=lambda one: one[0])
    return Found(doubts=(_doubt(rank, tail),), decide=OUTSIDE)


def _waits_outside(scene: Scene) -> Iterator[tuple[int, GroupTail]]:
    """Yield the ranks with such a call, and the group."""
    for rank, dump in scene.dumps.items():
        for tail in dump.groups:
            waits = 0 <= tail.entry_completed < tail.entry_enqueued
            if waits and len(tail.ranks) != 1 and _without_peers(scene, rank, tail):
                yield rank, tail


def _without_peers(scene: Scene, rank: int, tail: GroupTail) -> bool:
    """Whether every other dump that may hold the group lists its groups, and lacks this one."""
    others = [scene.dumps.get(r) for r in (tail.ranks or scene.world) if r != rank]
    return bool(others) and all(
        other is not None
        and not (other.unlisted or other.truncated)
        and any(known.ranks for known in other.groups)
        and all((known.name, known.desc) != (tail.name, tail.desc) for known in other.groups)
        for other in others
    )


def _doubt(rank: int, tail: GroupTail) -> str:
    """Return the sentence about the call that the rank has waited in longest."""
    at = int((tail.seq <= tail.entry_completed).sum())
    known = at < len(tail.calls)
    op = tail.calls[at].op.lstrip("_") if known else "call"
    place = (
        next((frame for frame in tail.stacks[at] if "/torch/" not in frame), "")
        if known and tail.stacks
        else ""
    )
    return (
        f"rank {rank} waits in {op} {tail.entry_completed + 1} of group {tail.name}{f', at {place},' if place else ''} "
        "and no other dump here holds that group: its other members are processes of another job, such as an engine"
    )
