"""Ranks that left the program of their peers: one call more, less or another between two calls that all make.

A micro-batch less, data that end early, a branch that only some take: the rank runs on, until every rank waits. The
members of a group show it where they made the same calls between the group's calls before.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from tracekit.analysis.hang.frontier import Frontier
from tracekit.analysis.hang.rules.rule import Accusation, Found
from tracekit.analysis.hang.scene import Scene
from tracekit.analysis.hang.wait_chains import all_explained, unseen_waits
from tracekit.dumps.calls import Signature
from tracekit.dumps.rank_dump import RankDump
from tracekit.findings.hang import CulpritKind
from tracekit.thresholds.dumps import TAIL_CALLS
from tracekit.thresholds.hang import MIN_ALIKE, MIN_WITNESSES


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


class _Parting(NamedTuple):
    """Where a rank left the program: the call before, what it made, what its peers make; None: nothing more."""

    at: int
    group: int
    seq: int
    made: Step | None
    usual: Step | None


def left_program(scene: Scene, _known: Found) -> Found:
    """Give the ranks that made other calls than their peers between two calls of a group.

    Looks for: groups with members that several times made the same calls between the group's calls, and then one or few
    members made others.
    Excuses: members of groups that do not run one program, as shown before; a rank that differed in the same way at
    another time, because that is a role of its own, such as sending weights to an engine; ranks that fewer than two
    peers contradict,
    or fewer than twice their own number, where members without a dump count as theirs, because stages of a pipeline run
    programs of their own; and all ranks if some waiting does not start from them.
    Returns: `mismatched_call` for another operation of the same group, else `host_stalled` at the first call that the
    rank left out, with a note.
    """
    programs = {rank: program_of(scene, rank) for rank in scene.dumps}
    found: dict[int, _Parting] = {}
    for number, group in enumerate(scene.groups):
        if group.mixed or group.guessed or len(group.ranks) <= MIN_WITNESSES:
            continue
        shown = {r: stretches(steps, number) for r in group.frontiers if (steps := programs[r])}
        absent = len(set(group.ranks) - scene.dumps.keys())
        for rank, parting in _partings(number, shown, absent).items():
            if rank not in found or parting.at < found[rank].at:
                found[rank] = parting
    if not found or not all_explained(scene, found.keys() | unseen_waits(scene), found.keys()):
        return Found()
    culprits = {rank: _accuse(scene, rank, programs[rank], found[rank]) for rank in sorted(found)}
    notes = tuple(_note(rank, found[rank]) for rank in sorted(found))
    return Found(culprits, notes=notes)


def _partings(
    number: int, shown: Mapping[int, Mapping[int, Stretch]], absent: int = 0
) -> dict[int, _Parting]:
    """Find the first place in which members of a group part; nothing where they did not go together before.

    The `absent` members may have made the odd calls as well.
    """
    alike = 0
    made = [_Made.by(seq, shown) for seq in sorted({seq for by_seq in shown.values() for seq in by_seq})]
    for at, here in enumerate(made):
        elsewhere = made[:at] + made[at + 1 :]
        odd = [rank for rank in here.odd if not any(other.repeats(here, rank) for other in elsewhere)]
        if not odd:
            alike += sum(stretch.whole for stretch in here.known.values()) > MIN_WITNESSES
            continue
        others = len(here.known) - len(odd)
        if alike < MIN_ALIKE or others < MIN_WITNESSES or others < 2 * (len(odd) + absent):
            return {}
        return {rank: _parting(number, here.seq, here.known[rank], here.usual) for rank in odd}
    return {}


class _Made(NamedTuple):
    """What members made behind one call of a group, what most of them made, and the ranks that made something else."""

    seq: int
    known: Mapping[int, Stretch]
    usual: Stretch
    odd: list[int]

    @classmethod
    def by(cls, seq: int, shown: Mapping[int, Mapping[int, Stretch]]) -> "_Made":
        """Return what the members of `shown` made behind the call `seq`."""
        known = {rank: by_seq[seq] for rank, by_seq in shown.items() if seq in by_seq}
        usual = _usual(list(known.values()))
        return cls(seq, known, usual, [rank for rank, one in known.items() if not one.fits(usual)])

    def repeats(self, other: "_Made", rank: int) -> bool:
        """Whether a rank differs here from the usual calls as it does at the `other` call."""
        alike = rank in self.odd and self.known[rank].fits(other.known[rank])
        return alike and self.usual.fits(other.usual)


def _usual(known: list[Stretch]) -> Stretch:
    """Give the stretch that most of these fit, the longest of them."""
    kinds = {(stretch.names, stretch.whole): stretch for stretch in known}
    fitting = {key: sum(other.fits(one) for other in known) for key, one in kinds.items()}
    best = max(kinds, key=lambda key: (fitting[key], key[1], len(key[0]), key[0]))
    return kinds[best]


def _parting(number: int, seq: int, mine: Stretch, usual: Stretch) -> _Parting:
    """Give where a rank's stretch leaves the usual one."""
    at = mine.splits(usual)
    made, theirs = (s.steps[at] if at < len(s.steps) else None for s in (mine, usual))
    time = made.created if made is not None else mine.steps[-1].created if mine.steps else 0
    return _Parting(time, number, seq, made, theirs)


def _accuse(scene: Scene, rank: int, program: list[Step], parting: _Parting) -> Accusation:
    """Accuse a rank at the call that its peers make where it parted."""
    usual, made = parting.usual, parting.made
    if usual is None:
        return Accusation("host_stalled", parting.group, parting.seq + 1)
    if usual.is_message:
        desc, _, verb = usual.what.rpartition(" ")
        number = next((n for n in scene.memberships[rank] if scene.groups[n].desc == desc), parting.group)
        return Accusation("host_stalled", number, usual.seq, call=Signature(verb, "", "", "", ""))
    own = scene.own(rank, usual.group)
    number = parting.group if own is None else own
    before = [s.seq for s in program if s.group == number and s.created < parting.at]
    seq = before[-1] + 1 if before else usual.seq
    same = made is not None and (made.group, made.seq) == (number, seq)
    kind: CulpritKind = "mismatched_call" if same else "host_stalled"
    return Accusation(kind, number, seq)


def _note(rank: int, parting: _Parting) -> str:
    """Say where a rank left the program."""
    made, usual = (step.what if step is not None else "nothing" for step in (parting.made, parting.usual))
    return f"rank {rank} left the program of its peers: where they make {usual}, it made {made}"


# The program of a rank as its ring shows it, cut at the calls of one group, so that members can be compared.
#
# Members of a group count its calls alike: between its calls n and n + 1 ranks of one program make the same
# calls. No clocks of two hosts are compared, and the counters of other groups do not matter.


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
