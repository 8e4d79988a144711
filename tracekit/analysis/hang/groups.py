"""Groups across ranks, and how far each member is in each: what the wait-for graph is built on.

Groups are identified by their members (names repeat on other ranks with other members); two groups of the
same members are told apart by name. First step of `hang`: DumpSet → groups with frontiers.
"""

import json
from bisect import bisect_left
from collections import defaultdict
from dataclasses import dataclass, field
from functools import lru_cache
from math import prod

import numpy as np

from tracekit.dumps.dump import DONE, GroupTail, RankDump, Signature
from tracekit.dumps.load import DumpSet

_SYNCHRONISING = ("allreduce", "allgather", "reducescatter", "alltoall", "barrier")


@dataclass(slots=True)
class Row:
    """One member's frontier in one group: the last call issued, the last done; -1 unknown."""

    rank: int
    enqueued: int
    completed: int
    tail: GroupTail
    reset: bool = False  # its last call reads as done, but may have ended by a member's death
    stale: bool = False  # its dump was written before its peers' last calls: later ones are unknown

    @property
    def proven(self) -> int:
        """The last call known to be done: `completed` is but an upper bound where the ring lost that call."""
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
        """Give the call with this sequence number, if it is still in the ring."""
        at = int(np.searchsorted(self.tail.seq, seq))
        return self.tail.calls[at] if at < len(self.tail.seq) and self.tail.seq[at] == seq else None

    def created(self, seq: int) -> int | None:
        """When that call was issued (ns, this host's clock)."""
        at = int(np.searchsorted(self.tail.seq, seq))
        found = at < len(self.tail.seq) and self.tail.seq[at] == seq and self.tail.created[at] > 0
        return int(self.tail.created[at]) if found else None

    def state(self, seq: int) -> int | None:
        """SCHEDULED, STARTED or DONE of that call."""
        at = int(np.searchsorted(self.tail.seq, seq))
        return int(self.tail.state[at]) if at < len(self.tail.seq) and self.tail.seq[at] == seq else None


@dataclass(slots=True)
class Group:
    """A process group: its members and the frontier of every member that left a dump."""

    ranks: tuple[int, ...]
    name: str
    desc: str
    rows: dict[int, Row] = field(default_factory=dict)
    mixed: bool = False  # p2p on it: pg_status counts both and is no frontier of its collectives
    guessed: bool = False  # members unknown: taken as the ranks that use the name

    @property
    def role(self) -> tuple[str, int]:
        """What groups in the same place of other replicas share."""
        return self.desc, len(self.ranks)

    def call(self, seq: int) -> Signature | None:
        """Give the call as any member recorded it."""
        return next((c for r in self.rows.values() if (c := r.call(seq)) is not None), None)


def build(dumps: DumpSet) -> list[Group]:
    """All groups of two and more members, ordered by members."""
    keyed: dict[tuple[tuple[int, ...], str, str], list[tuple[RankDump, GroupTail]]] = defaultdict(list)
    nameless: dict[tuple[str, str], list[tuple[RankDump, GroupTail]]] = defaultdict(list)
    for dump in dumps.dumps.values():
        for tail in dump.groups:
            if not tail.ranks:
                nameless[tail.name, tail.desc].append((dump, tail))
            elif len(tail.ranks) > 1 and _member(tail.ranks, dump.rank):
                keyed[tail.ranks, tail.name, tail.desc].append((dump, tail))
    groups = [_group(ranks, uses, dumps) for (ranks, _, _), uses in _merged(keyed).items()]
    for uses in nameless.values():
        ranks = tuple(sorted({d.rank for d, _ in uses}))
        if uses[0][1].desc == "default_pg":
            ranks = dumps.world
        if len(ranks) > 1:
            groups.append(_group(ranks, uses, dumps, guessed=True))
    return sorted(groups, key=lambda g: (g.ranks[0], len(g.ranks), g.ranks[-1], g.name))


def _member(ranks: tuple[int, ...], rank: int) -> bool:
    at = bisect_left(ranks, rank)
    return at < len(ranks) and ranks[at] == rank


def _merged(
    keyed: dict[tuple[tuple[int, ...], str, str], list[tuple[RankDump, GroupTail]]],
) -> dict[tuple[tuple[int, ...], str, str], list[tuple[RankDump, GroupTail]]]:
    """Join parts of one group whose names differ by rank: same members and description, once a rank."""
    by_members: dict[tuple[tuple[int, ...], str], list[tuple[tuple[int, ...], str, str]]] = defaultdict(list)
    for key in keyed:
        by_members[key[0], key[2]].append(key)
    for keys in by_members.values():
        if len(keys) < 2:
            continue
        ranks = [d.rank for k in keys for d, _ in keyed[k]]
        if len(set(ranks)) == len(ranks):
            first = min(keys)
            for key in keys:
                if key != first:
                    keyed[first].extend(keyed.pop(key))
    return keyed


