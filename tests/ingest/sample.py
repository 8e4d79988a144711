"""Small traces in the forms that occur, and a slow, plain reader of them to compare with."""

import gzip
import json
import os
from collections.abc import Iterator
from decimal import ROUND_HALF_EVEN, Decimal
from pathlib import Path
from typing import Any

import pytest

from tracekit.ingest.kineto.scanner import ScanRecord, scan

DATA = Path(os.environ.get("TRACEKIT_SHARED_DATA") or Path(__file__).parents[2].parent / "shared" / "data")
needs_data = pytest.mark.skipif(not DATA.is_dir(), reason=f"recordings made by others are absent ({DATA})")

LAYOUTS: dict[str, Any] = {
    "one line": json.dumps,
    "dense": lambda doc: json.dumps(doc, separators=(",", ":")),
    "indented": lambda doc: json.dumps(doc, indent=2),
    "sorted keys": lambda doc: json.dumps(doc, sort_keys=True),
}


def kineto_text(doc: dict[str, Any]) -> str:
    """Kineto's own pretty-printing: events at two spaces, their keys at four, metadata around."""
    events = ",\n".join(
        "  {\n    " + json.dumps(e)[1:-1].replace(', "args": ', ',\n    "args": ') + "\n  }"
        for e in doc["traceEvents"]
    )
    around = {k: v for k, v in doc.items() if k != "traceEvents"}
    head = json.dumps(around)[1:-1]
    return (
        "\n{\n"
        + (head + ",\n" if head else "")
        + '  "traceEvents": [\n'
        + events
        + '\n  ],\n  "traceName": "x"\n}\n'
    )


LAYOUTS["kineto"] = kineto_text


def event(i: int, **more: Any) -> dict[str, Any]:
    """A cpu_op of 5.25 us, ten after the one before."""
    base = {"ph": "X", "cat": "cpu_op", "name": f"op{i % 7}", "pid": 11, "tid": 12, "ts": 1000.125 + 10 * i}
    return base | {"dur": 5.25, "args": {"External id": i}} | more


def kernel(i: int, **args: Any) -> dict[str, Any]:
    """A kernel on stream 7 with arguments of its own."""
    more = {"device": 0, "stream": 7, "correlation": 500 + i} | args
    return event(i, cat="kernel", name="gemm", pid=0, tid=7, args=more)


def noise() -> list[dict[str, Any]]:
    """Events that are not stored: metadata, flows, instants, counters."""
    return [
        {"name": "process_name", "ph": "M", "ts": 1, "pid": 11, "tid": 0, "args": {"name": "python"}},
        {"ph": "s", "id": 3, "pid": 11, "tid": 12, "ts": 1001, "cat": "ac2g", "name": "ac2g"},
        {"ph": "f", "id": 3, "pid": 0, "tid": 7, "ts": 1002, "cat": "ac2g", "name": "ac2g", "bp": "e"},
        {
            "ph": "i",
            "cat": "x",
            "s": "t",
            "name": "[memory]",
            "pid": 11,
            "tid": 12,
            "ts": 1003,
            "args": {"a": [1]},
        },
        {"ph": "C", "name": "bytes", "pid": 11, "ts": 1004, "args": {"n": 1}},
    ]


def document(events: list[dict[str, Any]] | None = None, rank: int | None = 0, **more: Any) -> dict[str, Any]:
    """A trace of world size 4."""
    info = {"backend": "nccl", "world_size": 4} | ({} if rank is None else {"rank": rank})
    listed = [event(i) for i in range(6)] if events is None else events
    return {"schemaVersion": 1, "distributedInfo": info, **more, "traceEvents": listed}


def put(path: Path, doc: Any) -> str:
    """Write a document, text or bytes, gzipped where the name says so; returns the path."""
    data = doc if isinstance(doc, bytes) else (doc if isinstance(doc, str) else json.dumps(doc)).encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(data, 1, mtime=0) if path.suffix == ".gz" else data)
    return str(path)


def chunks(data: bytes, size: int) -> Iterator[bytes]:
    """`data` in blocks of `size`."""
    return (data[i : i + size] for i in range(0, len(data), size))


def scanned(data: bytes, size: int = 1 << 20) -> tuple[list[dict[str, Any]], ScanRecord]:
    """All rows the scanner yields for a file, and its record."""
    record = ScanRecord()
    return [row for batch in scan(chunks(data, size), record) for row in batch.to_pylist()], record


def ns(micros: Any) -> int:
    """Microseconds of any JSON number as integer nanoseconds, half to even."""
    return int((Decimal(micros) * 1000).to_integral_value(ROUND_HALF_EVEN))


def oracle(data: bytes) -> list[tuple[int, int, str]]:
    """(start, duration, name) of complete events by the standard library, exact, in order of start."""
    doc = json.loads(data, parse_float=Decimal, parse_int=Decimal)
    base = int(doc.get("baseTimeNanoseconds", 0))
    rows = [(ns(e["ts"]) + base, ns(e["dur"]), e["name"]) for e in doc["traceEvents"] if e.get("ph") == "X"]
    return sorted(rows, key=lambda r: (r[0], -r[1]))
