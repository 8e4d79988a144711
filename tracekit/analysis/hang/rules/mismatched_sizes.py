"""Messages and all-to-alls with sizes that do not fit: which of the ranks is wrong.

The odd end of a message differs from its replicas' calls under the same number, else from earlier messages of this
pair. Sizes of an all-to-all may differ by rank, and a dump holds what a rank passes and takes in all, not what it
sends to each peer. But programs make them in patterns, which one rank breaks and all its peers keep: a fixed size
repeats, and experts send back what they received.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from tracekit.analysis.hang.agreement import Version, version_of
from tracekit.analysis.hang.channels import (
    Channel,
    Channels,
    End,
    differ,
    end_of,
    is_known,
    past_calls,
    usual_calls,
)
from tracekit.analysis.hang.frontier import Frontier, Group
from tracekit.analysis.hang.rules.rule import Accusation, Found, Mismatch
from tracekit.analysis.hang.scene import Scene
from tracekit.dumps.calls import Signature, numel
from tracekit.thresholds.hang import MIN_WITNESSES

Moved = tuple[int | None, int | None]
"""Elements that a rank passes and takes."""


class _Break(NamedTuple):
    """The rank that does not repeat (`back`: reverse) its call `seq`, as all its peers do, and the sizes due then."""

    rank: int
    seq: int
    back: bool
    due: Moved


def unfitting_exchanges(scene: Scene, _known: Found) -> Found:
    """Return the rank with other sizes in an all-to-all than its peers' sizes and the calls before let expect.

    Looks for: a pending all-to-all of three or more members in which all but one pass and take as much as in an
    earlier one, or the reverse, where all such earlier calls give the odd rank the same sizes, other than its own.
    Excuses: all members if several ranks could be the odd one, if every size has been there before, and if a ring or
    dump lacks the call; groups of two, where either end may be the wrong one.
    Returns: `mismatched_call`; the call in dispute; the other members are excused.
    """
    found = Found()
    for call in scene.graph.pending:
        group = scene.groups[call.group]
        odd = None if group.mixed or group.guessed else _odd(group, call.seq)
        if odd is not None:
            accused = Accusation("mismatched_call", call.group, call.seq, how=_how(group, call.seq, odd))
            others = frozenset(group.ranks) - {odd.rank}
            place = frozenset({(call.group, call.seq)})
            found = found.and_then(Found({odd.rank: accused}, excused=others, disputed=place))
    return found


def _how(group: Group, seq: int, odd: _Break) -> str:
    made = group.frontiers[odd.rank].call(seq)
    passed, taken = (None, None) if made is None else _moved(made)
    was = odd.due[::-1] if odd.back else odd.due
    way = "reverse" if odd.back else "repeat"
    return (
        f"passes {passed} and takes {taken} elements in an all-to-all in which its peers' sizes {way} call {odd.seq}, "
        f"where it passed {was[0]} and took {was[1]}"
    )


def _odd(group: Group, seq: int) -> _Break | None:
    """Return the only rank that can be the odd one of this call, with the latest earlier call that shows it."""
    now = {rank: call for rank, f in group.frontiers.items() if (call := f.call(seq)) is not None}
    first = next(iter(now.values()), None)
    if first is None or set(group.ranks) != now.keys() or len(now) - 1 < MIN_WITNESSES:
        return None
    version = version_of(first)
    if not str(version[0]).startswith("alltoall") or any(version_of(c) != version for c in now.values()):
        return None
    breaks: list[_Break] = []
    for before, log in _earlier(group, seq):
        for back in (False, True):
            odd = _unlike(now, log, back=back)
            if not odd:
                return None
            if len(odd) == 1:
                due = _moved(log[odd[0]])
                breaks.append(_Break(odd[0], before, back, due[::-1] if back else due))
    return breaks[0] if len({(b.rank, b.due) for b in breaks}) == 1 else None


def _earlier(group: Group, seq: int) -> Iterator[tuple[int, dict[int, Signature]]]:
    """Yield the group's calls before this number that every ring holds, the latest first."""
    frontiers: list[Frontier] = list(group.frontiers.values())
    for before in reversed([int(s) for s in frontiers[0].tail.seq if s < seq]):
        calls = {f.rank: call for f in frontiers if (call := f.call(before)) is not None}
        if len(calls) < len(frontiers):
            return
        yield before, calls


def _unlike(now: Mapping[int, Signature], log: Mapping[int, Signature], *, back: bool) -> list[int]:
    """Return up to two ranks that do not repeat (`back`: reverse) an earlier call."""
    odd = []
    for rank, call in now.items():
        before = log[rank]
        moved = _moved(before)[::-1] if back else _moved(before)
        if version_of(before) != version_of(call) or moved != _moved(call):
            odd.append(rank)
            if len(odd) == 2:
                break
    return odd


def _moved(call: Signature) -> Moved:
    return numel(call.input_sizes), numel(call.output_sizes)


