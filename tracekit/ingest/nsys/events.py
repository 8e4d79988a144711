"""Writes the events of the processes of one database: each table is read once, its rows go to the rank they are of.

Rows become what Kineto writes of the same events: kernels, copies and calls of the runtime joined by correlation,
NCCL's ranges as records of communication, torch's operator ranges as operators, other ranges as annotations.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

from tracekit.ingest.nsys.database import KERNELS, Database, Row, number
from tracekit.ingest.nsys.launches import Launch, join_launches
from tracekit.ingest.nsys.output import EXTERNAL, Output, call_columns, host_columns, step_columns, whole
from tracekit.ingest.nsys.payloads import CALLS
from tracekit.ingest.nsys.survey import NVTX, NVTX_COLUMNS, OPERATOR, is_nccl, name_column, process_of, span
from tracekit.thresholds.ingest import INT32_END

_COPIES: Final = {1: "HtoD", 2: "DtoH", 8: "DtoD", 10: "PtoP"}
_VERSION: Final = re.compile(r"_(?:v\d+|ptsz|ptds)+(?:_(?:ptsz|ptds))?$")
"""What the names of calls of the runtime end in: `cudaLaunchKernel_v7000`."""


def write_events(base: Database, outputs: Mapping[int, Output]) -> None:
    """Write the events of all processes of one database; UnusableDatabaseError passes through."""
    try:
        kinds = _kinds(base, outputs)
        launches = _runtime(base, outputs)
        for key, out in outputs.items():
            out.joined = join_launches(out.process.calls, launches[key], kinds[key])
            out.add(call_columns(out))
            out.add(step_columns(out))
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
    """Yield the rows of each process, as `shown` makes them, and count the rows that it drops."""
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
    """Return by process and correlation the names of NCCL's kernels."""
    kinds: dict[int, dict[int, str]] = {key: {} for key in outputs}
    known: dict[object, str] = {}
    for chunk in base.rows(KERNELS, ("globalPid", "correlationId", name_column(base))):
        for owner, correlation, title in chunk:
            key = process_of(owner)
            if title not in known:
                name = base.name(title)
                known[title] = name if is_nccl(name) else ""
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
        if when is None:
            return None
        return (*when, number(thread), number(correlation), _VERSION.sub("", base.name(name)) or "cuda")

    columns = ("start", "end", "globalTid", "correlationId", "nameId")
    for table in ("CUPTI_ACTIVITY_KIND_RUNTIME", "CUPTI_ACTIVITY_KIND_DRIVER"):
        for chunk in base.rows(table, columns):
            for out, rows in _by_process(outputs, chunk, 2, shown):
                key = out.process.number
                for start, _, thread, correlation, _ in rows:
                    if correlation in talking[key]:
                        found[key][number(thread)].append((whole(start), number(correlation)))
                begins, ends, threads, correlations, names = zip(*rows, strict=True)
                columns_of = host_columns(begins, ends, threads)
                cats = ["cuda_runtime" if str(n).startswith("cuda") else "cuda_driver" for n in names]
                out.add({**columns_of, "cat": cats, "name": list(names), "correlation": correlations})
    return found


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
                found = [calls.get(whole(correlation), -1) for correlation in correlations]
                out.add({
                    "ts": begins,
                    "dur": [whole(e) - whole(b) for b, e in zip(begins, ends, strict=True)],
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
            if rows := [row for row in made if row[4]]:
                begins, ends, threads, cats, names = zip(*rows, strict=True)
                out.add({**host_columns(begins, ends, threads), "cat": list(cats), "name": list(names)})
