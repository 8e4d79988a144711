"""One Kineto file to one table of events: scan, pair, repair, resolve groups, sort, write."""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tracekit.arrays import NO_INT32, ZERO, to_numpy
from tracekit.files.source import ByteStream, Source
from tracekit.ingest import identify
from tracekit.ingest.file_result import UNKNOWN_RANK, FileResult, RankTable, dump_among_traces
from tracekit.ingest.kineto.compiled.event_buffer import CompiledEvents
from tracekit.ingest.kineto.compiled.scanner_code import scanner
from tracekit.ingest.kineto.contents import ASCEND, EMPTY, MARKS_ONLY, MERGED, OTHER_PROGRAM, Contents
from tracekit.ingest.kineto.event_array import EventBuffer
from tracekit.ingest.kineto.event_fields import within_bounds
from tracekit.ingest.kineto.event_repair import Pairing, Repair, left_out, quality_rows
from tracekit.ingest.kineto.group_membership import FileGroups, MembershipCodes, listed_groups
from tracekit.ingest.kineto.scanner import EventsOf, ScanRecord, scan
from tracekit.ingest.write import EventWriter, begun_later
from tracekit.schema import EVENTS
from tracekit.thresholds.ingest import (
    BATCH_ROWS,
    LEAST_EVENT,
    MAX_MARKED_STEPS,
    MAX_TIME_NS,
    WORTH_SCANNING,
)

NARROW = (
    "device",
    "group_size",
    "src_rank",
    "dst_rank",
    "group_rank",
    "input_peer",
    "grid",
)  # 32 bits in EVENTS


@dataclass
class _Scanned:
    """The result of one pass over a file; the events themselves are with the writer."""

    record: ScanRecord
    repair: Repair
    codes: MembershipCodes = field(default_factory=MembershipCodes)
    first: int = int(np.iinfo(np.int64).max)  # start of the first event, ns since the file's base time
    last: int = int(np.iinfo(np.int64).min)  # start of the last event, likewise
    held: Contents = field(default_factory=Contents)


Reader = Callable[[ByteStream, Iterator[bytes], Source, Path], FileResult]


