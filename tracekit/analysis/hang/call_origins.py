"""Where in the program the members of a group made its calls: what they called, and the stack that led there.

Two barriers look alike, and one call of either kind may pair with the other. Their stacks differ. Members
of one program make the calls of a group in one order, so that a member which made a call more or less shows the order
of the others from that call on, moved by as many numbers.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from tracekit.analysis.hang.agreement import Version, version_of
from tracekit.analysis.hang.frontier import Frontier, Group
from tracekit.dumps.calls import Signature
from tracekit.dumps.rank_dump import Stack
from tracekit.thresholds.hang import MAX_CALLS_MOVED, MIN_MOVED_CALLS

Origin = tuple[Version, Stack]
"""Version of a call, and the stack that led to it as frames "file:line function"; () where none is recorded."""
Log = Mapping[int, Origin]
"""Origins of a member's calls, by number."""


class Move(NamedTuple):
    """How a log continues as another does: `made` calls of its own in the place of `left_out` calls of the other."""

    made: int
    left_out: int


class Origins:
    """The origins of the calls of all members of one group."""

    def __init__(self, group: Group) -> None:
        self._known: dict[
            tuple[int, Stack], Origin
        ] = {}  # by identity of the call: equal ones are one object
        logs = {rank: self._log(frontier) for rank, frontier in group.frontiers.items() if not frontier.stale}
        self.logs: dict[int, Log] = _of_one_depth(
            _without_own_roots({rank: log for rank, log in logs.items() if log})
        )

    def _log(self, frontier: Frontier) -> dict[int, Origin]:
        tail = frontier.tail
        stacks = tail.stacks or ((),) * len(tail.calls)
        columns = zip(tail.seq.tolist(), tail.calls, stacks, strict=True)
        return {seq: self._origin(call, stack) for seq, call, stack in columns}

    def _origin(self, call: Signature, stack: Stack) -> Origin:
        key = (id(call), stack)
        if key not in self._known:
            self._known[key] = version_of(call), tuple([frame.rpartition("/")[2] for frame in stack])
        return self._known[key]


def _without_own_roots(logs: dict[int, dict[int, Origin]]) -> dict[int, Log]:
    """Remove, from the outer end of stacks, the frames in which one rank always is and no other ever.

    Launchers start the first rank in another way than the others.
    """
    frames = {rank: {f for _, stack in set(log.values()) for f in stack} for rank, log in logs.items()}
    uses = Counter(f for own in frames.values() for f in own)
    cleaned: dict[int, Log] = {}
    for rank, log in logs.items():
        stacks = {stack for _, stack in log.values()}
        own = {f for f in frames[rank] if uses[f] < len(logs) and all(f in stack for stack in stacks)}
        cleaned[rank] = _stripped(log, own) if own and len(stacks) > 1 else log
    return cleaned


def _of_one_depth(logs: dict[int, Log]) -> dict[int, Log]:
    """Cut all stacks to the depth of the stacks that end where a peer's of the same number goes on.

    A record of a process that died holds fewer frames than a dump that it wrote.
    """
    by_seq: dict[int, set[Stack]] = {}
    for log in logs.values():
        for seq, (_, stack) in log.items():
            by_seq.setdefault(seq, set()).add(stack)
    depth = min(
        (
            len(short)
            for stacks in by_seq.values()
            if len(stacks) > 1
            for short in stacks
            for other in stacks
            if short and len(short) < len(other) and other[: len(short)] == short
        ),
        default=None,
    )
    if depth is None:
        return logs
    return {
        rank: {seq: (version, stack[:depth]) for seq, (version, stack) in log.items()}
        for rank, log in logs.items()
    }


def _stripped(log: Log, own: set[str]) -> Log:
    """Remove frames of a rank's own from the outer ends of its stacks."""
    found: dict[int, Origin] = {}
    for seq, (version, stack) in log.items():
        kept = len(stack)
        while kept and stack[kept - 1] in own:
            kept -= 1
        found[seq] = version, stack[:kept]
    return found


def usual_of(logs: Iterable[Log]) -> Log:
    """Give the origin of each number on most of these logs."""
    votes: dict[int, Counter[Origin]] = {}
    for log in logs:
        for seq, origin in log.items():
            votes.setdefault(seq, Counter())[origin] += 1
    return {
        seq: max(counts, key=lambda origin: (counts[origin], repr(origin))) for seq, counts in votes.items()
    }


def moved(log: Log, usual: Log, seq: int) -> Move | None:
    """Return how a log that differs from the usual one at `seq` continues like that one; None if it does not.

    The result is the fewest calls made and left out that explain all calls from there on. One call in place of another
    moves nothing. A few calls made or left out show in one call that continues equally, if stacks are recorded; without
    stacks, or if a rank made some and left out others, several different calls must show it.
    """
    if _pairs(log, usual, seq, Move(1, 1)):
        return None
    ways = [Move(a, b) for a in range(MAX_CALLS_MOVED + 1) for b in range(MAX_CALLS_MOVED + 1) if a != b]
    stacked = bool(log[seq][1] and usual[seq][1])
    for way in sorted(ways, key=lambda way: (sum(way), way)):
        alike = _pairs(log, usual, seq, way)
        if alike and stacked and not (way.made and way.left_out):
            return way
        if len(alike) >= MIN_MOVED_CALLS and len(set(alike)) > 1:
            return way
    return None


def _pairs(log: Log, usual: Log, seq: int, way: Move) -> list[Origin]:
    """Give the calls of both logs after a move, where all that both hold are alike; none where any is not."""
    found: list[Origin] = []
    for step in range(max(log) - seq - way.made + 1):
        mine, theirs = log.get(seq + way.made + step), usual.get(seq + way.left_out + step)
        if mine is not None and theirs is not None:
            if mine != theirs:
                return []
            found.append(mine)
    return found
