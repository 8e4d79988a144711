"""Published operation tables (the OSDI'25 what-if analysis format) as the same event tables as traces.

A Parquet table with a row an operation: `dp_rank`, `stage`, `step`, `optype`, `start_ts` and `duration` in
seconds, `seq_id`, and where present `rank`, `mb_id`. It is known by these columns, not by its name. Starts
count from the beginning of each step, so steps are laid one after another. Send and receive durations include
the wait for the other side; a send that is launched together with a receive carries the receive's times.
"""

import re
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tracekit.arrays import MINUS_ONE, ZERO, from_ints, from_numpy, from_strings, to_numpy
from tracekit.files.source import ByteStream, Source
from tracekit.findings import Quality
from tracekit.ingest.result import FileGroup, FileResult, RankTable
from tracekit.ingest.write import in_order, write_table
from tracekit.schema import EVENTS
from tracekit.units import NS_PER_MS, NS_PER_S

REQUIRED = ("dp_rank", "stage", "step", "optype", "start_ts", "duration")
MAX_FILE = 1 << 31  # bytes; such tables hold one row an operation and stay far below
COLLECTIVES = (
    ("all-gather", "allgather"),
    ("reduce-scatter", "reduce_scatter"),
    ("all-reduce", "allreduce"),
    ("all-to-all", "alltoall"),
    ("broadcast", "broadcast"),
)
COMPUTE_STREAM, DP_STREAM, FORWARD_STREAM, BACKWARD_STREAM = 0, 1, 2, 3
MAX_ORDINAL = 1 << 20  # operations of one type in a step
GAP = NS_PER_MS  # between steps laid one after another


@dataclass(frozen=True)
class _Kind:
    """How operations of one type read as events."""

    name: str
    collective: str | None = None
    axis: str | None = None  # dp | pp | tp | embedding
    toward: int = 0  # p2p: +1 down the pipeline (activations), -1 up (gradients)
    stream: int = COMPUTE_STREAM


def kind_of(optype: str) -> _Kind:
    """Read the operation's collective, axis and direction from its type's name."""
    direction = 1 if optype.startswith("forward") else -1
    for end in ("send", "recv"):
        if optype.endswith("-" + end):
            stream = FORWARD_STREAM if direction > 0 else BACKWARD_STREAM
            return _Kind(optype, end, "pp", direction, stream)
    for words, collective in COLLECTIVES:
        if words in optype:
            axis = "embedding" if "embedding" in optype else "tp" if "layernorm" in optype else "dp"
            return _Kind(optype, collective, axis, stream=DP_STREAM)
    return _Kind(optype)


def read_operations(stream: ByteStream, source: Source, out: Path) -> FileResult:
    """Read an operation table into one Parquet file a rank, named after `out`."""
    data = bytearray()
    for block in stream.blocks():
        data += block
        if len(data) > MAX_FILE:
            return FileResult(
                source.label, "rejected", "a Parquet file of more than 2 GiB, so no operation table"
            )
    try:
        table = pq.read_table(pa.BufferReader(bytes(data)), use_threads=False)
    except (pa.ArrowException, OSError) as error:
        return FileResult(source.label, "rejected", f"unreadable as Parquet ({str(error).splitlines()[0]})")
    missing = [c for c in REQUIRED if c not in table.schema.names]
    if missing:
        reason = f"a Parquet file without an operation table's columns ({', '.join(missing)})"
        return FileResult(source.label, "foreign", reason)
    try:
        work = _Table(table, source.label)
    except (ValueError, pa.ArrowException) as error:
        return FileResult(source.label, "rejected", f"an operation table with unusable values ({error})")
    tables = tuple(work.write(rank, out) for rank in work.order)
    return FileResult(
        source.label,
        "ok",
        format="operation_table",
        sha256=stream.sha256,
        bytes=stream.raw_bytes,
        tables=tables,
        quality=tuple(work.quality),
        mesh_hint=work.mesh_hint(_meta(source)),
    )


