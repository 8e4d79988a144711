"""A rank without a dump, or with too old a one, that alone explains waiting which no rank present explains."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from tracekit.analysis.hang.agreement import synchronising
from tracekit.analysis.hang.frontier import Frontier, Role
from tracekit.analysis.hang.program_order import CallId, first_lacking, order_of
from tracekit.analysis.hang.remedies import LONGER_RINGS
from tracekit.analysis.hang.rules.not_in_dumps import idle_beside_missing
from tracekit.analysis.hang.rules.rule import Accusation, Found
from tracekit.analysis.hang.rules.skipped_collective import accuse_skipped
from tracekit.analysis.hang.scene import Scene
from tracekit.analysis.hang.wait_chains import all_explained
from tracekit.dumps.calls import Signature
from tracekit.findings.hang import CulpritKind
from tracekit.thresholds.hang import MAX_WITNESSES, MIN_WITNESSES, NAMED_IN_DOUBT


class Objection(NamedTuple):
    """Why a rank without a whole dump may not be the one that did not come, and which ranks may be then."""

    text: str
    ranks: frozenset[int] = frozenset()


class AbsentRank:
    """One rank that left no whole dump, seen from its partners."""

    def __init__(self, scene: Scene, rank: int) -> None:
        self._scene, self._rank = scene, rank

    def partners_that_skipped(self, witnesses: int = MIN_WITNESSES) -> dict[int, CallId]:
        """Find partners that left a call of theirs out; nothing else shows it where only two ranks make the call.

        Such a rank runs on to calls of its other groups that all its peers make only after the one it lacks; or it
        makes the next call of this group under the number of the one left out, and so too late. At least so many
        `witnesses` must show the usual order, and none another.
        """
        found: dict[int, CallId] = {}
        for number, group in enumerate(self._scene.groups):
            if self._rank not in group.ranks or not self._scene.is_narrow(group):
                continue
            for frontier in group.frontiers.values():
                if frontier.enqueued >= 0 and not frontier.stale:
                    skipped = self._skipped(number, frontier, witnesses)
                    if skipped is not None:
                        found[frontier.rank] = skipped
        return found

    def objection(self, calls: Sequence[CallId]) -> Objection | None:
        """Say why this may not be the rank that did not come to these calls; None if nothing says so."""
        groups = self._scene.groups
        if skipped := self.partners_that_skipped(witnesses=1):
            return Objection(
                f"rank {min(skipped)} seems to have left out a call that both make together; the dumps do not show "
                "which of the two did not come",
                frozenset(skipped) | {self._rank},
            )
        if idle := sorted(idle_beside_missing(self._scene)):
            text = f"rank {idle[0]} has nothing outstanding: it stopped first, or has ended its program"
            return Objection(text, frozenset({self._rank, *idle}))
        if calls and not any(groups[c.group].call(c.seq) for c in calls):
            text = "the rings have lost the calls that wait for it, so these may not match; record more"
            return Objection(f"{text} ({LONGER_RINGS})")
        if beside := self._beside():
            return Objection(
                f"rank {beside[0]} left none either, and the two share a group: either dump would show which of them "
                "did not come",
                frozenset({self._rank, *beside}),
            )
        if (alone := self._doubtful_witness(calls)) is not None:
            return Objection(
                f"rank {alone} may have finished their last call and stopped by itself: Gloo also notes a call as "
                "done when a member dies in it",
                frozenset({self._rank, alone}),
            )
        if self._rank not in self._scene.dumps and any(self._issued(call) for call in calls):
            text = "it finished a later call with its peers: a device is stuck or a call was left out, and its dump"
            return Objection(f"{text} may show where", frozenset({self._rank}))
        return None

    def _skipped(self, number: int, frontier: Frontier, witnesses: int) -> CallId | None:
        """Give the call of group `number` that this partner left out; None where nothing shows it."""
        front = CallId(number, frontier.front)
        if frontier.waiting and self._came_late(frontier.rank, front, witnesses):
            return front
        lacked = CallId(number, frontier.enqueued + 1)
        return lacked if self._ran_past(frontier.rank, lacked, witnesses) else None

    def _beside(self) -> list[int]:
        """Find ranks that left no whole dump either, and may keep this one waiting in a call that no dump shows."""
        dumps = self._scene.dumps
        found = set()
        for group in self._scene.groups:
            others = [r for r in group.ranks if r != self._rank] if self._rank in group.ranks else []
            if others and all(r not in dumps or dumps[r].truncated for r in others):
                found.update(others)
        return sorted(found)

    def _doubtful_witness(self, calls: Sequence[CallId]) -> int | None:
        """Find the one rank that waits for this one, if its last call only reads as done."""
        doubted = {
            frontier.rank
            for call in calls
            for frontier in self._scene.groups[call.group].frontiers.values()
            if frontier.waiting and frontier.front == call.seq and frontier.reset
        }
        return min(doubted) if len(doubted) == 1 else None

    def _issued(self, call: CallId) -> bool:
        """Whether it must have issued the collective, since it went through one that comes later."""
        for number, group in enumerate(self._scene.groups):
            if number == call.group or group.mixed or self._rank not in group.ranks:
                continue
            proven = sorted({f.proven for f in group.frontiers.values() if not f.stale}, reverse=True)
            done = next((seq for seq in proven if seq > 0 and synchronising(group.call(seq))), None)
            if done is not None and self._comes_before(call, CallId(number, done)):
                return True
        return False

    def _comes_before(self, one: CallId, other: CallId) -> bool:
        """Whether members of these two groups make the first call before the second, each in its own place."""
        groups = [self._scene.groups[c.group] for c in (one, other)]
        asked = {r for g in groups if len(g.ranks) < len(self._scene.world) for r in g.frontiers}
        votes = [self._vote(rank, one, other) for rank in sorted(asked)[:MAX_WITNESSES]]
        return votes.count(1) > votes.count(-1)

    def _vote(self, rank: int, one: CallId, other: CallId) -> int:
        """Give 1 where `rank` makes the first call before the second, -1 for the other way round, 0 if unknown."""
        issues = []
        for call in (one, other):
            number = self._scene.own(rank, call.group)
            frontier = None if number is None else self._scene.groups[number].frontiers[rank]
            comparable = frontier is not None and (number == call.group or frontier.in_step(call.seq))
            issues.append(frontier.issue(call.seq) if frontier is not None and comparable else None)
        return order_of(issues[0], issues[1])

    def _ran_past(self, rank: int, lacked: CallId, witnesses: int) -> bool:
        """Whether `rank` made a call in another group that all its peers make after the one it lacks."""
        groups = self._scene.groups
        peers = self._scene.peers(rank)
        for number in (n for alike in self._scene.places[rank].values() for n in alike):
            frontier = groups[number].frontiers[rank]
            if number == lacked.group or groups[number].mixed or frontier.enqueued < 1 or frontier.stale:
                continue
            votes = [self._vote(r, lacked, CallId(number, frontier.enqueued)) for r in peers]
            if votes.count(1) >= witnesses and -1 not in votes:
                return True
        return False

    def _came_late(self, rank: int, call: CallId, witnesses: int) -> bool:
        """Whether all peers that show it make the call before others that `rank` made before it."""
        mine = self._made_before(rank, call)
        if not mine:
            return False
        gaps = [self._gaps(mine, r, call) for r in self._scene.peers(rank)]
        later = [min(some) >= 0 and max(some) > 0 for some in gaps if some]
        return len(later) >= witnesses and all(later)

    def _gaps(self, mine: Mapping[Role, CallId], rank: int, call: CallId) -> list[int]:
        """Give how much later `mine` are than the calls that `rank` made before this one, where groups count alike."""
        found = []
        for role, their in self._made_before(rank, call).items():
            own = mine.get(role)
            frontier = self._scene.groups[their.group].frontiers[rank]
            if own is not None and (own.group == their.group or frontier.in_step(own.seq)):
                found.append(own.seq - their.seq)
        return found

    def _made_before(self, rank: int, call: CallId) -> dict[Role, CallId]:
        """Give the last call that a rank made before this one in each of its other groups, as far as its ring shows."""
        groups = self._scene.groups
        number = self._scene.own(rank, call.group)
        at = None if number is None else groups[number].frontiers[rank].created(call.seq)
        found: dict[Role, CallId] = {}
        for role, numbers in self._scene.places[rank].items():
            unclear = role == groups[call.group].role or len(numbers) > 1 or groups[numbers[0]].mixed
            if at is None or unclear:
                continue
            tail = groups[numbers[0]].frontiers[rank].tail
            before = tail.seq[(tail.created > 0) & (tail.created < at)]
            if len(before):
                found[role] = CallId(numbers[0], int(before.max()))
        return found


def missing_dump(scene: Scene, _known: Found) -> Found:
    """Return the one rank without a whole dump that every call waits for if no rank with a dump delays it.

    Looks for: pending calls with members that left no dump, or an old one; the rank that is common to all of them.
    Excuses: that rank, if a partner of it left a call out (the partner is named), if the dumps speak against it, or
    if some waiting does not start from it; and all such ranks, if several fit.
    Returns: `missing_dump`, or `host_stalled` if its old dump is whole; else a doubt that names the ranks that fit.
    """
    fits, places = _fitting(scene)
    if not fits:
        return Found()
    if len(scene.dumps) == 1:
        return _one_dump(scene, frozenset().union(*fits))
    common = set.intersection(*fits)
    if len(common) != 1:
        names = ", ".join(str(r) for r in sorted(set().union(*fits))[:NAMED_IN_DOUBT])
        doubt = (
            f"no rank that left a dump explains it; one of ranks {names} may, and the dumps do not show which"
        )
        return Found(doubts=(doubt,), candidates=frozenset().union(*fits))
    rank = min(common)
    absent = AbsentRank(scene, rank)
    if passed := absent.partners_that_skipped():
        return accuse_skipped(scene, passed)
    objection = _unlisted(scene, rank, places[rank]) or absent.objection(places[rank])
    if objection is None:
        accusation = _accuse(scene, rank, places[rank])
        if accusation is not None:
            return Found({rank: accusation})
        objection = Objection(
            "some ranks wait without depending on it; the dumps do not show which rank stopped first"
        )
    return Found(
        doubts=(f"rank {rank} left no whole dump, but {objection.text}",), candidates=objection.ranks
    )


def _unlisted(scene: Scene, rank: int, places: list[CallId]) -> Objection | None:
    """Return the objection that no dump lists the members of these groups: more ranks than this one may be missing."""
    groups = [scene.groups[call.group] for call in places]
    listed = any(f.tail.ranks for group in groups for f in group.frontiers.values())
    if listed or not groups:
        return None
    text = "these dumps list no members of groups, so that further ranks may be missing; add the dumps of all ranks"
    return Objection(text, frozenset({rank}))


def _one_dump(scene: Scene, absent: frozenset[int]) -> Found:
    """Give the doubt of a single dump: its rank may have made a call that the others never make."""
    (rank,) = scene.dumps
    doubt = (
        f"either the ranks without a dump did not come to the call in which rank {rank} waits, or only this rank makes "
        "that call"
    )
    return Found(doubts=(doubt,), candidates=absent | {rank})


def _fitting(scene: Scene) -> tuple[list[set[int]], dict[int, list[CallId]]]:
    """Return the ranks that fit each call that no rank with a dump delays, and the calls that only one rank fits."""
    fits: list[set[int]] = []
    places: dict[int, list[CallId]] = defaultdict(list)
    stale = scene.graph.stale
    for call in scene.graph.pending:
        unseen = [*call.missing, *(r for r in call.unknown if r in stale)]
        if call.behind or call.done or not unseen:
            continue
        fits.append({*call.missing, *call.unknown})
        if len(fits[-1]) == 1:
            places[unseen[0]].append(CallId(call.group, call.seq))
    fits.extend({rank} for rank in scene.graph.awaited if rank not in scene.dumps or rank in stale)
    return fits, places


def _accuse(scene: Scene, rank: int, places: list[CallId]) -> Accusation | None:
    """Accuse the only rank that fits, at the first call it lacks; None where some waiting does not start from it."""
    absent = set(scene.world) - scene.dumps.keys()
    if not all_explained(scene, {rank, *absent}):
        return None
    # where several files are cut, an old dump shows nothing
    cut = {r for r, d in scene.dumps.items() if d.truncated}
    if rank in scene.dumps and not (rank in scene.graph.stale and cut <= {rank}):
        return None
    dump = scene.dumps.get(rank)
    if dump is not None and dump.damaged_end and not dump.truncated:
        return None
    kind: CulpritKind = "missing_dump" if dump is None or dump.truncated else "host_stalled"
    if not places:
        return _at_message(scene, rank, kind) if absent == {rank} else None
    first = first_lacking(scene, rank, places)
    return Accusation(kind, first.group, first.seq)


def _at_message(scene: Scene, rank: int, kind: CulpritKind) -> Accusation | None:
    """Accuse the only rank without a dump, at the oldest message that another one still exchanges with it; or None.

    With a second one missing, the rank may wait for a rank that only the second one's dump shows to be late. A send of
    Gloo is no wait: it stays outstanding until the program asks for its end.
    """
    found = [
        (op.created, waiter, op)
        for waiter in sorted(scene.graph.awaited.get(rank, ()))
        for op in scene.dumps[waiter].p2p
        if not (op.send and scene.dumps[waiter].backend == "gloo")
        and scene.dumps[waiter].groups[op.group].ranks[op.peer : op.peer + 1] == (rank,)
    ]
    if not found:
        return None
    _, waiter, op = min(found, key=lambda one: one[:2])
    tail = scene.dumps[waiter].groups[op.group]
    own = [n for n in scene.memberships[waiter] if scene.groups[n].frontiers[waiter].tail is tail]
    made = Signature("recv" if op.send else "send", "", "", "", "")
    return Accusation(kind, own[0], op.seq, call=made) if own else None
