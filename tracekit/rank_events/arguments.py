"""The arguments of communication operations: kind, group, peers, sequence number and size, from all recorded sources.

Some arguments are only in the host-side record of a kernel, some only in other ranks' files.
"""

import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tracekit.arrays import from_numpy, numbered_rows, to_numpy
from tracekit.axes import PIPELINE
from tracekit.mesh.group_descriptions import hinted_dims
from tracekit.rank_events.coded_words import Column, Words, numbered
from tracekit.rank_events.event_columns import encoded, filled, holds, ints, matches
from tracekit.rank_events.host_events import Enclosing, Host
from tracekit.rank_events.kernel_records import Joined
from tracekit.rank_events.operation_names import (
    CALL_OPS,
    MESSAGES,
    OTHER,
    RECEIVES,
    SENDS,
    UNDIRECTED,
    WAYS,
    canonical_op,
    directed,
)
from tracekit.schema import Group
from tracekit.units import I32, I64

TITLE = re.compile(r"^nccl:(send|recv) (\d{1,9})(?:->|<-)(\d{1,9})$")
PAIR: Final = 2


class Title(NamedTuple):
    """What the title of a message records: its direction, and both group ranks."""

    op: str
    own: int
    peer: int


class Ends(NamedTuple):
    """The known kind of an operation, its ends (global ranks, -1 unknown), group and direction.

    A message with an unknown peer is a `send_recv` without ends; its direction may be known all the same.
    """

    op: str
    src: int
    dst: int
    group: int  # index into Run.groups, -1 unknown
    way: int = 0  # SENDS, RECEIVES, or 0 unknown
    place: int = -1  # the peer's group rank in an unnamed group, -1 unknown
    own: int = -1  # the rank's own group rank there


class Peers:
    """Finds the peers of one rank's messages. `groups` are the process groups of the run, by number."""

    def __init__(
        self, rank: int, events: pa.Table, cat: Column, host: Host, rows: I64, groups: Sequence[Group]
    ) -> None:
        self.rank, self._rows = rank, rows
        self._members = {g.group: g.ranks for g in groups}
        self._descs = {g.group: g.descs for g in groups}
        self._src, self._dst = ints(events, "src_rank", -1), ints(events, "dst_rank", -1)
        self._local = ints(events, "group_rank", -1)
        self._group, self._size = ints(events, "group", -1), ints(events, "group_size", -1)
        self._titles = matches(events, "name", _title)
        titled = np.flatnonzero(filled(events, "name", _title))
        on_device = (cat == "gpu_user_annotation")[titled]
        self._inputs = ints(events, "input_peer", -1)
        self._call = matches(events, "name", lambda v: CALL_OPS.get(v or ""))
        self._calls = Enclosing(host, np.flatnonzero(holds(events, "name", lambda v: CALL_OPS.get(v or ""))))
        self._on_host = Enclosing(host, titled[~on_device])
        self._on_device = Enclosing(host, titled[on_device])

    def of(self, joined: Joined, entry: int, op: str) -> Ends:
        """Return the ends of an operation; `op` is its kind by its arguments or its kernel's name."""
        args, record = int(joined.args[entry]), int(joined.host[entry])
        kernel = int(self._rows[joined.kernel[entry]])
        evidence = [args, record, kernel] if record >= 0 else [args, kernel]
        title = self._title_of(joined, entry)
        call = self._call_of(joined, entry)
        if op == "send_recv":
            op = title.op if title else self._call[call] if call >= 0 else op
        for row in evidence:
            src, dst = int(self._src[row]), int(self._dst[row])
            named = directed(op, src, dst, self.rank)
            if named in MESSAGES:
                ends = (self.rank, dst) if named == "send" else (src, self.rank)
                return Ends(named, *ends, int(self._group[args]), WAYS[named])
        if op not in MESSAGES:
            return Ends(op, -1, -1, int(self._group[args]))
        group = next((int(self._group[r]) for r in evidence if self._group[r] >= 0), -1)
        if group < 0 and title:
            group = self._of_size(max(int(self._size[r]) for r in evidence), title.own)
        members = self._members.get(group, ())
        local = [int(self._local[r]) for r in evidence if self._local[r] >= 0]
        if title and members[title.own : title.own + 1] == (self.rank,):
            local.append(title.peer)
        if call >= 0 and self._inputs[call] >= 0:
            local.append(int(self._inputs[call]))
        found = [members[n] for n in local if n < len(members)]
        found += [m for m in members if len(members) == PAIR]
        peer = next((p for p in found if p not in {-1, self.rank}), -1)
        if peer < 0:
            place = next(iter([title.peer] if title else local), -1) if group < 0 else -1
            own = title.own if title and group < 0 else -1
            return Ends("send_recv", -1, -1, group, WAYS[op], place, own)
        ends = (self.rank, peer) if op == "send" else (peer, self.rank)
        return Ends(op, *ends, group, WAYS[op])

    def called(self, joined: Joined, entry: int) -> str | None:
        """Return `send` or `recv` where a call of that name encloses the operation's record; else None."""
        call = self._call_of(joined, entry) if int(joined.host[entry]) >= 0 else -1
        return str(self._call[call]) if call >= 0 else None

    def _title_of(self, joined: Joined, entry: int) -> Title | None:
        """Return the title around or inside the operation's record, around its launch, or around its kernel."""
        record, launch = int(joined.host[entry]), int(joined.launch[entry])
        kernel = int(self._rows[joined.kernel[entry]])
        row = self._on_host.within(record) if record >= 0 else -1
        row = self._on_host.around(record) if row < 0 <= record else row
        row = self._on_host.around(launch) if row < 0 <= launch else row
        row = self._on_device.around(kernel) if row < 0 else row
        return self._titles[row] if row >= 0 else None

    def _call_of(self, joined: Joined, entry: int) -> int:
        """Return the row of the call around the operation's record, else around its launch; -1 without one."""
        record, launch = int(joined.host[entry]), int(joined.launch[entry])
        row = self._calls.around(record) if record >= 0 else -1
        return self._calls.around(launch) if row < 0 <= launch and record < 0 else row

    def _of_size(self, size: int, own: int) -> int:
        """Return the one group of `size` members with the rank at place `own`; -1 if several or none fit.

        Among several, the one that calls itself a pipeline counts.
        """
        fits = [g for g, m in self._members.items() if len(m) == size and m[own : own + 1] == (self.rank,)]
        fits = [g for g in fits if PIPELINE in hinted_dims(self._descs[g])] if len(fits) > 1 else fits
        return fits[0] if len(fits) == 1 else -1


