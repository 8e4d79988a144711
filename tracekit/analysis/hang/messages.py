"""Sends and receives of one pair of ranks that differ in size or type: which of the two ends is wrong.

The n-th send from a rank to another meets the n-th receive there. Where the rings have lost the beginning, the first
unfinished send meets the first unfinished receive. The odd end is the one whose call differs from what its replicas
make under the same number, else from what this pair sent before. Used by `hang_roots`.
"""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from tracekit.analysis.hang.call_order import Item
from tracekit.analysis.hang.groups import Group, numel
from tracekit.analysis.hang.mismatch import Mismatch
from tracekit.analysis.hang.wait_graph import Graph
from tracekit.dumps.dump import P2P, RankDump, Signature
from tracekit.dumps.fields import P2P_NAME
from tracekit.dumps.load import DumpSet

_Form = tuple[int, str]
"""Elements and dtypes of a message."""
_Channel = tuple[int, bool, int, int]
"""group (index), send, own place and the peer's place among its members."""
_End = tuple[int, int, str, Signature]
"""rank, number, name, call"""


@dataclass(slots=True)
class Unlike:
    """A send and a receive that meet and differ; `odd` is None where nothing tells which end is right."""

    ends: tuple[int, int]
    odd: int | None
    mismatch: Mismatch  # its `seq` is the odd end's own number of the message


def unlike_messages(groups: list[Group], dumps: DumpSet) -> list[Unlike]:
    """Find pairs of messages that differ, the first of every channel; at least one end is unfinished.

    An end that no other is known of is compared with its replicas and with what the pair sent before.
    """
    found: dict[tuple[tuple[int, ...], int, int], Unlike] = {}
    channels: dict[int, dict[_Channel, dict[int, _End]]] = {}
    for rank, dump in dumps.dumps.items():
        queued: dict[_Channel, int] = defaultdict(int)
        for op in dump.p2p:
            mine = (op.group, op.send, op.me, op.peer)
            place = queued[mine]
            queued[mine] += 1
            members = dump.groups[op.group].ranks
            if max(op.me, op.peer) >= len(members) or members[op.me] != rank:
                continue
            peer = members[op.peer]
            key = (members, *((rank, peer) if op.send else (peer, rank)))
            if key in found:
                continue
            known = dumps.dumps.get(peer)
            other = None if known is None else _counterpart(dump, op, place, known, channels)
            if other is None and (known is None or known.truncated):
                alone = _judge_alone(groups, dumps, members, peer, (rank, op.seq, op.text, op.call))
                if alone is not None:
                    found[key] = alone
            elif other is not None and _differ(op.call, other[3]):
                ends = ((rank, op.seq, op.text, op.call), other)
                found[key] = _judge(groups, dumps, dump.groups[op.group].desc, members, ends)
    return [found[k] for k in sorted(found)]


def _counterpart(
    dump: RankDump,
    op: P2P,
    place: int,
    peer: RankDump,
    channels: dict[int, dict[_Channel, dict[int, _End]]],
) -> _End | None:
    """Give the peer's message that meets this one: by number where both rings are whole, else by what is open."""
    group = _same_group(dump, op.group, peer)
    if group is None:
        return None
    way = (group, not op.send, op.peer, op.me)
    if any(d.wrapped or d.malformed for d in (dump, peer)):
        open_ = [o for o in peer.p2p if (o.group, o.send, o.me, o.peer) == way]
        if place >= len(open_):
            return None
        other = open_[place]
        return peer.rank, other.seq, other.text, other.call
    if peer.rank not in channels:
        channels[peer.rank] = _channels(peer)
    return channels[peer.rank].get(way, {}).get(op.nth)


def _same_group(dump: RankDump, number: int, peer: RankDump) -> int | None:
    tail = dump.groups[number]
    alike = [i for i, g in enumerate(peer.groups) if g.ranks == tail.ranks and g.desc == tail.desc]
    named = [i for i in alike if peer.groups[i].name == tail.name]
    return named[0] if named else alike[0] if len(alike) == 1 else None


def _channels(dump: RankDump) -> dict[_Channel, dict[int, _End]]:
    """Messages of one rank by channel and by the how manyth they are on it."""
    found: dict[_Channel, dict[int, _End]] = defaultdict(dict)
    log = dump.messages
    columns = (log.group.tolist(), log.seq.tolist(), log.nth.tolist(), log.names, log.calls)
    for group, seq, nth, name, call in zip(*columns, strict=True):
        ends = _ends(name)
        if ends is not None:
            found[group, *ends][nth] = (dump.rank, seq, name, call)
    return found


@lru_cache(1 << 16)
def _ends(text: str) -> tuple[bool, int, int] | None:
    match = P2P_NAME.search(text)
    return (match[1] == "send", int(match[2]), int(match[4])) if match else None


def _form(call: Signature) -> _Form | None:
    """Elements and dtypes of a send or receive; None where the dump does not tell."""
    count = numel(call[1]) or numel(call[2])
    return None if count is None else (count, (call[3] or call[4]).strip("[]()"))


def _differ(one: Signature, other: Signature) -> bool:
    a, b = _form(one), _form(other)
    if a is None or b is None:
        return False
    return a[0] != b[0] or bool(a[1] and b[1] and a[1] != b[1])


