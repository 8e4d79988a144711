"""How far one member is in one group, and a process group as the members' dumps show it."""

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from tracekit.dumps.calls import Signature
from tracekit.dumps.rank_dump import GroupTail, Stack

Role = tuple[str, int]
"""Description and number of members: groups with the same role have the same place in different replicas."""


class Issue(NamedTuple):
    """Whether a rank issued a call, and when."""

    issued: bool
    created: int | None
    """ns of the rank's own clock; None where the ring has lost the call."""


@dataclass(slots=True)
class Frontier:
    """One member's frontier in one group: the last call issued and the last call done; -1 where unknown."""

    rank: int
    enqueued: int
    completed: int
    tail: GroupTail
    reset: bool = False  # its last call reads as done, but may have ended by a member's death
    stale: bool = False  # its dump was written before its peers' last calls: later ones are unknown

    @property
    def proven(self) -> int:
        """The last call known to be done; `completed` is only an upper bound where the ring has lost that call."""
        known = self.tail.entry_seen_done or self.tail.entry_enqueued < 0 or self.completed >= self.enqueued
        return (
            self.completed
            if known or self.tail.status_completed >= self.completed
            else self.tail.status_completed
        )

    @property
    def waiting(self) -> bool:
        """Whether some call was issued and is not done."""
        return not self.stale and 0 <= self.completed < self.enqueued

    @property
    def front(self) -> int:
        """The first call that is not done."""
        return self.completed + 1

    def call(self, seq: int) -> Signature | None:
        """Give the call with this sequence number; None where the ring does not hold it."""
        at = self._place(seq)
        return None if at is None else self.tail.calls[at]

    def created(self, seq: int) -> int | None:
        """Return when that call was issued (ns, this host's clock); None if the ring does not hold it."""
        at = self._place(seq)
        return int(self.tail.created[at]) if at is not None and self.tail.created[at] > 0 else None

    def state(self, seq: int) -> int | None:
        """Give SCHEDULED, STARTED or DONE of that call; None where the ring does not hold it."""
        at = self._place(seq)
        return None if at is None else int(self.tail.state[at])

    def stack(self, seq: int) -> Stack:
        """Give the stack of that call; an empty one where none is recorded."""
        at = self._place(seq)
        return () if at is None or not self.tail.stacks else self.tail.stacks[at]

    def issue(self, seq: int) -> Issue | None:
        """Return whether and when the rank issued this call; None if its dump does not show it."""
        if self.enqueued < 0 or self.stale:
            return None
        return Issue(self.enqueued >= seq, self.created(seq))

    def in_step(self, seq: int) -> bool:
        """Return whether a number of a replica's group can mean the same call here: its ring reaches that far.

        Replicas in which the data decides how often a group is called count differently after a while.
        """
        numbers = self.tail.seq
        if not len(numbers):
            return True
        return int(numbers[0]) - len(numbers) <= seq <= self.enqueued + len(numbers)

    def _place(self, seq: int) -> int | None:
        at = int(np.searchsorted(self.tail.seq, seq))
        return at if at < len(self.tail.seq) and self.tail.seq[at] == seq else None


@dataclass(slots=True)
class Group:
    """A process group: its members, and the frontier of every member that left a dump."""

    ranks: tuple[int, ...]
    name: str
    desc: str
    frontiers: dict[int, Frontier] = field(default_factory=dict)  # by rank
    mixed: bool = False  # p2p on it: pg_status counts both and is no frontier of its collectives
    guessed: bool = False  # members unknown: taken as the ranks that use the name

    @property
    def role(self) -> Role:
        """The role that this group shares with those in the same place of other replicas."""
        return self.desc, len(self.ranks)

    def call(self, seq: int) -> Signature | None:
        """Give the call as any member recorded it; None where no ring holds it."""
        return next((c for f in self.frontiers.values() if (c := f.call(seq)) is not None), None)