_UNTOLD: Final = ("send_recv", "other")
"""Kinds by kernel name that may be any collective: NCCL's all-to-all runs as SendRecv, RCCL has one name for all."""
_BATCH: Final = "batch_op_issue"
"""A batch of messages of torch 2.15's backend: it sends its input, and receives its output."""


@dataclass(frozen=True)
class Arguments:
    """The arguments of one rank's operations; one entry an operation."""

    op: Words  # canonical names
    token: Words  # op, dtype and element count: equal for one collective on all ranks
    group: I32  # index into Run.groups; -1 unknown
    src: I32  # global rank of the sender of a message, -1 else
    dst: I32
    seq: I64  # -1 unknown
    nelems: I64  # the larger of input and output; -1 unknown
    size: I32  # ranks in the group, as the trace counts them; -1 unknown
    way: I64  # direction of a message: SENDS, RECEIVES, 0 unknown
    taken: I64  # elements that the rank received; -1 unknown
    place: I64  # group rank of a message's peer in an unnamed group; -1 unknown
    own: I64  # the rank's own group rank there; -1 unknown


def read_arguments(
    rank: int, events: pa.Table, cat: Column, host: Host, rows: I64, joined: Joined, groups: Sequence[Group]
) -> Arguments:
    """Return the arguments of the operations `joined` to the events `rows`; both are of `rank`."""
    taken = events.select(["collective", "dtype", "in_nelems", "out_nelems", "group", "group_size", "seq"])
    taken = taken.take(from_numpy(joined.args))
    kinds, recorded = _kinds(
        taken.column("collective"), events.column("name").take(from_numpy(rows[joined.kernel]))
    )
    given, received = ints(taken, "in_nelems", -1), ints(taken, "out_nelems", -1)
    nelems = np.maximum(given, received)
    group = ints(taken, "group", -1)
    src, dst, way = np.full(len(kinds), -1), np.full(len(kinds), -1), np.zeros(len(kinds), np.int64)
    place, own = np.full(len(kinds), -1), np.full(len(kinds), -1)
    titles = CollectiveTitles(events, cat, host, rows)
    for entry in [i for i, op in enumerate(kinds) if op in _UNTOLD and not recorded[i]]:
        kinds[entry] = titles.of(joined, entry) or kinds[entry]
    peers = Peers(rank, events, cat, host, rows, groups)
    for entry in [i for i, op in enumerate(kinds) if op == OTHER and not recorded[i]]:
        kinds[entry] = peers.called(joined, entry) or OTHER
    for entry in [i for i, op in enumerate(kinds) if op in UNDIRECTED]:
        ends = peers.of(joined, entry, kinds[entry])
        kinds[entry], src[entry], dst[entry], group[entry], way[entry], place[entry], own[entry] = ends
    batched = holds(taken, "collective", lambda v: v == _BATCH) & (way == 0)
    way[batched & (given > 0) & (received == 0)] = SENDS
    way[batched & (given == 0) & (received > 0)] = RECEIVES
    op = Words(kinds)
    return Arguments(
        op, _tokens(op, taken.column("dtype"), nelems), group.astype(np.int32), src.astype(np.int32),
        dst.astype(np.int32),
        ints(taken, "seq", -1), nelems, ints(taken, "group_size", -1).astype(np.int32), way,
        received, place, own,
    )  # fmt: skip