def mismatched_messages(scene: Scene, _known: Found) -> Found:
    """Return the ranks that send or receive another size or dtype than the other end.

    Looks for: the first pair of different ends on every channel with at least one unfinished end; and a different end
    with a peer without a dump, if its replicas and all its other messages to that peer agree.
    Excuses: both ends of such a pair from being a stalled device or host, since one of them is a victim; and both
    altogether, with a doubt, if the dumps do not show which end is right.
    Returns: `mismatched_call` for the odd end, with both calls and the usual one.
    """
    excused: set[int] = set()
    culprits: dict[int, Accusation] = {}
    doubts = []
    unsettled: set[int] = set()
    open_: list[Mismatch] = []
    for unlike in _unlike_messages(scene):
        excused.update(unlike.ends)
        mismatch = unlike.mismatch
        if unlike.odd is None:
            names = " and ".join(str(r) for r in unlike.ends)
            unsettled.update(unlike.ends)
            open_.append(mismatch)
            doubts.append(
                f"ranks {names} send and receive different sizes in group {scene.groups[mismatch.group].name}, "
                "and the dumps do not show which size is right"
            )
            continue
        call = mismatch.calls[unlike.odd]
        accusation = Accusation("mismatched_call", mismatch.group, mismatch.seq, mismatch, call)
        culprits.setdefault(unlike.odd, accusation)
    return Found(
        culprits, frozenset(excused), doubts=tuple(doubts), candidates=frozenset(unsettled), open=tuple(open_)
    )


@dataclass(frozen=True, slots=True)
class _Unlike:
    """A send and its receive that differ; `odd` is None if the right end is unknown."""

    ends: tuple[int, int]
    odd: int | None
    mismatch: Mismatch  # its `seq` is the odd end's own number of the message


def _unlike_messages(scene: Scene) -> list[_Unlike]:
    """List the pairs of messages that differ, the first of every channel, by members and sender."""
    found: dict[tuple[tuple[int, ...], int, int], _Unlike] = {}
    channels = Channels(scene.dumps)
    for rank, dump in scene.dumps.items():
        queued: dict[Channel, int] = defaultdict(int)
        for op in dump.p2p:
            channel = Channel(op.group, op.send, op.me, op.peer)
            place = queued[channel]
            queued[channel] += 1
            members = dump.groups[op.group].ranks
            if max(op.me, op.peer) >= len(members) or members[op.me] != rank:
                continue
            peer = members[op.peer]
            key = (members, *((rank, peer) if op.send else (peer, rank)))
            if key in found:
                continue
            mine, other = end_of(rank, op), channels.counterpart(dump, op, place)
            unlike = None
            if other is None and (peer not in scene.dumps or scene.dumps[peer].truncated):
                unlike = _judge_alone(scene, members, peer, mine)
            elif other is not None and differ(op.call, other.call):
                unlike = _judge(scene, dump.groups[op.group].desc, members, (mine, other))
            if unlike is not None:
                found[key] = unlike
    return [found[k] for k in sorted(found)]


def _judge(scene: Scene, desc: str, members: tuple[int, ...], ends: tuple[End, End]) -> _Unlike:
    """Find the odd one of two ends that meet: by the replicas of either, else by earlier messages of this pair."""
    usual = [usual_calls(scene.dumps, desc, members, end) for end in ends]
    odd = [not is_known(end, calls) for end, calls in zip(ends, usual, strict=True) if calls]
    if len(odd) < 2 or sum(odd) != 1:
        past = [past_calls(scene.dumps[end.rank], end) for end in ends]
        usual = [past[0] + past[1]] * 2
        odd = [not is_known(end, usual[0]) for end in ends]
    wrong = odd.index(True) if sum(odd) == 1 else None
    number = next(
        i
        for i, g in enumerate(scene.groups)
        if g.ranks == members and g.desc == desc and all(end.rank in g.frontiers for end in ends)
    )
    sides: dict[Version, list[int]] = {(place,): [end.rank] for place, end in enumerate(ends)}
    expected = usual[wrong][0] if wrong is not None and usual[wrong] else None
    end = ends[wrong or 0]
    named = [] if wrong is None else [end.rank]
    calls = {e.rank: e.call for e in ends}
    mismatch = Mismatch(number, end.seq, sides, named, skipped=False, expected=expected, calls=calls)
    return _Unlike((ends[0].rank, ends[1].rank), None if wrong is None else end.rank, mismatch)


def _judge_alone(scene: Scene, members: tuple[int, ...], peer: int, end: End) -> _Unlike | None:
    """Judge a message without a dump of the other end: odd if its replicas and its other messages there agree."""
    groups = scene.groups
    number = next((i for i, g in enumerate(groups) if g.ranks == members and end.rank in g.frontiers), None)
    if number is None:
        return None
    usual = usual_calls(scene.dumps, groups[number].desc, members, end)
    calls = [*usual, *past_calls(scene.dumps[end.rank], end, later=True)]
    steady = len(calls) > 1 and not any(differ(calls[0], call) for call in calls)
    if not steady or is_known(end, calls):
        return None
    sides: dict[Version, list[int]] = {(0,): [end.rank]}
    ends = {end.rank: end.call}
    mismatch = Mismatch(number, end.seq, sides, [end.rank], skipped=False, expected=calls[0], calls=ends)
    return _Unlike((end.rank, peer), end.rank, mismatch)
