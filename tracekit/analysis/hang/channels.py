"""Sends and receives by channel: which two ends meet, and which messages are usual on a channel.

A channel is one direction between two ranks on one group. The n-th send on it meets the n-th receive there; where the
rings have lost the beginning, the first unfinished send meets the first unfinished receive. NCCL runs all messages of a
pair in the order of one stream, in both directions (torch's `ProcessGroupNCCL::pointToPoint`): a message behind one
that hangs has not begun, and meets nothing yet.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from tracekit.dumps.calls import Signature, numel
from tracekit.dumps.fields import p2p_ends
from tracekit.dumps.rank_dump import P2P, RankDump


class Channel(NamedTuple):
    """One end of a channel, as its rank's dump shows it."""

    group: int  # index into RankDump.groups
    send: bool
    me: int  # position of the rank among the group's sorted members
    peer: int


class End(NamedTuple):
    """One end of a message: a send, or the receive that meets it."""

    rank: int
    seq: int
    name: str
    call: Signature


class Channels:
    """Messages of every rank by channel and position; a dump is read when it is first asked for."""

    def __init__(self, dumps: Mapping[int, RankDump]) -> None:
        self._dumps = dumps
        self._known: dict[int, dict[Channel, dict[int, End]]] = {}

    def counterpart(self, dump: RankDump, op: P2P, place: int) -> End | None:
        """Give the peer's end of the message `op`, the `place`-th outstanding one of its channel.

        None if it is unknown, or if either end waits behind an earlier message of the two ranks. Ends meet by their
        position in the ring where both rings are whole, else by position among the outstanding ones.
        """
        peer = self._dumps.get(dump.groups[op.group].ranks[op.peer])
        group = None if peer is None else same_group(dump, op.group, peer)
        if peer is None or group is None:
            return None
        channel = Channel(group, not op.send, op.peer, op.me)
        found = self._on(channel, dump, peer, op, place)
        begun = found is None or has_begun(peer, group, op.me, found.seq)
        return found if begun and has_begun(dump, op.group, op.peer, op.seq) else None

    def _on(self, channel: Channel, dump: RankDump, peer: RankDump, op: P2P, place: int) -> End | None:
        if any(d.wrapped or d.malformed for d in (dump, peer)):
            open_ = [o for o in peer.p2p if (o.group, o.send, o.me, o.peer) == channel]
            return end_of(peer.rank, open_[place]) if place < len(open_) else None
        if peer.rank not in self._known:
            self._known[peer.rank] = _by_channel(peer)
        return self._known[peer.rank].get(channel, {}).get(op.nth)


def has_begun(dump: RankDump, group: int, peer: int, seq: int) -> bool:
    """Return whether message `seq` of a group is done, or in the first batch that is outstanding with that member.

    Gloo's messages carry tags and keep no order.
    """
    open_ = [op.seq for op in dump.p2p if (op.group, op.peer) == (group, peer)]
    return dump.backend == "gloo" or seq not in open_ or seq == open_[0]


def end_of(rank: int, op: P2P) -> End:
    """Give the end that an outstanding message of `rank` is."""
    return End(rank, op.seq, op.text, op.call)


def same_group(dump: RankDump, number: int, peer: RankDump) -> int | None:
    """Return the index in `peer` of the group that is `number` in `dump`; None if it is absent or unknown."""
    tail = dump.groups[number]
    alike = [i for i, g in enumerate(peer.groups) if g.ranks == tail.ranks and g.desc == tail.desc]
    named = [i for i in alike if peer.groups[i].name == tail.name]
    return named[0] if named else alike[0] if len(alike) == 1 else None


def _by_channel(dump: RankDump) -> dict[Channel, dict[int, End]]:
    """Give the messages of one rank by channel and by their position on it, from 0."""
    found: dict[Channel, dict[int, End]] = defaultdict(dict)
    log = dump.messages
    columns = (log.group.tolist(), log.seq.tolist(), log.nth.tolist(), log.names, log.calls)
    for group, seq, nth, name, call in zip(*columns, strict=True):
        parsed = p2p_ends(name)
        if parsed is not None:
            found[Channel(group, *parsed)][nth] = End(dump.rank, seq, name, call)
    return found


def differ(one: Signature, other: Signature) -> bool:
    """Return whether two ends differ in elements or dtypes; False if a dump does not show them."""
    a, b = _form(one), _form(other)
    if a is None or b is None:
        return False
    return a[0] != b[0] or bool(a[1] and b[1] and a[1] != b[1])


def _form(call: Signature) -> tuple[int, str] | None:
    """Return elements and dtypes of a send or receive; None if the dump does not show them."""
    count = numel(call.input_sizes) or numel(call.output_sizes)
    return None if count is None else (count, call.dtypes.strip("[]()"))


def is_known(end: End, calls: Iterable[Signature]) -> bool:
    """Return whether any of these calls equals that of `end`."""
    return any(not differ(end.call, call) for call in calls)


def usual_calls(
    dumps: Mapping[int, RankDump], desc: str, members: tuple[int, ...], end: End
) -> list[Signature]:
    """Give the calls of the replicas of `end`'s rank under its number and name; none where they do not agree.

    Replicas are the ranks with the same position in other groups of this description and size.
    """
    place, found = members.index(end.rank), []
    for rank, dump in dumps.items():
        for number, tail in enumerate(dump.groups):
            alike = tail.desc == desc and len(tail.ranks) == len(members) and tail.ranks != members
            if alike and tail.ranks[place] == rank:
                at = dump.messages.place(number, end.seq, end.name)
                if at is not None:
                    found.append(dump.messages.calls[at])
    return found if not any(differ(found[0], call) for call in found[1:]) else []


def past_calls(dump: RankDump, end: End, *, later: bool = False) -> list[Signature]:
    """Give the calls of this rank on the channel of `end` before it, and also later ones if `later`."""
    log = dump.messages
    rows = list(zip(log.group.tolist(), log.seq.tolist(), log.names, log.calls, strict=True))
    groups = {g for g, seq, name, _ in rows if (seq, name) == (end.seq, end.name)}
    return [
        call
        for g, seq, name, call in rows
        if g in groups and name == end.name and (seq < end.seq or (later and seq != end.seq))
    ]
