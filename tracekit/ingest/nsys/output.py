"""Where the events of one process go, and its rows that are known before its tables are read: NCCL's calls, steps."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np

from tracekit.ingest.file_result import FileGroup
from tracekit.ingest.nsys.database import number
from tracekit.ingest.nsys.launches import Joined
from tracekit.ingest.nsys.payloads import MESSAGES
from tracekit.ingest.nsys.step_ranges import Spans
from tracekit.ingest.nsys.survey import THREAD, NcclCall, Process
from tracekit.ingest.write import EventWriter, event_table
from tracekit.schema import DICT, EVENTS
from tracekit.thresholds.ingest import MAX_COUNT

_WORDS: Final = frozenset(field.name for field in EVENTS if field.type == DICT)
_STEP: Final = "ProfilerStep#{}"
EXTERNAL: Final = 1 << 33
"""First number of a call among external ids: correlations, which are of 32 bits, never reach it."""
Columns = dict[str, list[object]]


@dataclass
class Output:
    """What is written of one process. groups: by communicator its place in `listed`. first, last: starts, ns."""

    process: Process
    rank: int
    path: Path
    base: int
    steps: Spans
    groups: Mapping[int, int]
    listed: tuple[FileGroup, ...]
    peers: Mapping[tuple[int, int], int]
    joined: Joined = field(default_factory=Joined)
    rows: int = 0
    first: int = MAX_COUNT
    last: int = -MAX_COUNT
    wrong: int = 0

    def __post_init__(self) -> None:
        self.writer = EventWriter(self.path)

    def add(self, columns: Mapping[str, Sequence[object]]) -> None:
        """Write rows; `ts` counts from the database's zero."""
        count = len(columns["ts"])
        if not count:
            return
        made: dict[str, object] = {
            name: list(values) if name in _WORDS else np.array(values, np.int64)
            for name, values in columns.items()
        }
        starts = np.array(columns["ts"], np.int64) + self.base
        self.first, self.last = min(self.first, int(starts.min())), max(self.last, int(starts.max()))
        for batch in event_table(count, {**made, "ts": starts}).to_batches():
            self.writer.add(batch)

    def close(self) -> None:
        """Put the rows in order."""
        self.rows = self.writer.close(lambda table: table)


def whole(value: object) -> int:
    """Return a number that was checked before."""
    return value if type(value) is int else 0


def host_columns(begins: Sequence[object], ends: Sequence[object], threads: Sequence[object]) -> Columns:
    """Return the columns that all events of the host have."""
    lasting = [whole(end) - whole(begin) for begin, end in zip(begins, ends, strict=True)]
    return {
        "ts": list(begins),
        "dur": list(lasting),
        "pid": [number(t) >> 24 & THREAD if number(t) >= 0 else -1 for t in threads],
        "tid": [number(t) & THREAD if number(t) >= 0 else -1 for t in threads],
    }


def call_columns(out: Output) -> Columns:
    """Return the NCCL calls of a process as records of communication."""
    calls = out.process.calls
    columns = host_columns([c.start for c in calls], [c.end for c in calls], [c.thread for c in calls])
    ends = [_ends(out, call) for call in calls]
    sizes = [_sizes(call, _group_size(out, call)) for call in calls]
    joined = set(out.joined.calls.values())
    named = [f"0x{call.communicator:x}" if call.communicator else None for call in calls]
    return {
        **columns,
        "cat": ["cpu_op"] * len(calls),
        "name": ["record_param_comms"] * len(calls),
        "external_id": [EXTERNAL + call.id if call.id in joined else -1 for call in calls],
        "collective": [call.kind for call in calls],
        "dtype": ["Byte" if call.bytes >= 0 else None for call in calls],
        "in_nelems": [given for given, _ in sizes],
        "out_nelems": [received for _, received in sizes],
        "group_size": [_group_size(out, call) for call in calls],
        "group": [out.groups.get(call.communicator, -1) for call in calls],
        "pg_name": list(named),
        "comms_id": list(named),
        "src_rank": [source for source, _, _ in ends],
        "dst_rank": [goal for _, goal, _ in ends],
        "group_rank": [place for _, _, place in ends],
    }


def _group_size(out: Output, call: NcclCall) -> int:
    at = out.groups.get(call.communicator, -1)
    return len(out.listed[at].ranks) if at >= 0 else -1


def _ends(out: Output, call: NcclCall) -> tuple[int, int, int]:
    """Return source, destination and the peer's place of a message; -1 for what is unknown."""
    if call.kind not in MESSAGES:
        return -1, -1, -1
    peer = out.peers.get((call.communicator, call.peer), -1)
    if peer < 0 or peer == out.rank:
        return -1, -1, call.peer
    return (out.rank, peer, -1) if call.kind == "send" else (peer, out.rank, -1)


def _sizes(call: NcclCall, members: int) -> tuple[int, int]:
    """Return the bytes that a call gives and receives: NCCL records those of one member's share."""
    many = call.bytes * members if call.bytes >= 0 and members > 0 else -1
    if call.kind == "_all_gather_base":
        return call.bytes, many
    if call.kind == "_reduce_scatter_base":
        return many, call.bytes
    return call.bytes, call.bytes


def step_columns(out: Output) -> Columns:
    """Return the marks of the steps as the profiler writes them."""
    spans = list(out.steps.values())
    thread = out.process.number | THREAD
    columns = host_columns([b for b, _ in spans], [e for _, e in spans], [thread] * len(spans))
    names: list[object] = [_STEP.format(n) for n in out.steps]
    return {**columns, "cat": ["user_annotation"] * len(spans), "name": names}
