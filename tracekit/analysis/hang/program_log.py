"""The program of a rank as its ring shows it, cut at the calls of one group, so that members can be compared.

Members of a group count its calls alike: between its calls n and n + 1 ranks of one program make the same calls. No
clocks of two hosts are compared, and the counters of other groups do not matter.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from tracekit.analysis.hang.frontier import Frontier
from tracekit.analysis.hang.scene import Scene
from tracekit.dumps.rank_dump import RankDump
from tracekit.thresholds.dumps import TAIL_CALLS


class Step(NamedTuple):
    """One call of a rank's program, as its ring shows it."""

    created: int
    group: int  # number of the group; of a message -1
    seq: int
    what: str  # description of the group, and operation; of a message without its places

    @property
    def is_message(self) -> bool:
        """Whether it is a send or receive."""
        return self.group < 0


@dataclass(frozen=True, slots=True)
class Stretch:
    """The calls of a rank between two calls of one group, or after the last."""

    steps: tuple[Step, ...]
    whole: bool  # the group's next call follows
    names: tuple[str, ...] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "names", tuple([step.what for step in self.steps]))

    def fits(self, other: "Stretch") -> bool:
        """Whether both may come from one program, as far as each shows it."""
        short, long = sorted((self, other), key=lambda stretch: len(stretch.names))
        if short.whole and len(short.names) < len(long.names):
            return False
        return short.names == long.names[: len(short.names)]

    def splits(self, other: "Stretch") -> int:
        """Give the place of the first call in which two stretches differ."""
        same = zip(self.names, other.names, strict=False)
        return next((at for at, (a, b) in enumerate(same) if a != b), min(len(self.names), len(other.names)))


def program_of(scene: Scene, rank: int) -> list[Step]:
    """Give the calls of a rank in the order of issue, as far back as its dump holds all; none where it is damaged."""
    dump = scene.dumps[rank]
    if dump.truncated or dump.damaged_end or dump.malformed:
        return []
    steps, since = _messages(dump)
    since = max(since, dump.whole_since)
    for number in scene.memberships.get(rank, ()):
        frontier = scene.groups[number].frontiers.get(rank)
        if frontier is None:
            continue
        desc = scene.groups[number].desc
        columns = zip(
            frontier.tail.created.tolist(), frontier.tail.seq.tolist(), frontier.tail.calls, strict=True
        )
        steps += [Step(at, number, seq, f"{desc} {call.op}") for at, seq, call in columns]
        since = max(since, _since(frontier))
    if any(step.created <= 0 for step in steps):
        return []
    steps.sort(key=lambda step: step.created)
    return [step for step in steps if step.created >= since]


def _messages(dump: RankDump) -> tuple[list[Step], int]:
    """Give the kept sends and receives, and the time from which on all are kept."""
    log = dump.messages
    columns = zip(log.group.tolist(), log.seq.tolist(), log.created.tolist(), log.names, strict=True)
    steps = [
        Step(at, -1, seq, f"{dump.groups[group].desc} {name.partition(':')[2].partition(' ')[0]}")
        for group, seq, at, name in columns
    ]
    return steps, steps[0].created if len(steps) >= TAIL_CALLS else 0


def _since(frontier: Frontier) -> int:
    """Give the time from which on all calls of a group are kept: a long ring has more than its tail."""
    tail = frontier.tail
    done = int((tail.seq <= frontier.completed).sum())
    return int(tail.created[0]) if done >= TAIL_CALLS else 0


def stretches(steps: list[Step], group: int) -> Mapping[int, Stretch]:
    """Give the calls of a program between the calls of a group, by the number of the call before them."""
    places = [at for at, step in enumerate(steps) if step.group == group]
    found = {
        steps[one].seq: Stretch(tuple(steps[one + 1 : other]), whole=True)
        for one, other in pairwise(places)
        if steps[other].seq == steps[one].seq + 1
    }
    if places:
        found[steps[places[-1]].seq] = Stretch(tuple(steps[places[-1] + 1 :]), whole=False)
    return found
