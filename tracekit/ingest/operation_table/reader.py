"""One operation table to one event table per rank, with its steps laid one after another: no time lies between them."""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tracekit.arrays import from_numpy, from_strings
from tracekit.disjoint_sets import DisjointSets
from tracekit.files.source import ByteStream, Source
from tracekit.findings import Quality
from tracekit.ingest.file_result import FileGroup, FileResult, RankTable
from tracekit.ingest.operation_table.communication import Communication, communication, unpaired
from tracekit.ingest.operation_table.layout import Layout, layout_of
from tracekit.ingest.operation_table.table import REQUIRED, OperationTable, columns_of
from tracekit.ingest.write import in_order, write_table
from tracekit.schema import EVENTS
from tracekit.thresholds.ingest import CLOCK_GAIN, MAX_TABLE_BYTES, MAX_TIME_NS, STEP_GAP_NS
from tracekit.units import I64, NS_PER_MS, NS_PER_US


@dataclass(frozen=True)
class _Link:
    """The link of two ranks: `later`, the lead of the second clock (ns), and the number of `ends` that show it."""

    later: float
    ends: int


def plain_line(error: Exception) -> str:
    """Return the first line of an error, short enough for a reason."""
    return (str(error).splitlines() or [type(error).__name__])[0][:200]


def read_operations(stream: ByteStream, blocks: Iterator[bytes], source: Source, out: Path) -> FileResult:
    """Read an operation table from `blocks` into one Parquet file a rank, named after `out`.

    The result says why if the file is not an operation table, or holds unusable values; nothing is raised.
    """
    data = bytearray()
    for block in blocks:
        data += block
        if len(data) > MAX_TABLE_BYTES:
            reason = "a Parquet file of more than 2 GiB, so no operation table"
            return FileResult(source.label, "rejected", reason)
    try:
        parquet = pq.read_table(pa.BufferReader(bytes(data)), use_threads=False)
    except (pa.ArrowException, OSError) as error:
        return FileResult(source.label, "rejected", f"unreadable as Parquet ({plain_line(error)})")
    missing = [c for c in REQUIRED if c not in parquet.schema.names]
    if missing:
        reason = f"a Parquet file without an operation table's columns ({', '.join(missing)})"
        return FileResult(source.label, "foreign", reason)
    try:
        table, found, layout, quality = _understood(parquet, source.label)
    except (ValueError, OverflowError, pa.ArrowException) as error:
        return FileResult(
            source.label, "rejected", f"an operation table with unusable values ({plain_line(error)})"
        )
    places = table.dp_size * table.pp_size
    world = layout.world_size if layout else places if max(table.ranks) < places else None
    return FileResult(
        source.label,
        "ok",
        sha256=stream.sha256,
        bytes=stream.raw_bytes,
        tables=tuple(write_ranks(table, found, world, out)),
        quality=tuple(quality),
        mesh_hint=layout.hint if layout else None,
    )


def _understood(
    parquet: pa.Table, label: str
) -> tuple[OperationTable, Communication, Layout | None, list[Quality]]:
    """The operations on one line of time, how they meet, the job's layout, and what was dropped or repaired.

    Raises ValueError, OverflowError or an Arrow error where values are unusable.
    """
    table, quality = columns_of(parquet, label)
    layout = layout_of(table.rank_at, table.dp_size, table.pp_size)
    found = communication(table, layout)
    table, clocks = on_one_clock(table, found, label)
    return one_after_another(table), found, layout, [*quality, *clocks, *unpaired(table, found, label)]


# Clocks of the ranks of an operation table, aligned by operations that end on several ranks at once.
#
# Members leave a collective together, and both ends of a message end when it has arrived. So the median
# difference of the ends that two ranks share is the difference of their clocks. A table with clocks that
# agree stays as it is.


