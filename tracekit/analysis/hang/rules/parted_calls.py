"""Ranks that ran different programs: they made other groups than their peers, or calls in other places.

torch counts the groups that a process makes, and ranks meet under that count. Where one rank makes another group than
its peers, or in another order, ranks meet that are no members of one group, and its first call ends nowhere. Names that
`split_group` gives repeat in a sound job: its groups say so, and a mesh's, in their descriptions.

Where one rank alone saves, evaluates or logs, its call pairs with the next one of the others, which all finish. What
hangs is a later call, and the ranks that it waits for have done nothing wrong.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple

from tracekit.analysis.hang.call_origins import Log, Move, Origin, Origins, moved, usual_of
from tracekit.analysis.hang.frontier import Group
from tracekit.analysis.hang.remedies import NEW_GROUPS
from tracekit.analysis.hang.rules.rule import Accusation, Found, Mismatch
from tracekit.analysis.hang.scene import Scene
from tracekit.analysis.hang.wait_chains import all_explained, unseen_waits
from tracekit.findings.hang import CulpritKind
from tracekit.text import ranges
from tracekit.thresholds.hang import MAX_WITNESSES, NAMED_A_SIDE

_REPEATED: Final = ("mesh_", "split")
"""Parts of the descriptions of groups with names that may repeat."""


def shared_name(scene: Scene, _known: Found) -> Found:
    """Give no culprit, but the groups of one name and of different members that explain a first call without an end.

    Looks for: waiting members of a group that has finished no call and shares its name and description with another.
    Excuses: all members of these groups, since the dumps do not show which rank called `new_group` wrongly.
    Returns: a doubt that names the groups, and their ranks as candidates.
    """
    for number in sorted({call.group for call in scene.graph.pending}):
        group = scene.groups[number]
        alike = [g for g in scene.groups if (g.name, g.desc) == (group.name, group.desc)]
        begun = any(frontier.completed > 0 for frontier in group.frontiers.values())
        repeated = any(part in group.desc for part in _REPEATED) or not group.name.isdecimal()
        if len(alike) > 1 and not (begun or repeated or any(g.guessed for g in alike)):
            ranks = frozenset(rank for g in alike for rank in g.frontiers)
            members = frozenset(rank for g in alike for rank in g.ranks)
            return Found(
                excused=members, doubts=(_shared_name(group, alike),), candidates=ranks, decide=NEW_GROUPS
            )
    return Found()


def _shared_name(group: Group, alike: list[Group]) -> str:
    views = [f"{ranges(g.ranks)} on {_ranks(g)}" for g in alike[:NAMED_A_SIDE]]
    more = len(alike) - len(views)
    return (
        f"the name {group.name} belongs to groups with different members ({'; '.join(views)}"
        f"{f'; {more} more' if more else ''}): these ranks made different new_group calls, and the first call of "
        f"ranks {ranges(group.ranks)} cannot end"
    )


def _ranks(group: Group) -> str:
    return ("rank " if len(group.frontiers) == 1 else "ranks ") + ranges(sorted(group.frontiers))


def parted_calls(scene: Scene, _known: Found) -> Found:
    """Return the ranks with calls of a group that are, from some number on, the others' calls shifted by a few.

    Looks for: the first number at which members made calls of another kind or with another stack, if the minority's
    calls continue like the majority's some calls earlier or later; or the minority waits alone, and the others never
    made any of its calls from there on. For a group without a majority its replicas decide.
    Excuses: all ranks if the members disagreed in the same way before, or some waiting does not start from the
    minority; all other members of the group; and both sides, with a doubt, if there is no majority.
    Returns: `mismatched_call` at the first number, or `host_stalled` for a call left out; the versions of that call.
    """
    found = Found()
    for number in sorted({call.group for call in scene.graph.pending}):
        group = scene.groups[number]
        if not (group.mixed or group.guessed):
            found = found.and_then(_in_group(scene, number, group))
    return found


class _Parting(NamedTuple):
    """The first number at which members part, its sides, and the ranks that are not on the usual one."""

    seq: int
    sides: Mapping[Origin, list[int]]
    odd: dict[int, Move | None]
    usual: Origin | None  # None: nothing shows which side it is
    again: bool = False  # the usual call is one more like the one before it


def _in_group(scene: Scene, number: int, group: Group) -> Found:
    """Give the ranks that part from one group, or the doubt."""
    parting = _parting(scene, number, group)
    if parting is None:
        return Found()
    odd = parting.odd
    if not all_explained(scene, odd.keys() | unseen_waits(scene), odd.keys()):
        return Found()
    settled = parting.usual is not None
    mismatch = Mismatch(
        number,
        parting.seq,
        {(place,): ranks for place, ranks in enumerate(parting.sides.values())},
        sorted(odd) if settled else [],
        skipped=False,
        expected=None,
    )
    excused = frozenset(group.ranks)
    if not settled:
        return Found(
            excused=excused, doubts=(_doubt(group, parting),), candidates=frozenset(odd), open=(mismatch,)
        )
    culprits = {rank: _accuse(mismatch, move, again=parting.again) for rank, move in odd.items()}
    return Found(culprits, excused, frozenset({(number, parting.seq)}))


def _accuse(mismatch: Mismatch, move: Move | None, *, again: bool) -> Accusation:
    """Accuse a rank; one that makes fewer rounds of a loop than its peers (`again`) has left no call out."""
    how = "made a call that its peers do not make" if move is None else _moved_by(move, again=again)
    left_out = move is not None and not move.made and not again
    kind: CulpritKind = "host_stalled" if left_out else "mismatched_call"
    return Accusation(kind, mismatch.group, mismatch.seq, mismatch, how=how)


def _moved_by(move: Move, *, again: bool) -> str:
    """Say how a rank's calls go on as its peers' do."""
    if again and not move.made:
        times = "once" if move.left_out == 1 else f"{move.left_out} times"
        return f"made the call that its peers repeat {times} less often"
    made = f"made {_calls(move.made)} that its peers do not make" if move.made else ""
    left = f"left out {_calls(move.left_out)} that its peers make" if move.left_out else ""
    return " and ".join(part for part in (made, left) if part)


def _calls(count: int) -> str:
    return "a call" if count == 1 else f"{count} calls"


def _doubt(group: Group, parting: _Parting) -> str:
    names = " and ".join(str(rank) for rank in sorted(parting.odd))
    return (
        f"ranks {names} made call {parting.seq} of group {group.name} in different places of the program and "
        "count differently from then on: one of them made one call too many or left one out, and the dumps do not "
        "show which"
    )


def _parting(scene: Scene, number: int, group: Group) -> _Parting | None:
    """Find where members part; None where they do not, or where nothing shows that they count apart since."""
    logs = Origins(group).logs
    if len(logs) < 2:
        return None
    paired: set[frozenset[Origin]] = set()
    sides_at = {seq: _sides(logs, seq) for seq in sorted({seq for log in logs.values() for seq in log})}
    for seq, sides in sides_at.items():
        if len(sides) < 2:
            continue
        pairs = {frozenset((one, other)) for one in sides for other in sides if one != other}
        if pairs <= paired:
            continue  # these calls of different places have met before: the program means them to
        parting = _judge(scene, number, logs, seq, sides)
        if parting is not None:
            return parting
        paired |= pairs
    return None


def _sides(logs: Mapping[int, Log], seq: int) -> dict[Origin, list[int]]:
    sides: dict[Origin, list[int]] = {}
    for rank, log in logs.items():
        if seq in log:
            sides.setdefault(log[seq], []).append(rank)
    return sides


def _judge(
    scene: Scene, number: int, logs: Mapping[int, Log], seq: int, sides: Mapping[Origin, list[int]]
) -> _Parting | None:
    """Judge one number at which members differ."""
    known = sum(map(len, sides.values()))
    right = next(
        (origin for origin, ranks in sides.items() if 2 * len(ranks) > known and len(ranks) > 1), None
    )
    usual = usual_of(logs[rank] for rank in sides[right]) if right is not None else None
    if usual is None:
        usual = _replicas(scene, number, seq, sides)
        right = None if usual is None else usual[seq]
    if usual is not None and right is not None:
        odd = {
            rank: moved(logs[rank], usual, seq) for o, ranks in sides.items() if o != right for rank in ranks
        }
        shown = all(odd.values()) or _alone(scene, number, logs, seq, usual, odd)
        return _Parting(seq, sides, odd, right, usual.get(seq - 1) == right) if shown else None
    if len(sides) != 2 or known != 2:
        return None
    (one,), (other,) = sides.values()
    ways = moved(logs[one], logs[other], seq) or moved(logs[other], logs[one], seq)
    if ways is None and not any(
        _alone(scene, number, logs, seq, logs[b], {a: None}) for a, b in ((one, other), (other, one))
    ):
        return None
    return _Parting(seq, sides, {one: None, other: None}, None)


def _replicas(scene: Scene, number: int, seq: int, sides: Mapping[Origin, list[int]]) -> Log | None:
    """Give the usual log of groups in the same place, where all of them agree on one of these sides."""
    group = scene.groups[number]
    others = [g for g in scene.replicas[number] if g is not group][:MAX_WITNESSES]
    logs = [log for other in others for log in Origins(other).logs.values()]
    votes = {log[seq] for log in logs if seq in log}
    return usual_of(logs) if len(votes) == 1 and votes <= sides.keys() else None


def _alone(
    scene: Scene, number: int, logs: Mapping[int, Log], seq: int, usual: Log, odd: Mapping[int, object]
) -> bool:
    """Whether these ranks alone wait, since calls in places that the usual log does not hold, and went along before."""
    waiting = {r for call in scene.graph.pending if call.group == number for r in call.waiting}
    theirs = set(usual.values())
    since = [[origin for at, origin in logs[rank].items() if at >= seq] for rank in odd]
    strange = all(len(calls) > 1 and all(o[1] and o not in theirs for o in calls) for calls in since)
    went_together = all(
        any(usual.get(at) == origin for at, origin in logs[rank].items() if at < seq) for rank in odd
    )
    return waiting == odd.keys() and strange and went_together
