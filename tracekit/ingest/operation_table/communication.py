"""The communication in an operation table: process group, peer and sequence number of every row."""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

import numpy as np

from tracekit.axes import DATA, PIPELINE
from tracekit.findings import Quality
from tracekit.ingest.operation_table.kinds import EMBEDDING, OperationKind
from tracekit.ingest.operation_table.layout import Layout, Place
from tracekit.ingest.operation_table.served import Served, served
from tracekit.ingest.operation_table.table import OperationTable
from tracekit.thresholds.ingest import MAX_COUNT
from tracekit.units import I64

Members = tuple[int, ...]


@dataclass(frozen=True)
class Communication:
    """The communication of an operation table.

    groups: the axes that a group was met as, by its members; the order numbers the groups. group, peer, seq: of shape
    (rows,), -1 where a row has none. A sequence number is unique within a group and equal on its members. served: what
    serves which computation.
    """

    groups: dict[Members, set[str]]
    group: I64
    peer: I64
    seq: I64
    served: Served


def communication(table: OperationTable, layout: Layout | None) -> Communication:
    """Return the group, p2p peer and sequence number of each row.

    Groups also name ranks without rows, if the `layout` of the job gives their numbers.

    The k-th send of a stage in a step meets the k-th receive of its neighbour in that direction (Megatron's channels
    are first in, first out).
    """
    group, peer, seq = (np.full(len(table.dp), -1, np.int64) for _ in range(3))
    channels = {name: i for i, name in enumerate(sorted({k.channel for k in table.kinds}))}
    step = np.unique(table.step, return_inverse=True)[1]
    depth = int(table.ordinal.max()) + 1
    lanes = len(channels) * table.pp_size
    if lanes * depth * (int(step.max()) + 1) >= MAX_COUNT:
        raise ValueError("more operations than sequence numbers")
    places, found = _Places(table, layout), served(table)
    groups: dict[Members, set[str]] = {}
    numbers: dict[Members, int] = {}
    for alike in _alike(table):
        rows = alike[found.pair[alike] >= 0]
        if not len(rows):
            continue
        kind = table.kinds[table.kind[rows[0]]]
        dp, stage = int(table.dp[rows[0]]), int(table.stage[rows[0]])
        members = places.members(kind, dp, stage)
        groups.setdefault(members, set()).add(kind.axis or "")
        group[rows] = numbers.setdefault(members, len(numbers))
        sender = stage
        if kind.toward:
            other = _other_stage(kind, stage, table.pp_size)
            sender = stage if kind.collective == "send" else other
            peer[rows] = places.rank_at.get((dp, other), -1)
        lane = channels[kind.channel] * table.pp_size + (sender if kind.toward else 0)
        seq[rows] = (step[rows] * lanes + lane) * depth + found.pair[rows]
    return Communication(groups, group, peer, seq, found)


def _alike(table: OperationTable) -> Iterator[I64]:
    """Yield the rows of each type of communication on each rank, by rank, then type."""
    shared = np.array([k.collective is not None for k in table.kinds], bool)
    rows = np.flatnonzero(shared[table.kind])
    order = rows[np.lexsort((table.kind[rows], table.stage[rows], table.dp[rows]))]
    ends = np.zeros(max(len(order) - 1, 0), bool)
    for column in (table.dp, table.stage, table.kind):
        ends |= np.diff(column[order]) != 0
    if len(order):
        yield from np.split(order, np.flatnonzero(ends) + 1)


def _other_stage(kind: OperationKind, stage: int, stages: int) -> int:
    """The stage at the other end of a send or receive; the pipeline closes to a ring."""
    return (stage + (kind.toward if kind.collective == "send" else -kind.toward)) % stages


class _Places:
    """The ranks by place: the ranks of the table, and other ranks of the layout."""

    def __init__(self, table: OperationTable, layout: Layout | None) -> None:
        self.rank_at: dict[Place, int] = dict(table.rank_at)
        if layout is not None:
            sizes = layout.sizes
            every = product(range(sizes[DATA]), range(sizes[PIPELINE]))
            self.rank_at = {place: layout.rank(place) for place in every}
        self._last = max(s for _, s in self.rank_at)
        by_dp: dict[int, list[int]] = defaultdict(list)
        by_stage: dict[int, list[int]] = defaultdict(list)
        for (dp, stage), rank in self.rank_at.items():
            by_dp[dp].append(rank)
            by_stage[stage].append(rank)
        self._by_dp, self._by_stage = _sorted(by_dp), _sorted(by_stage)

    def members(self, kind: OperationKind, dp: int, stage: int) -> Members:
        """Ranks of the group in which the rank at (dp, stage) runs operations of this kind, sorted."""
        if kind.axis == DATA:
            return self._by_stage[stage]
        if kind.axis == PIPELINE:
            return self._by_dp[dp]
        inside = [(dp, 0), (dp, self._last)] if kind.axis == EMBEDDING else [(dp, stage)]
        return tuple(sorted({self.rank_at[p] for p in inside if p in self.rank_at}))


def _sorted(lists: dict[int, list[int]]) -> dict[int, Members]:
    return {key: tuple(sorted(ranks)) for key, ranks in lists.items()}


def unpaired(table: OperationTable, found: Communication, label: str) -> list[Quality]:
    """Return a row that counts sends and receives without their other side in the table; empty if all have one."""
    ends = []
    for collective in ("send", "recv"):
        codes = [i for i, kind in enumerate(table.kinds) if kind.collective == collective]
        rows = np.isin(table.kind, codes) & (found.group >= 0)
        ends.append({*zip(found.group[rows].tolist(), found.seq[rows].tolist(), strict=True)})
    alone = len(ends[0] ^ ends[1])
    detail = "sends or receives without their other side in the table"
    return [Quality("unpaired_p2p", label, alone, detail)] if alone else []
