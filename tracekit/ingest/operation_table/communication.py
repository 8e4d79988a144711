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
from tracekit.ingest.operation_table.table import OperationTable
from tracekit.thresholds.ingest import MAX_COUNT
from tracekit.units import I64

_PHASES = ("forward", "backward")


@dataclass(frozen=True)
class Served:
    """Columns by row of a table, shape (rows,).

    computation: equal for a computation and the communication of the same rank and step that it needs or that follows
    it, -1 if unknown. pair: the number of a message among matched ones, -1 without a counterpart.
    """

    computation: I64
    pair: I64


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


# The computation that each message of an interleaved pipeline belongs to, and the messages without a
# counterpart.
#
# Stages that hold several model chunks pass micro-batches around a ring: the first stage receives all but
# those of its first chunk. Recorders write a row for unsent messages there as well, or leave it out, or lack
# the first receive (the published analysis of the OSDI'25 tables reads all three). Tables of one chunk a
# stage need none of this.


def served(table: OperationTable) -> Served:
    """Return what each row serves; messages keep their ordinals if a stage has one chunk or chunks are unknown."""
    found = Served(np.full(len(table.dp), -1, np.int64), table.ordinal.copy())
    names = [k.name for k in table.kinds]
    computes = [names.index(f"{p}-compute") if f"{p}-compute" in names else -1 for p in _PHASES]
    chunks = int(table.chunk[np.isin(table.kind, computes)].max(initial=-1)) + 1
    if chunks < 2:
        return found
    place = table.dp * table.pp_size + table.stage
    for here in np.unique(place).tolist():
        for phase, code in enumerate(computes):
            rows = np.flatnonzero((place == here) & (table.kind == code))
            if len(rows):
                _serve(table, found, np.flatnonzero(place == here), rows, phase, chunks)
    return found


def _serve(table: OperationTable, found: Served, here: I64, rows: I64, phase: int, chunks: int) -> None:
    """Fill `found` for the rows that serve the computations `rows` of one phase, all on the place with rows `here`."""
    chunk = np.full(int(table.ordinal[rows].max()) + 1, -1, np.int64)
    chunk[table.ordinal[rows]] = table.chunk[rows]
    found.computation[rows] = 2 * table.ordinal[rows] + phase
    stage = int(table.stage[rows[0]])
    for code, kind in enumerate(table.kinds):
        mine = here[table.kind[here] == code]
        if len(mine) and kind.toward and kind.name.startswith(_PHASES[phase]):
            onward = kind.toward if kind.collective == "send" else -kind.toward
            beyond = chunk * table.pp_size + stage + onward
            meets = np.flatnonzero((beyond >= 0) & (beyond < chunks * table.pp_size))
            which = _which(len(chunk), meets, int(table.ordinal[mine].max()) + 1, kind)
            if which is not None:
                found.computation[mine] = 2 * which[table.ordinal[mine]] + phase
                number = np.full(len(chunk), -1, np.int64)
                number[meets] = np.arange(len(meets))
                found.pair[mine] = number[which[table.ordinal[mine]]]
        elif len(mine) and _needed(table, kind, phase):
            for c in np.unique(table.chunk[mine]).tolist():
                with_it = np.flatnonzero(chunk == c)
                if c >= 0 and len(with_it):
                    at = with_it[0] if phase == 0 else with_it[-1]
                    found.computation[mine[table.chunk[mine] == c]] = 2 * int(at) + phase


def _which(computes: int, meets: I64, messages: int, kind: OperationKind) -> I64 | None:
    """Return by message its computation among `computes` (`meets` of them send or receive); None if unknown."""
    if messages == computes:
        return np.arange(computes)
    if messages == len(meets):
        return meets
    if messages == computes - 1 and kind.collective == "recv":
        return np.arange(1, computes)
    return None


def _needed(table: OperationTable, kind: OperationKind, phase: int) -> bool:
    """Whether operations of `kind` wait for, or hold back, one chunk in the phase: gathered ahead, or summed beside."""
    beside = any(k.name.startswith("separate-grads") for k in table.kinds)
    return kind.collective == "allgather" if phase == 0 else beside and kind.collective == "reduce_scatter"