def _group(
    ranks: tuple[int, ...], uses: list[tuple[RankDump, GroupTail]], dumps: DumpSet, *, guessed: bool = False
) -> Group:
    group = Group(ranks, uses[0][1].name, uses[0][1].desc, guessed=guessed)
    group.mixed = any(t.has_p2p for _, t in uses) or "PIPELINE" in group.desc.upper()
    for dump, tail in uses:
        row = group.rows[dump.rank] = Row(dump.rank, *_frontier(dump, tail, mixed=group.mixed), tail)
        row.stale = dump.truncated and (group.mixed or tail.status_enqueued < 0)
    if any(d.backend == "gloo" for d, _ in uses):
        _undo_timeouts(group)
        if any(r not in dumps.dumps for r in ranks):
            _undo_resets(group, uses)
        for row in group.rows.values():
            _pass_over(group, row)
    return group


def _frontier(dump: RankDump, tail: GroupTail, *, mixed: bool) -> tuple[int, int]:
    """(enqueued, completed), -1 where the ring and the status do not tell."""
    seen = tail.entry_enqueued >= 0
    if mixed or tail.status_enqueued < 0:
        if seen:
            return tail.entry_enqueued, tail.entry_completed
        whole = dump.entries > 0 and not dump.wrapped and not dump.malformed and not dump.truncated
        told = dump.has_status and not dump.unmapped_status and not mixed
        return (0, 0) if (whole or told) and not mixed else (-1, -1)
    enqueued = max(tail.status_enqueued, tail.entry_enqueued)
    if not seen:
        return enqueued, tail.status_completed
    if dump.truncated:
        return enqueued, tail.status_completed
    if dump.backend == "gloo":  # calls run on threads and may finish out of order: the oldest open one counts
        return enqueued, tail.entry_completed
    return enqueued, max(tail.status_completed, tail.entry_completed if tail.entry_seen_done else 0)


def _undo_timeouts(group: Group) -> None:
    """Undo completions by timeout: Gloo marks a call as done that another member never issued."""
    known = [r.enqueued for r in group.rows.values() if r.enqueued >= 0]
    least = min(known, default=-1)
    for row in group.rows.values():
        if least >= 0 and row.completed == least + 1 and synchronising(row.call(least + 1)):
            row.completed = least


def _undo_resets(group: Group, uses: list[tuple[RankDump, GroupTail]]) -> None:
    """Undo completions by error: on Gloo a call also reads as done when a member died in it.

    So the very last call of a rank, in a group one of whose members left no dump, is no completion unless another
    member went on after it.
    """
    furthest = max((r.enqueued for r in group.rows.values()), default=-1)
    for dump, tail in uses:
        row = group.rows[dump.rank]
        last = 0 <= dump.last_group < len(dump.groups) and dump.groups[dump.last_group] is tail
        last = last and dump.last_created <= (row.created(furthest) or 0)  # no message after it
        if last and row.completed == row.enqueued == furthest and synchronising(row.call(furthest)):
            row.completed -= 1
            row.reset = True


def _pass_over(group: Group, row: Row) -> None:
    """Take calls that other members have done as done: Gloo has no device that could lag, but ends go unnoted.

    A call that members do not agree on may end on one side only.
    """
    others = max((r.completed for r in group.rows.values() if r is not row and not r.stale), default=-1)
    open_ = row.tail.seq[row.tail.state != DONE]
    while row.waiting and row.front <= others and synchronising(row.call(row.front)):
        calls = {agreement(c) for r in group.rows.values() if (c := r.call(row.front)) is not None}
        if len(calls) > 1:
            break
        later = open_[open_ > row.front]
        row.completed = int(later[0]) - 1 if len(later) else row.enqueued


def synchronising(call: Signature | None) -> bool:
    """Tell whether nobody can finish this call before everybody issued it; unknown calls do not count."""
    return call is not None and _plain(call[0]).startswith(_SYNCHRONISING)


def agreement(call: Signature) -> tuple[object, ...]:
    """List what all members of a group must agree on in a call; what may rightly differ is left out."""
    name = _plain(call[0])
    dtypes = call[3] or call[4]
    if name.startswith("alltoall"):
        return (name, dtypes)
    if name.startswith(("allreduce", "broadcast", "reduce")) and not name.startswith("reducescatter"):
        return (name, numel(call[1]), dtypes)
    if name.startswith(("allgatherbase", "allgatherinto", "reducescatterbase", "reducescattertensor")):
        return (name, numel(call[1]), numel(call[2]), dtypes)
    if name.startswith("allgather"):
        return (name, numel(call[2]), dtypes)
    if name.startswith(("gather", "reducescatter")):
        return (name, numel(call[1]), dtypes)
    if name.startswith("scatter"):
        return (name, numel(call[2]), dtypes)
    return (name,)


def _plain(name: str) -> str:
    return name.lower().replace("_", "")


@lru_cache(4096)
def numel(text: str) -> int | None:
    """Elements of the tensors in "[[8192, 1, 5120], …]"; None where that cannot be read."""
    shapes = sizes(text)
    return None if shapes is None else sum(prod(s) for s in shapes)


def sizes(text: str) -> tuple[tuple[int, ...], ...] | None:
    """Give the shapes in "[[8192, 1, 5120], …]", of the parts of a coalesced call too; None where they are not."""
    try:
        value = [shape for part in text.split("; ") for shape in json.loads(part)]
        shapes = tuple(tuple(int(n) for n in shape) for shape in value)
    except (ValueError, TypeError, RecursionError, OverflowError):
        return None
    return shapes