def on_one_clock(
    table: OperationTable, found: Communication, label: str
) -> tuple[OperationTable, list[Quality]]:
    """Return the table with all starts on one clock, and a quality row with the difference of the clocks.

    label: the file. Unchanged where one constant a rank does not bring common ends nearer to each other.
    """
    links = _links(table, found)
    ahead = _along_tree(table.ranks, links)
    before = _miss(links, dict.fromkeys(ahead, 0.0))
    after = _miss(links, ahead)
    if not links or after >= CLOCK_GAIN * before:
        return table, []
    ranks = np.array(sorted(ahead), np.int64)
    shift = np.rint([ahead[r] for r in ranks.tolist()]).astype(np.int64)
    start = table.start - shift[np.searchsorted(ranks, table.rank)]
    if np.ptp(shift) < NS_PER_MS:
        return replace(table, start=start), []
    sentence = (
        f"clocks of ranks differ by up to {np.ptp(shift) / NS_PER_MS:.1f} ms; set to one by common ends of "
        f"collectives and messages, which then differ by {after / NS_PER_US:.1f} µs"
    )
    return replace(table, start=start), [Quality("clocks_aligned", label, int((shift != 0).sum()), sentence)]


def _links(table: OperationTable, found: Communication) -> dict[tuple[int, int], _Link]:
    """Return the links between neighbouring members of matched operations.

    Both directions of messages count equally, since one of them ends later.
    """
    channel = np.unique([k.channel for k in table.kinds], return_inverse=True)[1][table.kind]
    rows = np.flatnonzero(found.group >= 0)
    rows = rows[np.lexsort((table.rank[rows], found.seq[rows], found.group[rows]))]
    one, two = rows[:-1], rows[1:]
    meet = (found.group[one] == found.group[two]) & (found.seq[one] == found.seq[two])
    one, two = one[meet], two[meet]
    end = table.start + table.dur
    order = np.lexsort((channel[one], table.rank[two], table.rank[one]))
    one, two = one[order], two[order]
    keys = np.stack([table.rank[one], table.rank[two], channel[one]], axis=1)
    cuts = np.flatnonzero((np.diff(keys, axis=0) != 0).any(axis=1)) + 1
    later: dict[tuple[int, int], list[tuple[float, int]]] = defaultdict(list)
    for a, b in zip(np.split(one, cuts), np.split(two, cuts), strict=True):
        if len(a):
            pair = int(table.rank[a[0]]), int(table.rank[b[0]])
            later[pair].append((float(np.median(end[b] - end[a])), len(a)))
    return {p: _Link(float(np.mean([v for v, _ in s])), sum(n for _, n in s)) for p, s in later.items()}


def _along_tree(ranks: list[int], links: Mapping[tuple[int, int], _Link]) -> dict[int, float]:
    """Return the lead of each rank's clock over that of the first rank it is linked with, ns.

    The links with the most ends make the tree.
    """
    joined, beside = DisjointSets(ranks), defaultdict(list)
    for a, b in sorted(links, key=lambda pair: (-links[pair].ends, pair)):
        if joined.join(a, b):
            beside[a].append((b, links[a, b].later))
            beside[b].append((a, -links[a, b].later))
    ahead: dict[int, float] = {}
    for root in ranks:
        todo = [] if root in ahead else [root]
        ahead.setdefault(root, 0.0)
        while todo:
            here = todo.pop()
            for there, later in beside[here]:
                if there not in ahead:
                    ahead[there] = ahead[here] + later
                    todo.append(there)
    return ahead


def _miss(links: Mapping[tuple[int, int], _Link], ahead: Mapping[int, float]) -> float:
    """Return the mean over the links of the remaining clock difference, ns; 0 without any link."""
    left = [abs(link.later - ahead[b] + ahead[a]) for (a, b), link in links.items()]
    return float(np.mean(left)) if left else 0.0


# Rows of an operation table as events: one sorted Parquet file per rank.
#
# Send and receive durations include the wait for the other side; a send that is launched together with a
# receive carries the receive's times. A message without a counterpart, at an end of an interleaved pipeline,
# is not communication.


def write_ranks(
    table: OperationTable, found: Communication, world: int | None, out: Path
) -> Iterator[RankTable]:
    """Write the events of every rank, of a job of `world` ranks, into Parquet files named after `out` and the rank."""
    groups = tuple(FileGroup(m, (), tuple(sorted(axes))) for m, axes in found.groups.items())
    sizes = np.array([len(m) for m in found.groups] or [0], np.int64)
    order = np.argsort(table.rank, kind="stable")
    for rows in np.split(order, np.flatnonzero(np.diff(table.rank[order])) + 1):
        rank = int(table.rank[rows[0]])
        path = out.with_name(f"{out.name}-{rank}")
        parts = [_step_rows(table, rows, rank), _operation_rows(table, found, sizes, rows, rank)]
        events = in_order(pa.concat_tables(parts).unify_dictionaries().combine_chunks())
        count = write_table(path, iter([events]))
        first, last = int(events.column("ts")[0].as_py()), int(events.column("ts")[-1].as_py())
        yield RankTable(rank, str(path), count, first, last, None, world, False, groups, {})


