"""One Kineto file to one table of events: scan, pair, repair, resolve groups, sort, write."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tracekit.arrays import NO_INT32, ZERO, from_ints, from_numpy, to_numpy
from tracekit.files.source import ByteStream, Source
from tracekit.findings import Quality
from tracekit.ingest import identify
from tracekit.ingest.kineto.collective_args import ListedGroup, MembershipCodes, listed_groups, members_of
from tracekit.ingest.kineto.pairs import Pairing
from tracekit.ingest.kineto.repair import LIMIT, Repair
from tracekit.ingest.kineto.scan import ScanRecord, scan
from tracekit.ingest.result import FileGroup, FileResult, RankTable
from tracekit.ingest.write import EventWriter, to_int32
from tracekit.schema import EVENTS

FLIGHT_RECORDER = "this is a flight-recorder dump; give dumps apart from traces"
NARROW = ("device", "group_size", "src_rank", "dst_rank")  # 32 bits in EVENTS


@dataclass
class _Groups:
    """Process groups of one file in the order met; `resolve` turns membership codes into their numbers."""

    listed: list[ListedGroup]
    found: dict[tuple[int, ...], tuple[set[str], set[str]]] = field(default_factory=dict)

    def number(self, ranks: tuple[int, ...], name: str | None, desc: str | None) -> int:
        key = tuple(sorted(set(ranks)))
        names, descs = self.found.setdefault(key, (set(), set()))
        names.update({name} if name else ())
        descs.update({desc} if desc else ())
        return list(self.found).index(key)

    def resolve(self, codes: MembershipCodes, issues: Counter[str]) -> pa.Array:
        for group in self.listed:
            self.number(group.ranks, group.name, group.desc)
        numbers: list[int | None] = []
        for said, code in codes.known.items():
            ranks = members_of(said, self.listed)
            if ranks is None and said.names_a_group:
                issues["group_members_unknown"] += codes.counts[code]
            numbers.append(None if ranks is None else self.number(ranks, said.name, said.pg_desc))
        return from_ints(numbers, np.int32)

    def table(self) -> tuple[FileGroup, ...]:
        return tuple(FileGroup(r, tuple(sorted(n)), tuple(sorted(d))) for r, (n, d) in self.found.items())


def read_kineto(stream: ByteStream, blocks: Iterator[bytes], source: Source, out: Path) -> FileResult:
    """Read a JSON trace from `blocks`, decompressed by `stream`, into the Parquet file `out`."""
    record = ScanRecord()
    codes = MembershipCodes()
    writer = EventWriter(out)
    repair = Repair(record.issues)
    pairing = Pairing(record.issues)
    span = [2**63 - 1, -(2**63)]
    try:
        for batch in scan(blocks, record):
            for paired in pairing.apply(batch):
                repaired = repair.batch(paired)
                if repaired.num_rows:
                    ts = to_numpy(repaired.column("ts"))
                    span = [min(span[0], int(ts.min())), max(span[1], int(ts.max()))]
                    writer.add(_events(repaired, codes, record.issues))
        pairing.close()
        return _finish(stream, source, out, record, codes, writer, repair, span)
    finally:
        writer.discard()


def _events(batch: pa.RecordBatch, codes: MembershipCodes, issues: Counter[str]) -> pa.RecordBatch:
    """Make EVENTS of a SCANNED batch, with membership codes where group numbers will stand."""
    columns = {name: batch.column(name) for name in batch.schema.names}
    for name in NARROW:
        columns[name], lost = to_int32(columns[name])
        issues["integer_overflow"] += lost
    for name in ("src_rank", "dst_rank"):
        if columns[name].null_count < len(batch):
            columns[name] = pc.if_else(pc.less(columns[name], ZERO), NO_INT32, columns[name])
    columns["group"] = codes.encode(batch)
    columns["micro_batch"] = pa.nulls(len(batch), pa.int32())
    return pa.RecordBatch.from_arrays([columns[f.name] for f in EVENTS], schema=EVENTS)


def _finish(
    stream: ByteStream,
    source: Source,
    out: Path,
    record: ScanRecord,
    codes: MembershipCodes,
    writer: EventWriter,
    repair: Repair,
    span: list[int],
) -> FileResult:
    base = _base_time(record)
    rank = identify.rank_of_content(record.metadata)
    why = ""
    if rank is None:
        rank, why = identify.rank_of_name(source.name, source.parent)
    groups = _Groups(listed_groups(record.metadata.get("distributedInfo")))
    numbers = groups.resolve(codes, record.issues)

    def in_order(table: pa.Table) -> pa.Table:
        return _shift(_numbered(repair.in_order(table), numbers), base)

    common: dict[str, Any] = {"label": source.label, "rank": rank}
    if record.failed:
        return _refused(stream, record, common)
    if not record.phases and not record.truncated:
        reason = "a JSON array without trace events" if record.bare else "its `traceEvents` is empty"
        return FileResult(status="foreign" if record.bare else "rejected", reason=reason, **common)
    if rank is None:
        reason = f"its rank is unknown: {why}; rename it to say rank_<n>"
        return FileResult(status="rejected", reason=reason, **common)
    if span[0] > span[1]:
        reason = "it is cut off before its first whole event" if record.truncated else "it holds no events"
        return FileResult(status="rejected", reason=reason, **common)
    rows = writer.close(in_order)
    truncated = record.truncated or stream.damage is not None
    record.issues["trailing_bytes"] += stream.trailing
    if rank not in {r for g in groups.found for r in g} and groups.found:
        record.issues["rank_in_no_group"] += 1
    table = RankTable(
        rank,
        str(out),
        rows,
        span[0] + base,
        span[1] + base,
        identify.host_of(record.metadata, source.name),
        identify.world_size_of(record.metadata),
        truncated,
        groups.table(),
        {k: v for k, v in sorted(record.phases.items()) if k not in {"X", "B", "E"}},
    )
    quality = _quality(source.label, record.issues, truncated, stream.damage, rows)
    return FileResult(
        status="ok", sha256=stream.sha256, bytes=stream.raw_bytes, tables=(table,), quality=quality, **common
    )


def _base_time(record: ScanRecord) -> int:
    base = record.metadata.get("baseTimeNanoseconds", 0)
    if type(base) is not int or abs(base) >= LIMIT:
        record.issues["base_time_unusable"] += 1
        return 0
    return base


def _refused(stream: ByteStream, record: ScanRecord, common: dict[str, Any]) -> FileResult:
    if stream.damage is not None:
        return FileResult(status="rejected", reason=f"{stream.damage}, before any event", **common)
    start = record.metadata.get("start", b"")
    if b'"pg_config"' in start and b'"entries"' in start:
        return FileResult(status="foreign", reason=FLIGHT_RECORDER, **common)
    foreign = (record.failed or "").startswith("a JSON document")
    return FileResult(status="foreign" if foreign else "rejected", reason=record.failed or "", **common)


def _numbered(table: pa.Table, numbers: pa.Array) -> pa.Table:
    codes = table.column("group").combine_chunks()
    index = pc.if_else(pc.less(codes, ZERO), NO_INT32, codes)
    group = numbers.take(index) if len(numbers) else pa.nulls(table.num_rows, pa.int32())
    at = table.schema.get_field_index("group")
    return table.set_column(at, EVENTS.field("group"), group)


def _shift(table: pa.Table, base: int) -> pa.Table:
    if not base:
        return table
    shifted = from_numpy(to_numpy(table.column("ts")) + np.int64(base))
    return table.set_column(0, EVENTS.field("ts"), shifted)


SAID = {
    "absurd_duration": "longer than a day; ended with the recording",
    "absurd_timestamp": "start out of range; event dropped",
    "bad_utf8": "bytes replaced",
    "base_time_unusable": "baseTimeNanoseconds ignored",
    "duplicate_key": "the last value counts",
    "group_members_unknown": "member list cut, and neither start and stride nor pg_config complete it",
    "integer_overflow": "value dropped",
    "malformed_arguments": "`args` is no object; arguments dropped",
    "malformed_event": "no valid JSON object; skipped",
    "metadata_cut": "too much text behind the events",
    "missing_duration": "taken as 0",
    "missing_timestamp": "event dropped",
    "negative_duration": "taken as 0",
    "nested_communication_record": "the outer of two nested records stays",
    "non_integer_value": "value dropped",
    "not_a_number": "NaN or infinite; taken as missing",
    "oversized_event": "skipped",
    "overlapping_kernels": "on one stream, by more than 1 us; kept as recorded",
    "rank_in_no_group": "no process group of the file holds the file's own rank",
    "trailing_bytes": "bytes behind the compressed data; ignored",
    "unpaired_begin_end": "begin without end, or end without begin; dropped",
}


def _quality(
    label: str, issues: Counter[str], truncated: bool, damage: str | None, rows: int
) -> tuple[Quality, ...]:
    found = [
        Quality(kind, label, count, SAID.get(kind, "")) for kind, count in sorted(issues.items()) if count > 0
    ]
    if truncated:
        detail = damage or "the file ends inside its events"
        found.insert(0, Quality("truncated_file", label, 1, detail, kept_events=rows))
    return tuple(found)
