"""Repairs of single events, each counted: durations, times out of range, nested communication records."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tracekit.arrays import FALSE, ZERO, from_numpy, from_strings, null_as, to_numpy
from tracekit.findings import Quality
from tracekit.ingest.kineto.scanned_columns import from_rows
from tracekit.thresholds.ingest import LONGEST_NS, MAX_OVERLAP_NS, MAX_TIME_NS

_CALL = [
    "collective",
    "seq",
    "in_nelems",
    "src_rank",
    "dst_rank",
]  # the columns that distinguish one communication call from another
COMMS_RECORD, KERNEL = from_strings(["record_param_comms", "kernel"])


@dataclass
class Repair:
    """Counts into `issues`; call `batch` on every batch, `in_order` on the sorted chunks."""

    issues: Counter[str]
    window_end: int = int(np.iinfo(np.int64).min)  # last sane end of an event
    _outer: dict[tuple[int | None, int | None], tuple[int, list[object]]] = field(default_factory=dict)
    _busy: dict[tuple[int, int], int] = field(default_factory=dict)

    def batch(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return `batch` with missing and negative durations as 0, without events that start out of range."""
        ts = to_numpy(batch.column("ts"))
        wild = np.abs(ts) >= MAX_TIME_NS
        if wild.any():
            self.issues["absurd_timestamp"] += int(wild.sum())
            batch = batch.filter(from_numpy(~wild))
            ts = to_numpy(batch.column("ts"))
        missing = batch.column("dur").null_count
        self.issues["missing_duration"] += missing
        dur = to_numpy(batch.column("dur").fill_null(ZERO))
        negative = dur < 0
        if missing or negative.any():
            self.issues["negative_duration"] += int(negative.sum())
            dur = np.maximum(dur, 0)
            batch = batch.set_column(1, "dur", from_numpy(dur))
        sane = dur <= LONGEST_NS
        self.issues["absurd_duration"] += int((~sane).sum())
        if sane.any():
            self.window_end = max(self.window_end, int((ts[sane] + dur[sane]).max()))
        return batch

    def in_order(self, table: pa.Table) -> pa.Table:
        """Return a sorted chunk with absurd durations cut at the window's end, and outer communication records only."""
        dur = to_numpy(table.column("dur"))
        if dur.max(initial=0) > LONGEST_NS:
            room = np.maximum(self.window_end - to_numpy(table.column("ts")), 0)
            dur = np.where(dur > LONGEST_NS, np.minimum(dur, room), dur)
            table = table.set_column(1, table.schema.field("dur"), from_numpy(dur))
        self._count_overlaps(table)
        return self._without_nested(table)

    def _without_nested(self, table: pa.Table) -> pa.Table:
        """`table` without communication records inside another record of the same call on the same thread."""
        rows = np.flatnonzero(
            to_numpy(pc.fill_null(pc.equal(table.column("name"), COMMS_RECORD), fill_value=FALSE))
        )
        if not len(rows):
            return table
        few = table.select(["ts", "dur", "pid", "tid", *_CALL]).take(from_numpy(rows))
        inner = []
        columns = [c.to_pylist() for c in few.columns]
        for row, ts, dur, pid, tid, *call in zip(rows.tolist(), *columns, strict=True):
            end, outer = self._outer.get((pid, tid), (ts - 1, call))
            if ts + dur > end:
                self._outer[pid, tid] = ts + dur, call
            elif _same_call(outer, call):
                inner.append(row)
        if not inner:
            return table
        self.issues["nested_communication_record"] += len(inner)
        keep = np.ones(table.num_rows, bool)
        keep[inner] = False
        return table.filter(from_numpy(keep))

    def _count_overlaps(self, table: pa.Table) -> None:
        """Count the kernels of one stream that overlap by more than 1 µs: they should run one after another."""
        rows = np.flatnonzero(to_numpy(pc.fill_null(pc.equal(table.column("cat"), KERNEL), fill_value=FALSE)))
        if not len(rows):
            return
        columns = ("ts", "dur", "device", "stream")
        ts, dur, device, stream = (null_as(table.column(name), -1)[rows] for name in columns)
        order = np.lexsort((np.arange(len(ts)), stream, device))
        ts, end = ts[order], (ts + dur)[order]
        change = np.flatnonzero(np.diff(device[order]) | np.diff(stream[order])) + 1
        for lo, hi in zip([0, *change], [*change, len(ts)], strict=True):
            key = (int(device[order][lo]), int(stream[order][lo]))
            before = self._busy.get(key, -MAX_TIME_NS)
            reach = np.maximum.accumulate(np.concatenate(([before], end[lo:hi])))
            self.issues["overlapping_kernels"] += int((ts[lo:hi] < reach[:-1] - MAX_OVERLAP_NS).sum())
            self._busy[key] = int(reach[-1])


