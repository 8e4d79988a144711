"""Operations of different ranks at the same place of the same program."""

from dataclasses import dataclass

import numpy as np

from tracekit.analysis.slowrank.case import Case
from tracekit.intervals import I64


@dataclass(frozen=True)
class Places:
    """The place of each operation, shared with other ranks: the same call, with the same ordinal in its step."""

    place: I64
    count: int  # of places

    def rows_of(self, where: slice) -> I64:
        """The operation at each place of the rank with operations `where`; -1 where it has none."""
        rows = np.full(self.count, -1, np.int64)
        rows[self.place[where]] = np.arange(where.start, where.stop)
        return rows


def places_of(case: Case) -> Places:
    """The places of all operations of `case`: the shape of the group, the operation, the step and the ordinal in it."""
    ops = case.ops
    kinds: dict[object, int] = {}
    sides = np.array([_sides(case, number, kinds) for number in range(len(ops.channels))], np.int64)
    sides = np.append(sides.reshape(-1, 2), [[-1, -1]], axis=0)  # channel -1 takes the last one
    first = np.array([c.members[0] for c in ops.channels] + [-1], np.int64)
    side = sides[ops.channel, (first[ops.channel] != ops.rank).astype(np.int64)]
    _, op = ops.kinds
    order = np.lexsort((ops.start, ops.step, op, side, ops.rank))
    columns = np.stack([side, op, ops.step, ops.rank])[:, order]
    new = np.append(True, (np.diff(columns, axis=1) != 0).any(axis=0))[: len(order)]
    begins = np.flatnonzero(new)
    turn = np.arange(len(order)) - np.repeat(begins, np.diff(np.append(begins, len(order))))
    _, code = np.unique(np.stack([*columns[:3], turn]), axis=1, return_inverse=True)
    place = np.empty(len(order), np.int64)
    place[order] = code.reshape(-1)
    return Places(place, int(place.max(initial=-1)) + 1)


def _sides(case: Case, number: int, kinds: dict[object, int]) -> tuple[int, int]:
    """The kind of the channel `number` for its first member and for any other member; `kinds` numbers the kinds."""
    channel = case.ops.channels[number]
    if not channel.p2p:
        same = ("group", case.shape_of(channel) or len(channel.members))
        at = kinds.setdefault(same, len(kinds))
        return at, at
    source, to = (case.mesh.coordinates.get(m) for m in channel.members)
    apart = tuple(b - a for a, b in zip(source, to, strict=True)) if source and to else ("unknown",)
    return kinds.setdefault(("from", apart), len(kinds)), kinds.setdefault(("to", apart), len(kinds))
