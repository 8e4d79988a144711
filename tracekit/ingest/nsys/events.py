"""Writes the events of the processes of one database: each table is read once, its rows go to the rank they are of.

Rows become what Kineto writes of the same events: kernels, copies and calls of the runtime joined by correlation, NCCL's
ranges as records of communication, torch's operator ranges as operators, other ranges as annotations.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np

from tracekit.ingest.file_result import FileGroup
from tracekit.ingest.nsys.database import KERNELS, Database, Row, number
from tracekit.ingest.nsys.launches import Joined, Launch, join_launches
from tracekit.ingest.nsys.payloads import CALLS
from tracekit.ingest.nsys.step_ranges import Spans
from tracekit.ingest.nsys.survey import (
    NVTX,
    NVTX_COLUMNS,
    OPERATOR,
    THREAD,
    NcclCall,
    Process,
    is_nccl,
    name_column,
    process_of,
    span,
)
from tracekit.ingest.write import EventWriter, event_table
from tracekit.rank_events.operation_names import MESSAGES, canonical_op
from tracekit.schema import DICT, EVENTS
from tracekit.thresholds.ingest import INT32_END, MAX_COUNT
from tracekit.thresholds.nsys import CHUNK

_COPIES: Final = {1: "HtoD", 2: "DtoH", 8: "DtoD", 10: "PtoP"}
_VERSION: Final = re.compile(r"_(?:v\d+|ptsz|ptds)+(?:_(?:ptsz|ptds))?$")
"""What the names of calls of the runtime end in: `cudaLaunchKernel_v7000`."""
_STEP: Final = "ProfilerStep#{}"
EXTERNAL: Final = 1 << 33
"""First number of a call among external ids: correlations, which are of 32 bits, never reach it."""
_WORDS: Final = frozenset(field.name for field in EVENTS if field.type == DICT)
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
            name: list(values) if name in _WORDS else np.array(values, np.int64) for name, values in columns.items()
        }
        starts = np.array(columns["ts"], np.int64) + self.base
        self.first, self.last = min(self.first, int(starts.min())), max(self.last, int(starts.max()))
        for batch in event_table(count, {**made, "ts": starts}).to_batches():
            self.writer.add(batch)

    def close(self) -> None:
        """Put the rows in order."""
        self.rows = self.writer.close(lambda table: table)


def write_events(base: Database, outputs: Mapping[int, Output]) -> None:
    """Write the events of all processes of one database; UnusableDatabase passes through."""
    try:
        kinds = _kinds(base, outputs)
        launches = _runtime(base, outputs)
        for key, out in outputs.items():
            out.joined = join_launches(out.process.calls, launches[key], kinds[key])
            out.add(_calls(out))
            out.add(_steps(out))
        _device(base, outputs)
        _ranges(base, outputs)
        for out in outputs.values():
            out.close()
    finally:
        for out in outputs.values():
            out.writer.discard()


def _by_process(
    outputs: Mapping[int, Output], chunk: Sequence[Row], owner: int, shown: Callable[[Row], Row | None]
) -> Iterator[tuple[Output, list[Row]]]:
    """Yield the rows of each process, as `shown` makes them; those that it drops are counted as wrong."""
    only = next(iter(outputs)) if len(outputs) == 1 else 0
    rows: dict[int, list[Row]] = defaultdict(list)
    for row in chunk:
        key = process_of(row[owner]) if type(row[owner]) is int else only
        out = outputs.get(key)
        if out is None:
            continue
        made = shown(row)
        if made is None:
            out.wrong += 1
        else:
            rows[key].append(made)
    for key, own in rows.items():
        yield outputs[key], own


def _kinds(base: Database, outputs: Mapping[int, Output]) -> dict[int, dict[int, str]]:
    """Return by process and correlation what the names of NCCL's kernels show."""
    kinds: dict[int, dict[int, str]] = {key: {} for key in outputs}
    known: dict[object, str] = {}
    for chunk in base.rows(KERNELS, ("globalPid", "correlationId", name_column(base))):
        for owner, correlation, title in chunk:
            key = process_of(owner)
            if title not in known:
                name = base.name(title)
                known[title] = canonical_op(name) if is_nccl(name) else ""
            if key in kinds and known[title] and type(correlation) is int:
                kinds[key][correlation] = known[title]
    return kinds


def _runtime(base: Database, outputs: Mapping[int, Output]) -> dict[int, dict[int, list[Launch]]]:
    """Write the calls of runtime and driver; return the launches of NCCL's kernels by process and thread."""
    talking = {key: set(out.process.talking) for key, out in outputs.items()}
    found: dict[int, dict[int, list[Launch]]] = {key: defaultdict(list) for key in outputs}

    def shown(row: Row) -> Row | None:
        start, end, thread, correlation, name = row
        when = span(start, end)
        return None if when is None else (*when, number(thread), number(correlation), _call_name(base.name(name)))

    columns = ("start", "end", "globalTid", "correlationId", "nameId")
    for table in ("CUPTI_ACTIVITY_KIND_RUNTIME", "CUPTI_ACTIVITY_KIND_DRIVER"):
        for chunk in base.rows(table, columns):
            for out, rows in _by_process(outputs, chunk, 2, shown):
                key = out.process.number
                for start, _, thread, correlation, _ in rows:
                    if correlation in talking[key]:
                        found[key][number(thread)].append((_whole(start), number(correlation)))
                begins, ends, threads, correlations, names = zip(*rows, strict=True)
                columns_of = _host(begins, ends, threads)
                cats = ["cuda_runtime" if str(n).startswith("cuda") else "cuda_driver" for n in names]
                out.add({**columns_of, "cat": cats, "name": list(names), "correlation": correlations})
    return found


