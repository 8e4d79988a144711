"""The sends and receives that NCCL's lines show, as messages of a dump: which have met, and which are outstanding.

The n-th send from one rank to another meets the n-th receive there; no line shows an end, so that two ends that have
met and agree are taken as ended. Used by `as_dumps`.
"""

from collections.abc import Iterable, Mapping

import numpy as np

from tracekit.dumps.calls import Signature
from tracekit.dumps.rank_dump import P2P, STARTED, GroupTail, Messages, RankDump
from tracekit.evidence.nccl_calls import Communicator, Sent
from tracekit.evidence.nccl_groups import CallGroup
from tracekit.thresholds.dumps import MAX_OPEN_MESSAGES


def add_messages(
    dumps: Mapping[int, RankDump],
    tails: Mapping[int, list[tuple[GroupTail, Communicator]]],
    groups: Iterable[CallGroup],
) -> None:
    """Add the messages of communicators to the dumps of their ranks, which hold the groups in `tails`."""
    members = {id(one): group for group in groups for one in group.own.values()}
    for rank, of_rank in tails.items():
        if rank not in dumps:
            continue
        rows: list[tuple[int, int, int, Sent, int]] = []
        places = {id(tail): number for number, tail in enumerate(dumps[rank].groups)}
        for tail, one in of_rank:
            number = places.get(id(tail))
            if number is None or one.place is None or not one.messages:
                continue
            seq = sum(one.sent.values()) - len(one.messages)
            met = _met(members[id(one)], one)
            for order, sent in enumerate(one.messages, seq + 1):
                rows.append((sent.offset, number, order, sent, one.place))
                met_here = met.get((sent.send, sent.peer))
                if met_here is not None and sent.nth >= met_here and len(dumps[rank].p2p) < MAX_OPEN_MESSAGES:
                    dumps[rank].p2p.append(_outstanding(number, order, sent, one.place))
        rows.sort(key=lambda row: row[0])
        dumps[rank].messages = _log(rows)


def _met(group: CallGroup, one: Communicator) -> dict[tuple[bool, int], int]:
    """Return by direction and peer how many messages have met an equal end; a channel without a known end has none."""
    ranks, found = group.members.ranks, {}
    for send, peer in one.sent:
        other = group.own.get(ranks[peer]) if 0 <= peer < len(ranks) else None
        if other is None or not group.whole or one.place is None:
            continue
        mine, theirs = _channel(one, send, peer), _channel(other, not send, one.place)
        met = min(one.sent[send, peer], other.sent.get((not send, one.place), 0))
        unlike = (nth for nth in sorted(mine.keys() & theirs.keys()) if mine[nth] != theirs[nth])
        found[send, peer] = min(met, next(unlike, met))
    return found


def _channel(one: Communicator, send: bool, peer: int) -> dict[int, tuple[str, str]]:
    """Return elements and dtype of the kept messages of a channel, by their position on it."""
    return {
        sent.nth: (sent.call.input_sizes, sent.call.dtypes)
        for sent in one.messages
        if (sent.send, sent.peer) == (send, peer)
    }


def _text(sent: Sent, place: int) -> str:
    """Return how a dump names a message: by the places of both ends in the group."""
    return f"send {place}->{sent.peer}" if sent.send else f"recv {place}<-{sent.peer}"


def _call(sent: Sent, place: int) -> Signature:
    return sent.call._replace(op=_text(sent, place))


def _outstanding(group: int, seq: int, sent: Sent, place: int) -> P2P:
    name = f"nccl:{_text(sent, place)}"
    at = sent.offset + 1
    return P2P(group, sent.peer, place, sent.send, STARTED, seq, name, at, _call(sent, place), sent.nth)


def _log(rows: list[tuple[int, int, int, Sent, int]]) -> Messages:
    """Return messages, sorted by their places in the file, as columns."""
    offsets, groups, seqs, sent, places = zip(*rows, strict=True) if rows else ((), (), (), (), ())
    return Messages(
        np.array(groups, np.int64),
        np.array(seqs, np.int64),
        np.array([one.nth for one in sent], np.int64),
        np.array([at + 1 for at in offsets], np.int64),
        tuple([f"nccl:{_text(one, place)}" for one, place in zip(sent, places, strict=True)]),
        tuple([_call(one, place) for one, place in zip(sent, places, strict=True)]),
    )
