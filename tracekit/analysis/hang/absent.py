"""What a rank without a dump has certainly done, and who among its partners is at fault in its place.

A call that synchronises and is done on one member was issued by all. Ranks of one place run one program, so a rank that
went through such a call also issued what its peers issue before it. Used by `hang_roots`.
"""

from collections.abc import Sequence

from tracekit.analysis.hang.call_order import ASKED, Item, earlier, peers_of, places_of, sight
from tracekit.analysis.hang.groups import Group, synchronising
from tracekit.dumps.load import DumpSet

_Role = tuple[str, int]


class Absent:
    """One rank that left no whole dump, seen from its partners."""

    def __init__(self, groups: list[Group], dumps: DumpSet, rank: int) -> None:
        self.groups, self.rank, self.dumps = groups, rank, dumps.dumps
        self.gone = rank not in dumps.dumps
        self.world = len(dumps.world)
        self.places = places_of(groups, set(dumps.dumps))

    def passed(self, witnesses: int = 2) -> dict[int, tuple[int, int]]:
        """Find partners that left a call of theirs out: nothing else shows it where only two make the call.

        Such a rank runs on to calls of its other groups that all its peers make only after the one it lacks; or it
        makes the next call of this group under the number of the one left out, and so too late. At least so many
        `witnesses` must show the usual order, and none another.
        """
        found: dict[int, tuple[int, int]] = {}
        for number, group in enumerate(self.groups):
            if self.rank not in group.ranks or not self._narrow(group):
                continue
            for row in group.rows.values():
                lacks = Item(number, row.enqueued + 1)
                if row.enqueued < 0 or row.stale:
                    continue
                if row.waiting and self._came_late(row.rank, Item(number, row.front), witnesses):
                    found[row.rank] = (number, row.front)
                elif self._ran_past(row.rank, lacks, witnesses):
                    found[row.rank] = (number, lacks.seq)
        return found

    def objection(self, items: Sequence[Item]) -> str | None:
        """Why this may not be the rank that did not come to these calls; None if nothing says so."""
        if passed := self.passed(witnesses=1):
            return (
                f"rank {min(passed)} seems to have left out a call that they make together; nothing tells which of the "
                "two did not come"
            )
        if items and not any(self.groups[i.group].call(i.seq) for i in items):
            return (
                "the rings have lost the calls that wait for it, so that they may not match; record more "
                "(TORCH_FR_BUFFER_SIZE)"
            )
        if (beside := self._beside()) is not None:
            return (
                f"rank {beside} neither, and the two share a group: which of them did not come would stand in either "
                "dump"
            )
        if (alone := self._witness_only(items)) is not None:
            return (
                f"rank {alone} may have finished their last call and stopped by itself: Gloo notes a call as done, "
                "too, when a member dies in it"
            )
        if self.gone and any(self._issued(item) for item in items):
            return (
                "it finished a later call with its peers: a device is stuck or a call was left out, and its dump may "
                "tell where"
            )
        return None

    def _beside(self) -> int | None:
        """A rank that left no whole dump either, and may keep this one waiting in a call that no dump shows."""
        for group in self.groups:
            others = [r for r in group.ranks if r != self.rank] if self.rank in group.ranks else []
            if others and all(r not in self.dumps or self.dumps[r].truncated for r in others):
                return others[0]
        return None

    def _witness_only(self, items: Sequence[Item]) -> int | None:
        """The one rank that waits for this one, if its call reads as done."""
        waiting = {
            row.rank: row.reset
            for item in items
            for row in self.groups[item.group].rows.values()
            if row.waiting and row.front == item.seq
        }
        doubted = [rank for rank, reset in waiting.items() if reset]
        return doubted[0] if len(doubted) == 1 else None

    def _narrow(self, group: Group) -> bool:
        """Whether members run one program: no pipeline, not all ranks."""
        return not group.mixed and len(group.ranks) < self.world

    def _issued(self, item: Item) -> bool:
        """Whether it must have issued the collective: it went through one that comes later."""
        for number, group in enumerate(self.groups):
            if number == item.group or group.mixed or self.rank not in group.ranks:
                continue
            proven = sorted({row.proven for row in group.rows.values() if not row.stale}, reverse=True)
            done = next((seq for seq in proven if seq > 0 and synchronising(group.call(seq))), None)
            if done is not None and self._before(item, Item(number, done)):
                return True
        return False

    def _before(self, one: Item, other: Item) -> bool:
        """Whether members of these two groups make the first call before the second, each in its own place."""
        pair = [self.groups[i.group] for i in (one, other)]
        asked = {r for g in pair if len(g.ranks) < self.world for r in g.rows}
        votes = [self._vote(rank, one, other) for rank in sorted(asked)[:ASKED]]
        return votes.count(1) > votes.count(-1)

    def _vote(self, rank: int, one: Item, other: Item) -> int:
        sights = []
        for item in (one, other):
            number = self._own(rank, item.group)
            seen = None if number is None else sight(self.groups[number].rows[rank], item.seq)
            if seen is None:
                return 0
            sights.append(seen)
        return earlier(sights[0], sights[1])

    def _own(self, rank: int, number: int) -> int | None:
        """The group itself where `rank` is in it, else its only one in the same place."""
        alike = self.places[rank].get(self.groups[number].role, [])
        return number if number in alike else alike[0] if len(alike) == 1 else None

    def _peers(self, rank: int) -> list[int]:
        return peers_of(self.groups, self.places, rank, self.world)

    def _ran_past(self, rank: int, lacks: Item, witnesses: int) -> bool:
        """Whether `rank` made a call in another group that all its peers make after the one it lacks."""
        peers = self._peers(rank)
        for number in (n for alike in self.places[rank].values() for n in alike):
            row = self.groups[number].rows[rank]
            if number == lacks.group or self.groups[number].mixed or row.enqueued < 1 or row.stale:
                continue
            votes = [self._vote(r, lacks, Item(number, row.enqueued)) for r in peers]
            if votes.count(1) >= witnesses and -1 not in votes:
                return True
        return False

    def _came_late(self, rank: int, item: Item, witnesses: int) -> bool:
        """Whether all peers that show it make the call before others that `rank` made before it."""
        mine = self._made_before(rank, item)
        if not mine:
            return False
        others = [self._made_before(r, item) for r in self._peers(rank)]
        later = [_later(mine, theirs) for theirs in others if mine.keys() & theirs.keys()]
        return len(later) >= witnesses and all(later)

    def _made_before(self, rank: int, item: Item) -> dict[_Role, int]:
        """The last call that a rank made before this one in each of its other groups, as far as its ring holds them."""
        own = self.groups[item.group].role
        number = self._own(rank, item.group)
        at = None if number is None else self.groups[number].rows[rank].created(item.seq)
        found: dict[_Role, int] = {}
        for role, numbers in self.places[rank].items():
            if at is None or role == own or len(numbers) > 1 or self.groups[numbers[0]].mixed:
                continue
            tail = self.groups[numbers[0]].rows[rank].tail
            before = tail.seq[(tail.created > 0) & (tail.created < at)]
            if len(before):
                found[role] = int(before.max())
        return found


def _later(mine: dict[_Role, int], theirs: dict[_Role, int]) -> bool:
    gaps = [mine[role] - theirs[role] for role in mine.keys() & theirs.keys()]
    return min(gaps) >= 0 and max(gaps) > 0