def _call_name(name: str) -> str:
    return _VERSION.sub("", name) or "cuda"


def _whole(value: object) -> int:
    """Return a number that was checked before."""
    return value if type(value) is int else 0


def _host(begins: Sequence[object], ends: Sequence[object], threads: Sequence[object]) -> Columns:
    """Return the columns that all events of the host have."""
    lasting = [_whole(end) - _whole(begin) for begin, end in zip(begins, ends, strict=True)]
    return {
        "ts": list(begins),
        "dur": list(lasting),
        "pid": [number(t) >> 24 & THREAD if number(t) >= 0 else -1 for t in threads],
        "tid": [number(t) & THREAD if number(t) >= 0 else -1 for t in threads],
    }


def _calls(out: Output) -> Columns:
    """Return the NCCL calls of a process as records of communication."""
    calls = out.process.calls
    columns = _host([c.start for c in calls], [c.end for c in calls], [c.thread for c in calls])
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


def _steps(out: Output) -> Columns:
    """Return the marks of the steps as the profiler writes them."""
    spans = list(out.steps.values())
    thread = out.process.number | THREAD
    columns = _host([b for b, _ in spans], [e for _, e in spans], [thread] * len(spans))
    names: list[object] = [_STEP.format(n) for n in out.steps]
    return {**columns, "cat": ["user_annotation"] * len(spans), "name": names}


def _device(base: Database, outputs: Mapping[int, Output]) -> None:
    """Write kernels, copies and fillings of memory."""
    shared = ("start", "end", "globalPid", "deviceId", "streamId", "correlationId")
    tables = (
        (KERNELS, "kernel", name_column(base), "gridX"),
        ("CUPTI_ACTIVITY_KIND_MEMCPY", "gpu_memcpy", "copyKind", "bytes"),
        ("CUPTI_ACTIVITY_KIND_MEMSET", "gpu_memset", "value", "bytes"),
    )
    for table, cat, title, extra in tables:

        def shown(row: Row, cat: str = cat) -> Row | None:
            when = span(row[0], row[1])
            if when is None:
                return None
            device, stream, correlation = (number(value) for value in row[3:6])
            name = base.name(row[6]) if cat == "kernel" else _copy(cat, row[6])
            grid = number(row[7]) if cat == "kernel" else -1
            narrow = [value if value < INT32_END else -1 for value in (device, grid)]
            return (*when, narrow[0], stream, correlation, name or "kernel", narrow[1])

        for chunk in base.rows(table, (*shared, title, extra)):
            for out, rows in _by_process(outputs, chunk, 2, shown):
                begins, ends, devices, streams, correlations, names, grids = zip(*rows, strict=True)
                calls = out.joined.calls if cat == "kernel" else {}
                found = [calls.get(_whole(correlation), -1) for correlation in correlations]
                out.add({
                    "ts": begins,
                    "dur": [_whole(e) - _whole(b) for b, e in zip(begins, ends, strict=True)],
                    "cat": [cat] * len(rows),
                    "name": list(names),
                    "pid": devices, "tid": streams, "device": devices, "stream": streams,
                    "correlation": correlations, "grid": grids,
                    "external_id": [EXTERNAL + call if call >= 0 else -1 for call in found],
                })  # fmt: skip


def _copy(cat: str, kind: object) -> str:
    return "Memset (Device)" if cat == "gpu_memset" else f"Memcpy {_COPIES.get(number(kind), 'unknown')}"


def _ranges(base: Database, outputs: Mapping[int, Output]) -> None:
    """Write the ranges of the host that are no NCCL calls: torch's operators, and annotations."""

    def shown(row: Row) -> Row | None:
        when = span(row[0], row[1])
        if when is None:
            return None
        title = base.name(row[3] if row[3] is not None else row[4])
        operator = OPERATOR.search(title)
        name = title[: operator.start()] if operator else title
        if not name or title in CALLS or name.startswith(("ProfilerStep#", "ncclGroup", "ncclComm")):
            return (0, 0, 0, "", "")
        return (*when, number(row[2]), "cpu_op" if operator else "user_annotation", name)

    for chunk in base.rows(NVTX, NVTX_COLUMNS):
        for out, made in _by_process(outputs, chunk, 2, shown):
            rows = [row for row in made if row[4]]
            for at in range(0, len(rows), CHUNK):
                begins, ends, threads, cats, names = zip(*rows[at : at + CHUNK], strict=True)
                columns = _host(begins, ends, threads)
                out.add({**columns, "cat": list(cats), "name": list(names)})