def _same_call(outer: list[object], inner: list[object]) -> bool:
    """Whether two records may be of one call: all that both of them hold is equal."""
    return all(a == b for a, b in zip(outer, inner, strict=True) if a is not None and b is not None)


# Pairs begin and end events (ph B and E) of a thread into events with a duration.

COMPLETE = from_strings(["X"])[0]


class Pairing:
    """Open begin events by thread, in file order."""

    def __init__(self, issues: Counter[str]) -> None:
        self._open: dict[tuple[Any, Any], list[dict[str, Any]]] = {}
        self._issues = issues

    def apply(self, batch: pa.RecordBatch) -> list[pa.RecordBatch]:
        """Return the batch's complete events, and the events that its end events complete."""
        complete = pc.equal(batch.column("ph"), COMPLETE)
        if complete.true_count == batch.num_rows:
            return [batch]
        done = [row for half in batch.filter(pc.invert(complete)).to_pylist() if (row := self._half(half))]
        batches = [batch.filter(complete)]
        return [*batches, from_rows(done)] if done else batches

    def _half(self, row: dict[str, Any]) -> dict[str, Any] | None:
        stack = self._open.setdefault((row["pid"], row["tid"]), [])
        if row["ph"] == "B":
            stack.append(row)
            return None
        names = [begin["name"] for begin in stack]
        if not stack or (row["name"] is not None and row["name"] not in names):
            self._issues["unpaired_begin_end"] += 1
            return None
        while row["name"] is not None and stack[-1]["name"] != row["name"]:
            stack.pop()
            self._issues["unpaired_begin_end"] += 1
        begin = stack.pop()
        return begin | {"ph": "X", "dur": row["ts"] - begin["ts"]}

    def close(self) -> None:
        """Count begin events without an end, at the end of the file."""
        left = sum(len(stack) for stack in self._open.values())
        if left:
            self._issues["unpaired_begin_end"] += left


# The repairs and doubts of a Kineto file as quality rows.

SAID = {
    "absurd_duration": "longer than a day; ended with the recording",
    "absurd_timestamp": "start out of range; event dropped",
    "bad_utf8": "bytes replaced",
    "base_time_unusable": "baseTimeNanoseconds ignored",
    "duplicate_key": "the last value counts",
    "group_members_unknown": "member list cut, and neither start and stride nor pg_config complete it",
    "integer_overflow": "value dropped",
    "malformed_arguments": "`args` is not an object; arguments dropped",
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
    "rank_by_groups": "its name gives another number or none; its process groups show the rank in the job",
    "rank_in_no_group": "no process group of the file holds the file's own rank",
    "several_devices": "its process ran kernels on so many devices, which are read as one",
    "trailing_bytes": "bytes behind the compressed data; ignored",
    "value_out_of_range": "no job has such a number; value dropped",
    "unpaired_begin_end": "begin without end, or end without begin; dropped",
}
"""Detail of each kind of repair; the scanner and its helpers count them by these names."""
DROPPED = {
    "absurd_timestamp": "that start beyond every clock",
    "malformed_event": "that are no valid JSON objects",
    "missing_timestamp": "without a start in microseconds that a clock can show",
    "oversized_event": "too large to be read",
    "unpaired_begin_end": "that begin without an end, or end without a begin",
}
"""The repairs that leave an event out, as words behind their number."""


def left_out(issues: Counter[str]) -> str:
    """Return why no event of a file is kept: what was left out; empty where nothing was."""
    found = [f"{issues[kind]} events {said}" for kind, said in DROPPED.items() if issues[kind]]
    if not found:
        return ""
    return f"no event of it can be used: it has {', '.join(found)}; export it again with torch.profiler"


def quality_rows(
    label: str, issues: Counter[str], truncated: bool, damage: str | None, rows: int
) -> tuple[Quality, ...]:
    """Return one row per kind in `issues`, sorted; a truncated file comes first.

    damage: what is wrong with the compressed data, if anything is. rows: events kept.
    """
    found = [
        Quality(kind, label, count, SAID.get(kind, "")) for kind, count in sorted(issues.items()) if count > 0
    ]
    if truncated:
        detail = damage or "the file ends inside its events"
        found.insert(0, Quality("truncated_file", label, 1, detail, kept_events=rows))
    return tuple(found)
