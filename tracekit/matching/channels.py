"""Channels: the operations that may match each other, of one process group or from one rank to another."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from tracekit.arrays import numbered_rows
from tracekit.rank_events.coded_words import among, numbered
from tracekit.rank_events.operation_names import MESSAGES, UNDIRECTED
from tracekit.rank_events.rank_ops import RankOps
from tracekit.schema import Group
from tracekit.units import I64

WORLD: Final = -1
"""Group of an operation if the trace does not name the group's members."""
NO_SEQ: Final = -1
"""Sequence number of an operation that the trace does not count, or counts differently on each member."""


@dataclass(frozen=True)
class Channel:
    """Operations that match each other in order: of one group, or the messages of one rank to another."""

    number: int
    members: tuple[int, ...]  # ranks of the group, or (source, destination)
    p2p: bool
    group: int  # index into Run.groups, WORLD where unknown
    inferred: bool = False  # the peers of its messages were inferred from their end times


def channels_of(
    ranks: Sequence[RankOps], groups: Sequence[Group], *, pipelined: bool = False
) -> tuple[I64, tuple[Channel, ...]]:
    """Return the channel of every operation (-1: none), and all channels.

    Messages have a channel for each (group, source, destination), and messages with inferred ends have channels of
    their own; a message that does not name its group belongs to the group that others between its ends name.
    Collectives have a channel for each group. If no group is known, the whole world counts as one group, and a kernel
    that may be a message or an all-to-all counts as its collective, unless the job is known to be `pipelined`.
    """
    numbers: dict[tuple[object, ...], Channel] = {}
    known: dict[_Row, int] = {}
    named_groups = _NamedGroups(
        {g.group: g.ranks for g in groups},
        tuple(r.rank for r in ranks),
        _carriers(ranks),
        anonymous=not any(len(g.ranks) > 1 for g in groups),
        pipelined=pipelined,
    )
    result = [np.zeros(0, np.int64)]
    for r in ranks:
        inferred = np.zeros(len(r.op), bool) if r.message is None else r.message >= 0
        first, number = numbered_rows(numbered(r.op)[1], r.group, r.src, r.dst, inferred)
        places = np.full(len(first), -1)
        for i in np.argsort(first, kind="stable").tolist():  # channels are numbered as they appear
            at = int(first[i])
            row = r.op[at], int(r.group[at]), int(r.src[at]), int(r.dst[at]), bool(inferred[at])
            if row not in known:
                known[row] = named_groups.channel(row, numbers)
            places[i] = known[row]
        result.append(places[number])
    return np.concatenate(result), tuple(numbers.values())


_Row = tuple[str, int, int, int, bool]
"""(operation, group, source, destination, whether its ends were inferred)"""


@dataclass(frozen=True)
class _NamedGroups:
    """The known groups before operations get their channels; as in `channels_of`."""

    members: Mapping[int, tuple[int, ...]]
    everyone: tuple[int, ...]
    carriers: Mapping[tuple[int, int], int]
    anonymous: bool
    pipelined: bool

    def channel(self, row: _Row, numbers: dict[tuple[object, ...], Channel]) -> int:
        """Return the number of an operation's channel, adding a new one to `numbers`; -1 for none."""
        op, group, src, dst, guessed = row
        key: tuple[object, ...]
        who: tuple[int, ...]
        p2p = op in MESSAGES or guessed
        if p2p:
            carrier = group if group != WORLD else self.carriers.get((src, dst), WORLD)
            carrier = WORLD if guessed else carrier
            key, who = ("p2p", src, dst, carrier, op in MESSAGES, guessed), (src, dst)
        else:
            key, who = ("group", group), self.members.get(group, self.everyone)
        coalesced = op == "other" or (
            op == "send_recv" and (self.pipelined or group != WORLD) and not guessed
        )
        if coalesced or len(who) < 2 or (group == WORLD and not self.anonymous and not p2p):
            return -1  # alone, or its members are unknown: the list was cut
        return numbers.setdefault(key, Channel(len(numbers), who, p2p, group, guessed)).number


def _carriers(ranks: Sequence[RankOps]) -> dict[tuple[int, int], int]:
    """Return (source, destination) → the group that messages between them name; WORLD where they name several."""
    found: dict[tuple[int, int], int] = {}
    for r in ranks:
        rows = np.flatnonzero(among(r.op, MESSAGES) & (r.group != WORLD))
        rows = rows[numbered_rows(r.src[rows], r.dst[rows], r.group[rows])[0]]
        ends = zip(r.src[rows].tolist(), r.dst[rows].tolist(), r.group[rows].tolist(), strict=True)
        for src, dst, group in ends:
            if found.setdefault((src, dst), group) != group:
                found[src, dst] = WORLD
    return found


def groups_with_one_counter(ranks: Sequence[RankOps]) -> list[int]:
    """Return the groups with a `Seq` that counts messages and collectives together, and so differs between members.

    The backend of torch 2.15 (nccl2) counts so. Elsewhere each kind has a counter of its own, so the numbers fall
    somewhere when calls of both kinds alternate.
    """
    found = []
    for r in ranks:
        message = among(r.op, UNDIRECTED)
        for group in np.unique(r.group[message & (r.group != WORLD) & (r.seq != NO_SEQ)]):
            rows = np.flatnonzero((r.group == group) & (r.seq != NO_SEQ))
            rows = rows[np.argsort(r.issued[rows], kind="stable")]
            turn = np.flatnonzero(np.diff(message[rows].astype(np.int8)))
            if len(turn) and (r.seq[rows][turn + 1] > r.seq[rows][turn]).all():
                found.append(int(group))
    return found
