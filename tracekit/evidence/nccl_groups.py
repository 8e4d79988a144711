"""The calls that NCCL's lines show, as groups of ranks with frontiers: the same form as calls in dumps.

A line is printed at launch, so that it shows no end. Where every member's calls are known, all calls before the first
in which members differ, or that some member has not made, are taken as ended. Where the watchdog's lines name the group
of a communicator, its numbers and ends count. Used by `as_dumps`.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from tracekit.dumps.calls import Signature, numel
from tracekit.dumps.rank_dump import DONE, SCHEDULED, STARTED, GroupTail
from tracekit.evidence.group_members import Marks, Members, keyed_communicators, members_of, processes_by_rank
from tracekit.evidence.log_file import GroupKey, LogFile, Mark
from tracekit.evidence.log_lines import Work
from tracekit.evidence.nccl_calls import Communicator
from tracekit.mesh import Mesh
from tracekit.thresholds.evidence import FEWEST_IN_ORDER


@dataclass
class CallGroup:
    """A communicator with the calls of its members. base: by rank the number of the last call before those kept."""

    members: Members
    own: dict[int, Communicator] = field(default_factory=dict)
    shift: int = 0
    """What is added to a number of a call for that of the watchdog's lines."""
    lost: dict[int, int] = field(default_factory=dict)
    """Lines of a rank that are lost, as the watchdog's numbers show."""
    marks: dict[int, Mark] = field(default_factory=dict)
    """What the watchdog's lines show of the group, by rank."""

    @property
    def numbered(self) -> bool:
        """Return whether calls of the members have comparable numbers.

        They do where all are known from the first one on, and where opCount counts nothing but collectives.
        """
        return self.whole or not any(one.grouped or one.sent for one in self.own.values())

    @property
    def whole(self) -> bool:
        """Return whether the log holds the calls of all members from the first one on."""
        return all(one.whole for one in self.own.values())

    @property
    def verified(self) -> bool:
        """Return whether a line that is lost would show: opCount rises with the calls."""
        return all(one.rose or one.count < FEWEST_IN_ORDER for one in self.own.values())

    def last(self, rank: int) -> int:
        """Return the number of the last call of a rank, from 1; 0 for none."""
        one = self.own[rank]
        return one.count + (0 if self.whole else max(one.first, 0)) + self.lost.get(rank, 0)

    def call(self, rank: int, back: int) -> Signature | None:
        """Return the call that a rank made so many calls before its last one; None where it is not kept."""
        calls = self.own[rank].calls
        return calls[-1 - back][1] if 0 <= back < len(calls) else None

    def agreed(self) -> int:
        """Return the number of the last call that all members made alike; -1 where a member's calls are unknown."""
        if set(self.own) != set(self.members.ranks) or not (self.members.whole and self.numbered):
            return -1
        last = {rank: self.last(rank) for rank in self.own}
        least = min(last.values())
        begin = max(least - min(len(one.calls) for one in self.own.values()), 0) + 1
        for number in range(begin, least + 1):
            if len({self.call(rank, last[rank] - number) for rank in self.own} - {None}) > 1:
                return number - 1
        return least


def call_groups(
    logs: Sequence[LogFile],
    marks: Marks,
    members: Mapping[tuple[int, GroupKey], Members],
    world: int | None,
    mesh: Mesh | None,
) -> list[CallGroup]:
    """Return the communicators with known members, joined with the groups of the watchdog's lines.

    marks, members: of the watchdog's lines. Marks that a communicator takes are removed from `marks`. None are returned
    where a lost line would not show.
    """
    found: dict[tuple[tuple[int, ...], str], CallGroup] = {}
    keyed = keyed_communicators(processes_by_rank(logs, world), world)
    own = {rank: {key: mark for key, (mark, _) in of_rank.items()} for rank, of_rank in keyed.items()}
    for (rank, key), group in members_of(own, {}, world, mesh).items():
        made = found.setdefault((group.ranks, group.name), CallGroup(group))
        made.own[rank] = keyed[rank][key][1]
    groups = list(found.values())
    if not all(group.verified for group in groups):
        return []  # a part of the calls would show a rank in a group and not its peers
    _describe(groups, world)
    _join(groups, marks, members)
    return groups