def _judge(
    groups: list[Group], dumps: DumpSet, desc: str, members: tuple[int, ...], ends: tuple[_End, _End]
) -> Unlike:
    usual = [_usual(dumps, desc, members, end) for end in ends]
    odd = [not _known(end, forms) for end, forms in zip(ends, usual, strict=True) if forms]
    if len(odd) < 2 or sum(odd) != 1:
        past = [_past(dumps.dumps[end[0]], end) for end in ends]
        usual = [past[0] + past[1]] * 2
        odd = [not _known(end, usual[0]) for end in ends]
    wrong = odd.index(True) if sum(odd) == 1 else None
    end = ends[wrong or 0]
    number = next(
        i
        for i, g in enumerate(groups)
        if g.ranks == members and g.desc == desc and ends[0][0] in g.rows and ends[1][0] in g.rows
    )
    calls = {e[0]: e[3] for e in ends}
    sides: dict[tuple[object, ...], list[int]] = {(place,): [e[0]] for place, e in enumerate(ends)}
    expected = usual[wrong][0] if wrong is not None and usual[wrong] else None
    named = [] if wrong is None else [end[0]]
    mismatch = Mismatch(number, end[1], sides, named, skipped=False, expected=expected, calls=calls)
    return Unlike((ends[0][0], ends[1][0]), end[0] if wrong is not None else None, mismatch)


def _judge_alone(
    groups: list[Group], dumps: DumpSet, members: tuple[int, ...], peer: int, end: _End
) -> Unlike | None:
    """Judge a message whose other end left no dump: odd if its replicas and all else that it sends there agree."""
    number = next((i for i, g in enumerate(groups) if g.ranks == members and end[0] in g.rows), None)
    usual = _usual(dumps, groups[number].desc, members, end) if number is not None else []
    calls = [*usual, *_past(dumps.dumps[end[0]], end, later=True)]
    steady = len(calls) > 1 and not any(_differ(calls[0], call) for call in calls)
    if number is None or not steady or _known(end, calls):
        return None
    mismatch = Mismatch(
        number, end[1], {(0,): [end[0]]}, [end[0]], skipped=False, expected=calls[0], calls={end[0]: end[3]}
    )
    return Unlike((end[0], peer), end[0], mismatch)


def _known(end: _End, calls: Iterable[Signature]) -> bool:
    return any(not _differ(end[3], call) for call in calls)


def _usual(dumps: DumpSet, desc: str, members: tuple[int, ...], end: _End) -> list[Signature]:
    """Give what ranks in the same place of other groups call under that number and name, if they agree."""
    place, found = members.index(end[0]), []
    for rank, dump in dumps.dumps.items():
        for number, tail in enumerate(dump.groups):
            alike = tail.desc == desc and len(tail.ranks) == len(members) and tail.ranks != members
            if alike and tail.ranks[place] == rank:
                at = dump.messages.place(number, end[1], end[2])
                if at is not None:
                    found.append(dump.messages.calls[at])
    return found if not any(_differ(found[0], call) for call in found[1:]) else []


def _past(dump: RankDump, end: _End, *, later: bool = False) -> list[Signature]:
    """Give what this rank sent or received on this channel before, or `later` too."""
    log = dump.messages
    rows = list(zip(log.group.tolist(), log.seq.tolist(), log.names, log.calls, strict=True))
    group = {g for g, seq, name, _ in rows if (seq, name) == end[1:3]}
    return [
        call
        for g, seq, name, call in rows
        if g in group and name == end[2] and (seq < end[1] or (later and seq != end[1]))
    ]


def lost_message(
    groups: list[Group], graph: Graph, dumps: DumpSet, rank: int, askers: set[int]
) -> tuple[Item, Signature] | None:
    """Give the first send or receive that others posted towards `rank` and it did not make, as `rank` would call it.

    Its number is the next of `rank`; which of several it is, ranks in the same place of other groups tell.
    """
    best: tuple[tuple[bool, int, int], Item, Signature] | None = None
    for asker in sorted(askers):
        dump = dumps.dumps[asker]
        for op in dump.p2p:
            tail = dump.groups[op.group]
            if tail.ranks[op.peer : op.peer + 1] != (rank,) or rank not in graph.pairs[asker]:
                continue
            number = next(i for i, g in enumerate(groups) if asker in g.rows and g.rows[asker].tail is tail)
            arrow = f"recv {op.peer}<-{op.me}" if op.send else f"send {op.peer}->{op.me}"
            log = dumps.dumps[rank].messages
            local = _same_group(dump, op.group, dumps.dumps[rank])
            mine = log.seq[log.group == local] if local is not None else log.seq[:0]
            seq = int(mine.max()) + 1 if len(mine) else op.seq
            name = op.text.removesuffix(op.call[0]) + arrow
            told = bool(_usual(dumps, tail.desc, tail.ranks, (rank, seq, name, op.call)))
            key = (not told, op.seq, asker)
            if best is None or key < best[0]:
                _, sent, got, sent_types, got_types = op.call
                best = key, Item(number, seq, rank), (arrow, sent, got, sent_types, got_types)
    return None if best is None else best[1:]