def compiled_reader(source: Source) -> Reader | None:
    """Return `read_kineto` with the compiled scanner; None where that is not loaded, or the file is not worth it.

    The reader raises Unrecognised, and leaves nothing, where `read_kineto` must read the file from its start.
    """
    scan = scanner()
    if scan is None or source.json_size < WORTH_SCANNING:
        return None
    rows = min(BATCH_ROWS, source.json_size // LEAST_EVENT)
    return partial(read_kineto, events_of=partial(CompiledEvents, scan=scan, rows=rows))


def read_kineto(
    stream: ByteStream,
    blocks: Iterator[bytes],
    source: Source,
    out: Path,
    events_of: EventsOf = EventBuffer,
) -> FileResult:
    """Read a JSON trace from `blocks`, decompressed by `stream`, into the Parquet file `out`.

    The result says why where there is no table; nothing is raised for what the file holds.
    """
    record = ScanRecord()
    scanned = _Scanned(record, Repair(record.issues))
    writer = EventWriter(out)
    try:
        _scan(scan(blocks, record, events_of), scanned, writer)
        groups = FileGroups(listed_groups(record.metadata.get("distributedInfo")))
        rank, why = _rank_of(scanned, groups, source)
        unknown_rank = "" if rank is not None or scanned.held.talks_to_others or _distributed(record) else why
        if record.failed is not None:
            return _not_scanned(stream, source.label, record, rank)
        if record.bare and not record.phases and not record.truncated:
            return FileResult(source.label, "foreign", "a JSON array without trace events", rank)
        no_rank = UNKNOWN_RANK.format(why) if why and not unknown_rank else ""
        reason = _nothing(scanned) or _of_others(scanned.held, unknown_rank) or _idle(scanned) or no_rank
        if reason:
            return FileResult(source.label, "rejected", reason, rank)
        result = _finish(stream, source, out, scanned, writer, (rank or 0, groups))
        return replace(result, rank=rank, reason=unknown_rank)
    finally:
        writer.discard()


def _scan(batches: Iterator[pa.RecordBatch], scanned: _Scanned, writer: EventWriter) -> None:
    """Hand all events of the file to the writer, paired and repaired one by one."""
    record = scanned.record
    pairing = Pairing(record.issues)
    for batch in batches:
        for paired in pairing.apply(batch):
            repaired = scanned.repair.batch(paired)
            if repaired.num_rows:
                ts = to_numpy(repaired.column("ts"))
                scanned.first = min(scanned.first, int(ts.min()))
                scanned.last = max(scanned.last, int(ts.max()))
                scanned.held.look(repaired)
                writer.add(_events(repaired, scanned.codes, record.issues))
    pairing.close()
    record.issues["several_devices"] = len(scanned.held.devices) if len(scanned.held.devices) > 1 else 0


def _events(batch: pa.RecordBatch, codes: MembershipCodes, issues: Counter[str]) -> pa.RecordBatch:
    """Make EVENTS of a SCANNED batch, with membership codes in the column for group numbers."""
    batch = within_bounds(batch, issues)
    columns = {name: batch.column(name) for name in batch.schema.names}
    for name in NARROW:
        columns[name] = columns[name].cast(pa.int32())
    columns["group"] = codes.encode(batch)
    columns["micro_batch"] = pa.nulls(len(batch), pa.int32())
    return pa.RecordBatch.from_arrays([columns[f.name] for f in EVENTS], schema=EVENTS)


def _rank_of(scanned: _Scanned, groups: FileGroups, source: Source) -> tuple[int | None, str]:
    """(the rank by the file's content, else by its name; the reason where neither gives one).

    Names may count the ranks of a node; the groups in which a rank takes part hold its number in the job.
    """
    rank = identify.rank_of_content(scanned.record.metadata)
    if rank is not None:
        return rank, ""
    named, why = identify.rank_of_name(source.name, source.folders)
    rank = groups.own_rank(scanned.codes, named)
    if rank is None:
        return named, why
    scanned.record.issues["rank_by_groups"] += rank != named
    return rank, ""


def _distributed(record: ScanRecord) -> bool:
    """Whether the file says that its process is one of several."""
    return isinstance(record.metadata.get("distributedInfo"), dict)


def _not_scanned(stream: ByteStream, label: str, record: ScanRecord, rank: int | None) -> FileResult:
    """The result for a file in which no event array was found."""
    reason = record.failed or ""
    if stream.damage is not None:
        return FileResult(label, "rejected", f"{stream.damage}, before any event", rank)
    start = record.metadata.get("start", b"")
    if b'"pg_config"' in start and b'"entries"' in start:
        return dump_among_traces(label, rank)
    return FileResult(label, "foreign" if reason.startswith("a JSON document") else "rejected", reason, rank)


def _of_others(held: Contents, unknown_rank: str) -> str:
    """Why events that PyTorch's profiler did not write for one rank yield no table; empty where they do."""
    if held.ascend:
        return ASCEND
    if held.merged is not None:
        return MERGED.format(held.merged)
    return OTHER_PROGRAM if unknown_rank and not held.torch else ""


def _nothing(scanned: _Scanned) -> str:
    """Why no event of the file is kept; empty where any is."""
    if scanned.first <= scanned.last:
        return ""
    cut = "it is cut off before its first whole event" if scanned.record.truncated else ""
    return cut or left_out(scanned.record.issues) or EMPTY


def _idle(scanned: _Scanned) -> str:
    """Why the file's events show no work of CPU or GPU; empty where they do, or its end is lost."""
    if scanned.held.works or scanned.record.truncated:
        return ""
    return MARKS_ONLY if scanned.held.steps else EMPTY


def _finish(
    stream: ByteStream, source: Source, out: Path, scanned: _Scanned, writer: EventWriter,
    owner: tuple[int, FileGroups],
) -> FileResult:  # fmt: skip
    """Write the events in order, with group numbers and absolute times, and describe the table of the `owner`."""
    record, repair, held = scanned.record, scanned.repair, scanned.held
    truncated = record.truncated or stream.damage is not None
    own_base = _base_time(record, scanned, truncated=truncated)
    base = own_base or 0
    rank, groups = owner
    numbers = groups.resolve(scanned.codes, record.issues)
    rows = writer.close(lambda table: begun_later(_numbered(repair.in_order(table), numbers), base))
    record.issues["trailing_bytes"] += stream.trailing
    if groups.found and not any(rank in ranks for ranks in groups.found):
        record.issues["rank_in_no_group"] += 1
    table = RankTable(
        rank,
        str(out),
        rows,
        scanned.first + base,
        scanned.last + base,
        identify.host_of(record.metadata, source.name),
        identify.world_size_of(record.metadata),
        truncated,
        groups.table(),
        {k: v for k, v in sorted(record.phases.items()) if k not in {"X", "B", "E"}},
        frozenset(held.steps if len(held.steps) <= MAX_MARKED_STEPS else ()),
        base=own_base,
        device=identify.device_of(record.metadata, held.devices),
    )
    return FileResult(
        source.label,
        "ok",
        rank=rank,
        sha256=stream.sha256,
        bytes=stream.raw_bytes,
        tables=(table,),
        quality=quality_rows(source.label, record.issues, truncated, stream.damage, rows),
    )


def _base_time(record: ScanRecord, scanned: _Scanned, *, truncated: bool) -> int | None:
    """`baseTimeNanoseconds` of the file, ns; None where its end is lost, or it puts an event beyond all times."""
    if "baseTimeNanoseconds" not in record.metadata and (truncated or record.issues["metadata_cut"]):
        return None
    base = record.metadata.get("baseTimeNanoseconds", 0)
    if type(base) is not int or max(abs(base + scanned.first), abs(base + scanned.last)) >= MAX_TIME_NS:
        record.issues["base_time_unusable"] += 1
        return None
    return base


def _numbered(table: pa.Table, numbers: pa.Array) -> pa.Table:
    """`table` with group numbers in place of membership codes."""
    codes = table.column("group").combine_chunks()
    index = pc.if_else(pc.less(codes, ZERO), NO_INT32, codes)
    group = numbers.take(index) if len(numbers) else pa.nulls(table.num_rows, pa.int32())
    at = table.schema.get_field_index("group")
    return table.set_column(at, EVENTS.field("group"), group)