def _describe(groups: Iterable[CallGroup], world: int | None) -> None:
    """Describe groups, so that those of one place in different replicas share it: by the distance of their members.

    Several of the same members are numbered in their order.
    """
    seen: Counter[tuple[int, ...]] = Counter()
    for group in groups:
        ranks = group.members.ranks
        steps = {b - a for a, b in pairwise(ranks)}
        step = f"every {steps.pop()}" if len(steps) == 1 else f"from {ranks[0]}"
        order = seen[ranks]
        seen[ranks] += 1
        desc = "default_pg" if len(ranks) == world else f"{len(ranks)} ranks, {step}, {order}"
        name = f"communicator {group.members.name}"
        group.members = Members(name, desc, ranks, group.members.whole)


def _join(groups: Sequence[CallGroup], marks: Marks, members: Mapping[tuple[int, GroupKey], Members]) -> None:
    """Join communicators with the groups of the watchdog's lines, each with the only one that it fits.

    Groups of one description lie along the same axes, so that one that is joined shows where its siblings lie.
    """
    parts: dict[tuple[GroupKey, tuple[int, ...]], dict[int, Mark]] = defaultdict(dict)
    for rank, of_rank in marks.items():
        for key, mark in of_rank.items():
            known = members.get((rank, key))
            parts[key, known.ranks if known is not None and known.whole else ()][rank] = mark
    left = {part: own for part, own in parts.items() if part[0] != ("", "") and not _sends(own)}
    free, shapes = list(groups), dict[str, str]()
    while True:
        joined = _joined(left, free, shapes)
        if not joined:
            _describe_alike(groups, shapes)
            return
        for (key, ranks), group in joined.items():
            free.remove(group)
            shapes.setdefault(key[1], group.members.desc)
            _take(group, key, left.pop((key, ranks)), marks)


def _describe_alike(groups: Iterable[CallGroup], shapes: Mapping[str, str]) -> None:
    """Describe communicators of one shape as the watchdog's lines describe the joined ones: all of them, or none.

    Rules compare groups of one description.
    """
    known = {shape: desc for desc, shape in shapes.items() if desc and Counter(shapes.values())[shape] == 1}
    for group in groups:
        members = group.members
        desc = known.get(members.desc, members.desc)
        group.members = Members(members.name, desc, members.ranks, members.whole)


def _joined(
    left: Mapping[tuple[GroupKey, tuple[int, ...]], Mapping[int, Mark]],
    free: Sequence[CallGroup],
    shapes: Mapping[str, str],
) -> dict[tuple[GroupKey, tuple[int, ...]], CallGroup]:
    """Return the groups that fit one communicator alone, and no other group fits it so; without any, none."""
    found = {}
    for (key, ranks), own in left.items():
        shape = shapes.get(key[1]) if key[1] else None
        fitting = [group for group in free if _fits(group, ranks, own)]
        if shape is not None:
            fitting = [group for group in fitting if group.members.desc == shape]
        if len(fitting) == 1:
            found[key, ranks] = fitting[0]
    uses = Counter(id(group) for group in found.values())
    return {part: group for part, group in found.items() if uses[id(group)] == 1}


def _sends(own: Mapping[int, Mark]) -> bool:
    return any(mark.messages for mark in own.values())


def _fits(group: CallGroup, ranks: tuple[int, ...], own: Mapping[int, Mark]) -> bool:
    """Return whether a group of the watchdog's lines may be this communicator: by members, places, and calls."""
    held = group.members.ranks
    if (ranks and ranks != held) or not group.members.whole:
        return False
    for rank, mark in own.items():
        if (
            rank not in held
            or mark.place not in {None, held.index(rank)}
            or mark.size not in {None, len(held)}
        ):
            return False
        call = None if mark.work is None or rank not in group.own else _open_call(group, rank, mark)
        if call is not None and mark.work is not None and not _same(mark.work, call):
            return False
    return True


