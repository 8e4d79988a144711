"""Which operations may match each other: those of one process group, or the messages of one rank to another."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from tracekit.store import Group
from tracekit.tables.intervals import I64
from tracekit.tables.operation_names import MESSAGES, UNDIRECTED
from tracekit.tables.operations import RankOps

WORLD: Final = -1
"""Group of an operation whose members the trace does not name."""
NO_SEQ: Final = -1
"""Sequence number of an operation that the trace does not count, or counts differently on each member."""


@dataclass(frozen=True)
class Channel:
    """Operations that match each other in order: those of one group, or the sends of one rank to another."""

    number: int
    members: tuple[int, ...]  # ranks of the group, or (source, destination)
    p2p: bool
    group: int  # index into Run.groups, WORLD where unknown
    inferred: bool = False  # nothing told the ends of its messages, but when they ended


def channels_of(
    ranks: Sequence[RankOps], groups: Sequence[Group], *, pipelined: bool = False
) -> tuple[I64, tuple[Channel, ...]]:
    """The channel of every operation (-1: none), and all channels.

    Messages have a channel for each (group, source, destination), those whose ends were inferred channels of their
    own; a message that does not name its group is of the one that others between its ends name.
    Collectives have one for each group. Where no group is known, the whole world counts as one, and a kernel that may
    be a message or an all-to-all as its collective, unless the job is known to be `pipelined`.
    """
    numbers: dict[tuple[object, ...], Channel] = {}
    known: dict[tuple[str, int, int, int, bool], int] = {}
    members = {g.group: g.ranks for g in groups}
    everyone = tuple(r.rank for r in ranks)
    anonymous = not any(len(g.ranks) > 1 for g in groups)
    result: list[int] = []
    carriers = _carriers(ranks)
    for r in ranks:
        inferred = (r.message >= 0).tolist() if r.message is not None else [False] * len(r.op)
        rows = zip(r.op, r.group.tolist(), r.src.tolist(), r.dst.tolist(), inferred, strict=True)
        for row in rows:
            if row in known:
                result.append(known[row])
                continue
            op, group, src, dst, guessed = row
            key: tuple[object, ...]
            who: tuple[int, ...]
            if op in MESSAGES or guessed:
                carrier = group if group != WORLD else carriers.get((src, dst), WORLD)
                carrier = WORLD if guessed else carrier
                key, who = ("p2p", src, dst, carrier, op in MESSAGES, guessed), (src, dst)
            else:
                key, who = ("group", group), members.get(group, everyone)
            coalesced = op == "other" or (op == "send_recv" and (pipelined or group != WORLD) and not guessed)
            if coalesced or len(who) < 2 or (group == WORLD and not anonymous and key[0] == "group"):
                known[row] = -1  # alone, or its members are unknown: the list was cut
            else:
                p2p = key[0] == "p2p"
                known[row] = numbers.setdefault(key, Channel(len(numbers), who, p2p, group, guessed)).number
            result.append(known[row])
    return np.asarray(result, np.int64), tuple(numbers.values())


def _carriers(ranks: Sequence[RankOps]) -> dict[tuple[int, int], int]:
    """(source, destination) → the one group that messages between them name; WORLD where they name several."""
    found: dict[tuple[int, int], int] = {}
    for r in ranks:
        for op, group, src, dst in zip(r.op, r.group.tolist(), r.src.tolist(), r.dst.tolist(), strict=True):
            if op in MESSAGES and group != WORLD and found.setdefault((src, dst), group) != group:
                found[src, dst] = WORLD
    return found


def groups_with_one_counter(ranks: Sequence[RankOps]) -> list[int]:
    """Groups whose `Seq` counts messages and collectives together, and so differs between members.

    The backend of torch 2.15 does that. Elsewhere each kind has a counter of its own, and calls of both kinds in turn
    show numbers that fall.
    """
    found = []
    for r in ranks:
        message = np.isin(np.array(r.op, str), UNDIRECTED)
        for group in np.unique(r.group[message & (r.group != WORLD) & (r.seq != NO_SEQ)]):
            rows = np.flatnonzero((r.group == group) & (r.seq != NO_SEQ))
            rows = rows[np.argsort(r.issued[rows], kind="stable")]
            turn = np.flatnonzero(np.diff(message[rows].astype(np.int8)))
            if len(turn) and (r.seq[rows][turn + 1] > r.seq[rows][turn]).all():
                found.append(int(group))
    return found