class _Table:
    """An operation table as numpy columns, its mesh, and its groups."""

    def __init__(self, table: pa.Table, label: str) -> None:
        self._label = label
        self.quality: list[Quality] = []
        usable = self._usable(table)
        self._dp = _ints(usable, "dp_rank")
        self._stage = _ints(usable, "stage")
        self._step = _ints(usable, "step")
        self._types, self._type = np.unique(
            np.asarray(usable.column("optype").cast(pa.string()).to_pylist(), dtype=str), return_inverse=True
        )
        self._kinds = [kind_of(str(t)) for t in self._types]
        self._start = _nanoseconds(usable, "start_ts")
        self._dur = _nanoseconds(usable, "duration")
        self._mb = _ints(usable, "mb_id") if "mb_id" in table.schema.names else np.full(len(self._dp), -1)
        self.dp, self.pp = int(self._dp.max()) + 1, int(self._stage.max()) + 1
        given = _ints(usable, "rank") if "rank" in table.schema.names else self._stage * self.dp + self._dp
        self._rank = given
        self._rank_at = self._places()
        self.order = sorted(self._rank_at.values())
        self._lay_out_steps()
        self._ordinal = self._ordinals(_ints(usable, "seq_id") if "seq_id" in table.schema.names else None)
        self._groups: dict[tuple[int, ...], set[str]] = {}
        self._group, self._peer, self._seq = self._communication()

    def _usable(self, table: pa.Table) -> pa.Table:
        ok = np.ones(table.num_rows, bool)
        for name in ("start_ts", "duration"):
            values = to_numpy(table.column(name).cast(pa.float64()))
            ok &= np.isfinite(values) & (np.abs(np.nan_to_num(values)) < 1e9)
        for name in REQUIRED:
            ok &= to_numpy(table.column(name).is_valid())
        for name in ("dp_rank", "stage"):
            values = to_numpy(table.column(name).cast(pa.int64()).fill_null(ZERO))
            ok &= (values >= 0) & (values < 1 << 20)
        if not ok.all():
            self.quality.append(Quality("malformed_event", self._label, int((~ok).sum()), "row dropped"))
        if not ok.any():
            raise ValueError("no usable row")
        return table.filter(from_numpy(ok))

    def _places(self) -> dict[tuple[int, int], int]:
        places: dict[tuple[int, int], int] = {}
        for dp, stage, rank in sorted(
            {*zip(self._dp.tolist(), self._stage.tolist(), self._rank.tolist(), strict=True)}
        ):
            if places.setdefault((dp, stage), rank) != rank or rank < 0:
                raise ValueError(f"dp_rank {dp}, stage {stage} has more than one rank")
        if len(set(places.values())) < len(places):
            raise ValueError("one rank stands at two places of the mesh")
        return places

    def _lay_out_steps(self) -> None:
        """Put steps whose times overlap, because each starts at zero, one behind the other."""
        negative = self._dur < 0
        if negative.any():
            self.quality.append(Quality("negative_duration", self._label, int(negative.sum()), "taken as 0"))
            self._dur = np.maximum(self._dur, 0)
        steps = np.unique(self._step)
        spans = [(self._start[self._step == s], (self._start + self._dur)[self._step == s]) for s in steps]
        bounds = [(int(a.min()), int(b.max())) for a, b in spans]
        if all(before[1] <= after[0] for before, after in pairwise(bounds)):
            return
        at = 0
        for step, (first, last) in zip(steps, bounds, strict=True):
            self._start[self._step == step] += at - first
            at += last - first + GAP

    def _ordinals(self, seq: "np.ndarray[Any, Any] | None") -> "np.ndarray[Any, Any]":
        """Count each operation among those of its type, step and rank, by `seq_id` or by start."""
        if seq is not None and seq.min() >= 0 and seq.max() < MAX_ORDINAL:
            instances = np.stack([self._rank, self._step, self._type, seq], axis=1)
            if len(np.unique(instances, axis=0)) == len(seq):
                return seq  # a lost row must not shift those behind it
        key = self._start if seq is None else seq
        order = np.lexsort((self._start, key, self._type, self._step, self._rank))
        same = np.ones(len(order), bool)
        for column in (self._type, self._step, self._rank):
            same[1:] &= column[order][1:] == column[order][:-1]
        same[0] = False
        begins = np.maximum.accumulate(np.where(same, 0, np.arange(len(order))))
        ordinal = np.empty(len(order), np.int64)
        ordinal[order] = np.arange(len(order)) - begins
        return ordinal

    def _members(self, kind: _Kind, dp: int, stage: int) -> tuple[int, ...]:
        places = {
            "dp": [(d, stage) for d in range(self.dp)],
            "pp": [(dp, s) for s in range(self.pp)],
            "tp": [(dp, stage)],
            "embedding": [(dp, 0), (dp, self.pp - 1)],
        }[kind.axis or "tp"]
        return tuple(sorted({self._rank_at[p] for p in places if p in self._rank_at}))

    def _communication(self) -> "tuple[np.ndarray[Any, Any], np.ndarray[Any, Any], np.ndarray[Any, Any]]":
        """Group number, p2p peer and sequence number of each row, -1 where there is none.

        The k-th send of a stage in a step meets the k-th receive of its neighbour in that direction
        (Megatron's channels are first in, first out); a sequence number is unique within a group and equal on
        its members.
        """
        group, peer, seq = (np.full(len(self._dp), -1, np.int64) for _ in range(3))
        lanes = {name: i for i, name in enumerate(sorted({self._lane(k) for k in self._kinds}))}
        step = np.searchsorted(np.unique(self._step), self._step)
        depth = int(self._ordinal.max()) + 1
        numbers: dict[tuple[int, ...], int] = {}
        for (dp, stage), rank in self._rank_at.items():
            for code, kind in enumerate(self._kinds):
                if kind.collective is None:
                    continue
                rows = np.flatnonzero((self._rank == rank) & (self._type == code))
                if not len(rows):
                    continue
                members = self._members(kind, dp, stage)
                self._groups.setdefault(members, set()).add(kind.axis or "")
                group[rows] = numbers.setdefault(members, len(numbers))
                sender = stage
                if kind.toward:
                    ahead = kind.toward if kind.collective == "send" else -kind.toward
                    other = (stage + ahead) % self.pp
                    sender = stage if kind.collective == "send" else other
                    peer[rows] = self._rank_at.get((dp, other), -1)
                lane = lanes[self._lane(kind)] * self.pp + (sender if kind.toward else 0)
                seq[rows] = (step[rows] * len(lanes) * self.pp + lane) * depth + self._ordinal[rows]
        self._check_pairs(group, seq)
        return group, peer, seq

    @staticmethod
    def _lane(kind: _Kind) -> str:
        return kind.name.rsplit("-", 1)[0] + "-p2p" if kind.toward else kind.name

    def _check_pairs(self, group: Any, seq: Any) -> None:
        sends = np.isin(self._type, [i for i, k in enumerate(self._kinds) if k.collective == "send"])
        recvs = np.isin(self._type, [i for i, k in enumerate(self._kinds) if k.collective == "recv"])
        ends = [{*zip(group[rows].tolist(), seq[rows].tolist(), strict=True)} for rows in (sends, recvs)]
        alone = len(ends[0] ^ ends[1])
        if alone:
            detail = "sends or receives whose other side is not in the table"
            self.quality.append(Quality("unpaired_p2p", self._label, alone, detail))

    def write(self, rank: int, out: Path) -> RankTable:
        """Write the events of `rank`."""
        rows = np.flatnonzero(self._rank == rank)
        kinds = [self._kinds[i] for i in self._type[rows]]
        send = np.array([k.collective == "send" for k in kinds])
        recv = np.array([k.collective == "recv" for k in kinds])
        group, peer, seq, mb = (c[rows] for c in (self._group, self._peer, self._seq, self._mb))
        sizes = {i: len(m) for i, m in enumerate(self._groups)}
        stream = np.array([k.stream for k in kinds])
        columns: dict[str, Any] = {
            "ts": self._start[rows],
            "dur": self._dur[rows],
            "cat": ["kernel"] * len(rows),
            "name": [k.name for k in kinds],
            "pid": np.full(len(rows), rank),
            "tid": stream,
            "device": np.zeros(len(rows), np.int64),
            "stream": stream,
            "collective": [k.collective for k in kinds],
            "group_size": from_ints([sizes.get(int(g)) for g in group]),
            "group": _or_null(group),
            "pg_desc": [k.axis for k in kinds],
            "src_rank": _or_null(np.where(send & (peer >= 0), rank, np.where(recv, peer, -1))),
            "dst_rank": _or_null(np.where(recv & (peer >= 0), rank, np.where(send, peer, -1))),
            "seq": _or_null(seq),
            "micro_batch": _or_null(mb),
        }
        events = _events(columns, len(rows))
        table = in_order(
            pa.concat_tables([self._step_rows(rows, rank), events]).unify_dictionaries().combine_chunks()
        )
        path = out.with_name(f"{out.name}-{rank}")
        count = write_table(path, iter([table]))
        first, last = int(table.column("ts")[0].as_py()), int(table.column("ts")[-1].as_py())
        world = self.dp * self.pp
        groups = tuple(FileGroup(m, (), tuple(sorted(d))) for m, d in self._groups.items())
        return RankTable(rank, str(path), count, first, last, None, world, False, groups, {})

    def _step_rows(self, rows: Any, rank: int) -> pa.Table:
        steps = np.unique(self._step[rows])
        mine = [rows[self._step[rows] == s] for s in steps]
        starts = [int(self._start[r].min()) for r in mine]
        ends = [int((self._start + self._dur)[r].max()) for r in mine]
        columns = {
            "ts": np.array(starts),
            "dur": np.array(ends) - np.array(starts),
            "cat": ["user_annotation"] * len(mine),
            "name": [f"ProfilerStep#{s}" for s in steps.tolist()],
            "pid": np.full(len(mine), rank),
            "tid": np.full(len(mine), -1),
        }
        return _events(columns, len(mine))

    def mesh_hint(self, meta: dict[str, int]) -> dict[str, Any] | None:
        """Axes from inner to outer by the strides of the rank numbers; None where they have none."""
        sizes = {"tp": 1, "cp": 1, "dp": self.dp, "pp": self.pp}
        if meta.get("tp_size", 1) > 1:
            detail = f"a row stands for all {meta['tp_size']} tp ranks; ranks are counted without them"
            self.quality.append(Quality("folded_axis", self._label, meta["tp_size"], detail))
        for order, dp_stride, pp_stride in (("dp pp", 1, self.dp), ("pp dp", self.pp, 1)):
            if all(r == d * dp_stride + s * pp_stride for (d, s), r in self._rank_at.items()):
                return {"order": ["tp", "cp", *order.split()], "sizes": sizes}
        return None