def _tokens(kinds: Words, dtypes: pa.ChunkedArray, nelems: I64) -> Words:
    """Return the token of each operation; those of equal operations are one string."""
    (ops, op), (types, dtype) = numbered(kinds), encoded(dtypes)
    first, number = numbered_rows(op, dtype, nelems)
    ops = ["p2p" if name in MESSAGES else name for name in ops]
    parts = zip(op[first].tolist(), dtype[first].tolist(), nelems[first].tolist(), strict=True)
    return Words.of([sys.intern(f"{ops[o]}/{types[d] or ''}/{n}") for o, d, n in parts], number)


def _kinds(collectives: pa.ChunkedArray, names: pa.ChunkedArray) -> tuple[list[str], list[bool]]:
    """Return the kind of each operation by its argument, else by the name of its kernel; and whether by the former."""
    (arguments, argument), (kernels, kernel) = encoded(collectives), encoded(names)
    recorded = np.array([bool(text) for text in arguments], bool)[argument]
    by_argument, by_name = (
        np.array([canonical_op(text or "") for text in texts], object) for texts in (arguments, kernels)
    )
    kinds: list[str] = np.where(recorded, by_argument[argument], by_name[kernel]).tolist()
    return kinds, recorded.tolist()


def resolve_groups(events: pa.Table, groups: Sequence[Group]) -> pa.Table:
    """Return `events` with groups in place of cut member lists: by size and name, if one of `groups` fits.

    A file that lost its tail also lost the table that completes its lists; the files of the other members have it.
    """
    index = events.column_names.index("group")
    lacking = pc.and_(pc.is_null(events.column(index)), pc.is_valid(events.column("group_size")))
    rows = np.flatnonzero(to_numpy(lacking))
    if not len(rows) or not groups:
        return events
    group = ints(events, "group", -1)
    keys = events.select(["group_size", "pg_name", "pg_desc"]).take(from_numpy(rows)).to_pylist()
    known: dict[tuple[object, ...], int] = {}
    for row, key in zip(rows, keys, strict=True):
        size, name, desc = key["group_size"], key["pg_name"], key["pg_desc"]
        if (size, name, desc) not in known:
            fits = [g for g in groups if len(g.ranks) == size]
            named = [g for g in fits if name in g.names and (not desc or desc in g.descs)]
            chosen = named if len(named) == 1 else fits
            known[size, name, desc] = chosen[0].group if len(chosen) == 1 else -1
        group[row] = known[size, name, desc]
    values = from_numpy(group.astype(np.int32), group < 0)
    return events.set_column(index, events.schema.field(index), values)


_TITLE = re.compile(r"^(?:nccl:|c10d::)(\w+)$")


class CollectiveTitles:
    """Finds the collective that a title or call around a kernel names, for the kernels of one rank."""

    def __init__(self, events: pa.Table, cat: Column, host: Host, rows: I64) -> None:
        self._rows = rows
        self._op = matches(events, "name", _collective)
        titled = np.flatnonzero(filled(events, "name", _collective))
        on_device = (cat == "gpu_user_annotation")[titled]
        self._on_host = Enclosing(host, titled[~on_device])
        self._on_device = Enclosing(host, titled[on_device])

    def of(self, joined: Joined, entry: int) -> str | None:
        """Return the collective of an operation; None where no title or call names one."""
        launch, kernel = int(joined.launch[entry]), int(self._rows[joined.kernel[entry]])
        row = self._on_host.around(launch) if launch >= 0 else -1
        row = self._on_device.around(kernel) if row < 0 else row
        return str(self._op[row]) if row >= 0 else None


@lru_cache(4096)
def _collective(name: str | None) -> str | None:
    """Return the collective that a title or call names; None for messages and other names."""
    found = _TITLE.match(name or "")
    op = canonical_op(found.group(1)) if found else "other"
    return None if op in {*UNDIRECTED, "other"} else op


# Finds the other end of a point-to-point operation, by the best evidence that the recording holds.
#
# `Src Rank` and `Dst Rank` are global ranks. `Rank` is the peer's rank in the group, as are both numbers in
# the titles `nccl:send 0->1` and `nccl:recv 0<-1` (the rank's own comes first), and the peer among the inputs
# of `c10d::send` and `c10d::recv_`. In a group of two the peer is the other one.


@lru_cache(4096)
def _title(name: str | None) -> Title | None:
    found = TITLE.match(name or "")
    return Title(found[1], int(found[2]), int(found[3])) if found else None