def _operation_rows(
    table: OperationTable, found: Communication, sizes: I64, rows: I64, rank: int
) -> pa.Table:
    """One event per operation of the rank."""
    kinds = [table.kinds[i] for i in table.kind[rows]]
    send = np.array([k.collective == "send" for k in kinds])
    recv = np.array([k.collective == "recv" for k in kinds])
    group, peer = found.group[rows], found.peer[rows]
    stream = np.array([k.stream for k in kinds])
    return _events(
        {
            "ts": table.start[rows],
            "dur": table.dur[rows],
            "cat": ["kernel"] * len(rows),
            "name": [k.name for k in kinds],
            "pid": np.full(len(rows), rank),
            "tid": stream,
            "device": np.zeros(len(rows), np.int64),
            "stream": stream,
            "correlation": _or_null(found.served.computation[rows]),
            "collective": [k.collective if g >= 0 else None for k, g in zip(kinds, group, strict=True)],
            "group_size": from_numpy(sizes[np.maximum(group, 0)], group < 0),
            "group": _or_null(group),
            "pg_desc": [k.axis if g >= 0 else None for k, g in zip(kinds, group, strict=True)],
            "src_rank": _or_null(np.where(send & (peer >= 0), rank, np.where(recv, peer, -1))),
            "dst_rank": _or_null(np.where(recv & (peer >= 0), rank, np.where(send, peer, -1))),
            "seq": _or_null(found.seq[rows]),
            "micro_batch": _or_null(table.micro_batch[rows]),
        },
        len(rows),
    )


def _step_rows(table: OperationTable, rows: I64, rank: int) -> pa.Table:
    """One event per step of the rank, as long as the step of all ranks, named as the profiler names steps."""
    spans = spans_of(table)
    mine = np.searchsorted(spans.numbers, np.unique(table.step[rows]))
    columns = {
        "ts": spans.first[mine],
        "dur": (spans.last - spans.first)[mine],
        "cat": ["user_annotation"] * len(mine),
        "name": [f"ProfilerStep#{s}" for s in spans.numbers[mine].tolist()],
        "pid": np.full(len(mine), rank),
        "tid": np.full(len(mine), -1),
    }
    return _events(columns, len(mine))


def _or_null(values: I64) -> pa.Array:
    return from_numpy(values, values < 0)


def _events(columns: dict[str, Any], count: int) -> pa.Table:
    """EVENTS of columns (lists of text, numpy or Arrow arrays), absent ones null."""
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


@dataclass(frozen=True)
class Spans:
    """Steps of a table: their numbers, sorted, and on any rank the first start and the last end of each, ns."""

    numbers: I64
    first: I64
    last: I64


def spans_of(table: OperationTable) -> Spans:
    """Return the span of each step, from the first start to the last end on any rank; shape (steps,)."""
    numbers, of = np.unique(table.step, return_inverse=True)
    first, last = np.full(len(numbers), MAX_TIME_NS), np.full(len(numbers), -MAX_TIME_NS)
    np.minimum.at(first, of, table.start)
    np.maximum.at(last, of, table.start + table.dur)
    return Spans(numbers, first, last)


def one_after_another(table: OperationTable) -> OperationTable:
    """Return the table with its steps in order of their numbers, each right behind the one before it.

    Raises ValueError where the steps last longer than any job.
    """
    spans = spans_of(table)
    lasts = (spans.last - spans.first + STEP_GAP_NS).astype(np.float64)
    if abs(float(spans.first[0])) + lasts.sum() >= MAX_TIME_NS:
        raise ValueError("its steps last longer than any job")
    begins = spans.first[0] + np.concatenate([[0], np.cumsum(spans.last - spans.first + STEP_GAP_NS)[:-1]])
    moved = (begins - spans.first)[np.searchsorted(spans.numbers, table.step)]
    return replace(table, start=table.start + moved)