def _open_call(group: CallGroup, rank: int, mark: Mark) -> Signature | None:
    """Return the call of NCCL's lines that timed out by the watchdog's; None where its place is unknown."""
    if mark.work is None or mark.enqueued is None:
        return None
    return group.call(rank, max(mark.enqueued, mark.work.seq) - mark.work.seq)


def _same(work: Work, call: Signature) -> bool:
    """Return whether a call in a watchdog's line may be the one in NCCL's line."""
    short, full = (name.lower().replace("_", "") for name in (work.call.op, call.op))
    counts = (numel(work.call.input_sizes), numel(call.input_sizes))
    alike = short.startswith(full.removesuffix("base")) or short in {"barrier", "coalesced"}
    return alike and (
        None in counts or counts[0] == counts[1] or short in {"alltoall", "coalesced", "barrier"}
    )


def _take(group: CallGroup, key: GroupKey, own: dict[int, Mark], marks: Marks) -> None:
    """Give a communicator the name, numbers and ends of a group of the watchdog's lines."""
    shifts = Counter(
        mark.enqueued - group.last(rank)
        for rank, mark in own.items()
        if mark.enqueued is not None and rank in group.own
    )
    if not shifts or not group.numbered:
        return
    group.shift = shifts.most_common(1)[0][0]
    for rank, mark in own.items():
        if mark.enqueued is not None and rank in group.own:
            group.lost[rank] = max(mark.enqueued - group.last(rank) - group.shift, 0)
    group.members = Members(key[0], group.members.desc, group.members.ranks, whole=True)
    group.marks = {rank: mark for rank, mark in own.items() if rank in group.own}
    for rank in group.marks:
        del marks[rank][key]


def tails_of_calls(
    groups: Iterable[CallGroup], clocked: Collection[int], *, timed: bool
) -> dict[int, list[tuple[GroupTail, Communicator]]]:
    """Return the calls of each rank by communicator, and the communicator; of one without comparable numbers nothing.

    clocked: ranks with other lines that show times of calls, which the places of NCCL's lines in the log cannot be
    compared with. timed: whether the watchdog's lines show what devices began.
    """
    found: dict[int, list[tuple[GroupTail, Communicator]]] = defaultdict(list)
    for group in groups:
        agreed = group.agreed() if group.numbered else -1
        for rank, one in group.own.items():
            tail = _tail(group, rank, agreed)
            mark = group.marks.get(rank)
            if timed and mark is not None and mark.started is not None:
                tail.state[tail.seq > max(mark.started, tail.status_completed)] = SCHEDULED
            if rank in clocked:
                work = None if mark is None else mark.work
                tail.created = (
                    np.where(tail.seq == work.seq, work.created_ns, 0) if work else 0 * tail.created
                )
            found[rank].append((tail, one))
    return found


def _tail(group: CallGroup, rank: int, agreed: int) -> GroupTail:
    """Return the calls of one rank in one communicator."""
    members, one, mark = group.members, group.own[rank], group.marks.get(rank)
    tail = GroupTail(members.name, members.desc, members.ranks, has_p2p=bool(one.sent))
    tail.partial = not members.whole
    if not group.numbered:
        return tail
    last = group.last(rank) + group.shift
    ended = -1 if agreed < 0 else min(agreed, group.last(rank)) + group.shift
    if mark is not None and mark.completed is not None:
        ended = min(mark.completed, last)
    if mark is not None and mark.work is not None:
        ended = mark.work.seq - 1 if mark.completed is None else min(ended, mark.work.seq - 1)
    tail.status_enqueued = tail.entry_enqueued = max(last, 0)
    tail.status_completed = tail.entry_completed = ended
    tail.entry_seen_done = ended >= 0
    kept = [
        (number, *call)
        for number, call in zip(range(last - len(one.calls) + 1, last + 1), one.calls, strict=True)
    ]
    kept = [row for row in kept if row[0] > 0]
    tail.seq = np.array([row[0] for row in kept], np.int64)
    tail.created = np.array([row[1] + 1 for row in kept], np.int64)
    tail.state = np.where(tail.seq <= ended, DONE, STARTED).astype(np.int8)
    tail.calls = tuple([row[2] for row in kept])
    return tail
