"""The entries of one dump sorted into collectives and messages, and which of them are done. Part of `entries`."""

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from tracekit.dumps import messages, tail
from tracekit.dumps.fields import state_of
from tracekit.dumps.rank_dump import DONE


@dataclass(slots=True)
class Scan:
    """The entries of one dump, sorted into collectives and messages."""

    collectives: dict[int, list[tail.Row]] = field(default_factory=lambda: defaultdict(list))  # by group
    p2p: list[messages.Row] = field(default_factory=list)
    coalesced: tail.Coalesced = field(default_factory=dict)
    ids: dict[int, int] = field(default_factory=dict)  # local pg_id → group
    disputed: dict[int, list[int]] = field(
        default_factory=lambda: defaultdict(list)
    )  # its groups, where several
    oldest: tuple[int, int, tuple[int, bool, int]] | None = (
        None  # record id, state and call of the first entry
    )
    outstanding_only: bool = False  # entries were left out, and none that is kept is done
    unretired: list[Any] = field(default_factory=list)  # entries that are done, and not retired
    newest: dict[int, int] = field(default_factory=dict)  # place in the ring of a group's last call
    damaged: dict[int, int] = field(
        default_factory=dict
    )  # that of its last damaged entry; -1: of no known group

    def forget_disputed(self, end: int) -> None:
        """Forget which group a disputed `pg_id` is of; its groups may have lost their newest calls (`end`: entries)."""
        for pg_id, groups in self.disputed.items():
            del self.ids[pg_id]
            self.damaged |= dict.fromkeys(groups, end)

    def state_of(self, entry: dict[str, Any]) -> int:
        """Give the state of an entry that is not retired."""
        state = state_of(entry)
        if state == DONE:
            self.unretired.append(entry)
        return state

    def unfinished(self) -> Iterator[Any]:
        """Yield the entries of calls that are not done."""
        for group in self.collectives:
            yield from (entry for _, state, entry in self.settled(group) if state != DONE)
        for seq, group, state, _, entry in self.p2p:
            if self.coalesced.get((group, True, seq), state) != DONE:
                yield entry

    def finished(self) -> bool:
        """Return whether any call is recorded as done."""
        messages = any(row[2] == DONE for row in self.p2p)
        return messages or any(row[1] == DONE for rows in self.collectives.values() for row in rows)

    def settled(self, group: int) -> list[tail.Row]:
        """Give the collectives of a group, the parts of a coalesced call in the state of the whole call.

        Parts never change their state, so that a dump of outstanding calls alone holds all of them, and of the whole
        call, which follows its parts, only what is not done.
        """
        rows, whole = self.collectives[group], self.coalesced
        if not self.outstanding_only:
            return [(s, whole.get((group, False, s), state), e) for s, state, e in rows] if whole else rows
        parts = Counter(seq for seq, _, _ in rows)
        dropped = {s for s, count in parts.items() if count > 1 and (group, False, s) not in whole}
        return [(s, DONE if s in dropped else whole.get((group, False, s), state), e) for s, state, e in rows]