def _ints(table: pa.Table, name: str) -> "np.ndarray[Any, Any]":
    column = table.column(name).cast(pa.int64()).fill_null(MINUS_ONE)
    return np.array(to_numpy(column), np.int64)


def _nanoseconds(table: pa.Table, name: str) -> "np.ndarray[Any, Any]":
    seconds = to_numpy(table.column(name).cast(pa.float64()))
    return np.asarray(np.rint(seconds * NS_PER_S), np.int64)


def _or_null(values: "np.ndarray[Any, Any]") -> pa.Array:
    return from_numpy(values, values < 0)


def _events(columns: dict[str, Any], count: int) -> pa.Table:
    arrays = []
    for field in EVENTS:
        values = columns.get(field.name)
        if values is None:
            arrays.append(pa.nulls(count, field.type))
        elif pa.types.is_dictionary(field.type):
            arrays.append(from_strings(values).dictionary_encode())
        else:
            array = values if isinstance(values, pa.Array) else from_numpy(values)
            arrays.append(array.cast(field.type))
    return pa.Table.from_arrays(arrays, schema=EVENTS)


def _meta(source: Source) -> dict[str, int]:
    """Integers of the `meta-*.yaml` beside `trace-*.parquet`, flat `key: value` lines."""
    if "://" in source.uri or not source.name.startswith("trace-"):
        return {}
    beside = Path(source.uri).with_name(source.name.replace("trace-", "meta-", 1)).with_suffix(".yaml")
    try:
        text = beside.read_text(encoding="utf-8", errors="replace")[: 1 << 16]
    except OSError:
        return {}
    return {m[1]: int(m[2]) for m in re.finditer(r"^(\w+):\s*(\d{1,9})\s*$", text, re.MULTILINE)}
