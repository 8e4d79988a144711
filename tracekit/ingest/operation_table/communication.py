"""The communication in an operation table: process group, peer and sequence number of every row."""

from dataclasses import dataclass

import numpy as np

from tracekit.findings import Quality
from tracekit.ingest.operation_table.kinds import OperationKind
from tracekit.ingest.operation_table.layout import Layout, Place
from tracekit.ingest.operation_table.table import I64, OperationTable

Members = tuple[int, ...]


@dataclass(frozen=True)
class Communication:
    """The communication of an operation table.

    groups: the axes that a group was met as, by its members; the order numbers the groups. group, peer, seq: of shape
    (rows,), -1 where a row has none. A sequence number is unique within a group and equal on its members.
    """

    groups: dict[Members, set[str]]
    group: I64
    peer: I64
    seq: I64


def communication(table: OperationTable, layout: Layout | None) -> Communication:
    """Find the group, p2p peer and sequence number of each row.

    Groups name ranks without rows too, where the `layout` of the job tells their numbers.

    The k-th send of a stage in a step meets the k-th receive of its neighbour in that direction (Megatron's channels
    are first in, first out).
    """
    group, peer, seq = (np.full(len(table.dp), -1, np.int64) for _ in range(3))
    channels = {name: i for i, name in enumerate(sorted({k.channel for k in table.kinds}))}
    step = np.searchsorted(np.unique(table.step), table.step)
    depth = int(table.ordinal.max()) + 1
    places = _places(table, layout)
    groups: dict[Members, set[str]] = {}
    numbers: dict[Members, int] = {}
    for (dp, stage), rank in table.rank_at.items():
        for code, kind in enumerate(table.kinds):
            rows = np.flatnonzero((table.rank == rank) & (table.kind == code))
            if kind.collective is None or not len(rows):
                continue
            members = _members(places, kind, dp, stage)
            groups.setdefault(members, set()).add(kind.axis or "")
            group[rows] = numbers.setdefault(members, len(numbers))
            sender = stage
            if kind.toward:
                other = _other_stage(kind, stage, table.pp_size)
                sender = stage if kind.collective == "send" else other
                peer[rows] = places.get((dp, other), -1)
            lane = channels[kind.channel] * table.pp_size + (sender if kind.toward else 0)
            lanes = len(channels) * table.pp_size
            seq[rows] = (step[rows] * lanes + lane) * depth + table.ordinal[rows]
    return Communication(groups, group, peer, seq)


def _other_stage(kind: OperationKind, stage: int, stages: int) -> int:
    """The stage at the other end of a send or receive; the pipeline closes to a ring."""
    return (stage + (kind.toward if kind.collective == "send" else -kind.toward)) % stages


def _places(table: OperationTable, layout: Layout | None) -> dict[Place, int]:
    """Rank by (dp_rank, stage): those of the table, and those that the layout knows besides."""
    if layout is None:
        return dict(table.rank_at)
    sizes = layout.sizes
    return {(d, s): layout.rank((d, s)) for d in range(sizes["dp"]) for s in range(sizes["pp"])}


def _members(places: dict[Place, int], kind: OperationKind, dp: int, stage: int) -> Members:
    """Ranks of the group in which the rank at (dp, stage) runs operations of this kind, sorted."""
    last = max(s for _, s in places)
    inside = {
        "dp": [p for p in places if p[1] == stage],
        "pp": [p for p in places if p[0] == dp],
        "tp": [(dp, stage)],
        "embedding": [(dp, 0), (dp, last)],
    }[kind.axis or "tp"]
    return tuple(sorted({places[p] for p in inside if p in places}))


def unpaired(table: OperationTable, found: Communication, label: str) -> list[Quality]:
    """Return a row that counts sends and receives whose other side is not in the table; nothing where all meet."""
    ends = []
    for collective in ("send", "recv"):
        codes = [i for i, kind in enumerate(table.kinds) if kind.collective == collective]
        rows = np.isin(table.kind, codes)
        ends.append({*zip(found.group[rows].tolist(), found.seq[rows].tolist(), strict=True)})
    alone = len(ends[0] ^ ends[1])
    detail = "sends or receives whose other side is not in the table"
    return [Quality("unpaired_p2p", label, alone, detail)] if alone else []
