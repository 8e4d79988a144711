"""What communication operations carry: kind, group, peers, sequence number and size, wherever the trace has them.

Some arguments stand only on the host-side record of a kernel, some only in other ranks' files.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tracekit.store import Group
from tracekit.tables.event_columns import ints, present, strings
from tracekit.tables.intervals import I64
from tracekit.tables.operation_names import MESSAGES, canonical_op, directed
from tracekit.tables.step_marks import I32


@dataclass(frozen=True)
class Arguments:
    """What the operations of one rank carry; one entry an operation."""

    op: tuple[str, ...]  # canonical names
    token: tuple[str, ...]  # op, dtype and element count: equal for one collective on all ranks
    group: I32  # index into Run.groups; -1 unknown
    src: I32  # global rank of the sender of a message, -1 else
    dst: I32
    seq: I64  # -1 unknown
    nelems: I64  # the larger of input and output; -1 unknown


def read_arguments(rank: int, events: pa.Table, rows: I64, *, on_gpu: bool) -> Arguments:
    """Arguments of the operations that stand in `rows` of `events`; the rows are of `rank`."""
    taken = events.select(
        ["collective", "dtype", "in_nelems", "out_nelems", "group", "src_rank", "dst_rank", "seq"]
    )
    taken = taken.take(pa.array(_argument_rows(events, rows) if on_gpu else rows))
    names = strings(events.column("name").take(pa.array(rows)))
    collectives = strings(taken.column("collective"))
    known: dict[str, str] = {}
    kinds = [
        known.setdefault(text, canonical_op(text))
        for text in (c or n or "" for c, n in zip(collectives, names, strict=True))
    ]
    nelems = np.maximum(ints(taken, "in_nelems", -1), ints(taken, "out_nelems", -1))
    src, dst = ints(taken, "src_rank", -1), ints(taken, "dst_rank", -1)
    op = tuple(directed(o, s, d, rank) for o, s, d in zip(kinds, src.tolist(), dst.tolist(), strict=True))
    sends = np.array([o == "send" for o in op], bool)
    receives = np.array([o == "recv" for o in op], bool)
    token = tuple(
        f"{'p2p' if o in MESSAGES else o}/{d or ''}/{n}"
        for o, d, n in zip(op, strings(taken.column("dtype")), nelems, strict=True)
    )
    return Arguments(
        op,
        token,
        ints(taken, "group", -1).astype(np.int32),
        np.where(sends, rank, np.where(receives, src, -1)).astype(np.int32),
        np.where(receives, rank, np.where(sends, dst, -1)).astype(np.int32),
        ints(taken, "seq", -1),
        nelems,
    )


def _argument_rows(events: pa.Table, rows: I64) -> I64:
    """For each communication kernel the row with its arguments: the kernel's, else that of its host-side record."""
    collective = present(events, "collective")
    args = rows.copy()
    lacking = ~collective[rows]
    if lacking.any() and collective.any():
        external = ints(events, "external_id", -1)
        hosts = np.flatnonzero(collective & (external >= 0))
        hosts = hosts[np.argsort(external[hosts], kind="stable")]
        if len(hosts):
            wanted = external[rows]
            place = np.minimum(np.searchsorted(external[hosts], wanted), len(hosts) - 1)
            found = lacking & (external[hosts[place]] == wanted) & (wanted >= 0)
            args[found] = hosts[place[found]]
    return args


def resolve_groups(events: pa.Table, groups: Sequence[Group]) -> pa.Table:
    """`events` with the groups filled in whose member list was cut: by size and name, where one of `groups` fits.

    A file that lost its tail also lost the table that completes its lists; the files of the other members have it.
    """
    index = events.column_names.index("group")
    lacking = pc.and_(pc.is_null(events.column(index)), pc.is_valid(events.column("group_size")))
    rows = np.flatnonzero(np.asarray(lacking.to_numpy(zero_copy_only=False), bool))
    if not len(rows) or not groups:
        return events
    group = ints(events, "group", -1)
    keys = events.select(["group_size", "pg_name", "pg_desc"]).take(pa.array(rows)).to_pylist()
    known: dict[tuple[object, ...], int] = {}
    for row, key in zip(rows, keys, strict=True):
        size, name, desc = key["group_size"], key["pg_name"], key["pg_desc"]
        if (size, name, desc) not in known:
            fits = [g for g in groups if len(g.ranks) == size]
            named = [g for g in fits if name in g.names and (not desc or desc in g.descs)]
            chosen = named if len(named) == 1 else fits
            known[size, name, desc] = chosen[0].group if len(chosen) == 1 else -1
        group[row] = known[size, name, desc]
    values = pa.array(group.astype(np.int32), mask=group < 0)
    return events.set_column(index, events.schema.field(index), values)
