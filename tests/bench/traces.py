"""Traces to measure with: a real one where it is at hand, else one of our own like it, and one of 3 GB."""

import gzip
import json
import os
import re
from pathlib import Path

DATA = Path(os.environ.get("TRACEKIT_SHARED_DATA") or Path(__file__).parents[2].parent / "shared" / "data")
REAL = DATA / "kineto_misc" / "df_index_resolver.json.gz"
CHUNK_EVENTS = 40_000


def chunk() -> str:
    """A stretch of events as Kineto writes them, with TTTTTT for the six high digits of every time and correlation.

    Each launch has a correlation of its own, as in a real trace: HTA joins by it.
    """
    events = []
    for i in range(CHUNK_EVENTS // 5):
        ts = f"TTTTTT{i * 100:09d}.125"
        name, corr = f"aten::op_{i % 97}", f"TTTTTT{i:04d}"
        at = f'"pid": 77, "tid": 78,\n    "ts": {ts}, "dur": 41.250'
        shape = f'"Input Dims": [[16, 2048, 4096], [4096, 4096]], "Ev Idx": {i}'
        events += [
            _call(f'"cat": "cpu_op", "name": "{name}", {at}', f'"External id": {i}, {shape}'),
            _call(f'"cat": "cuda_runtime", "name": "cudaLaunchKernel", {at}', f'"correlation": {corr}'),
            f'"ph": "s", "id": {corr}, "pid": 77, "tid": 78, "ts": {ts},\n    "cat": "ac2g", "name": "ac2g"',
            f'"ph": "f", "id": {corr}, "pid": 0, "tid": 7, "ts": {ts},\n    "cat": "ac2g", "name": "ac2g", "bp": "e"',
            _kernel(i, ts, corr),
        ]
    return ",\n".join("  {\n    " + e + "\n  }" for e in events)


def _call(what: str, args: str) -> str:
    return f'"ph": "X", {what},\n    "args": {{\n      {args}\n    }}'


def _kernel(i: int, ts: str, corr: str) -> str:
    args = f'"External id": {i}, "device": 0, "context": 1, "stream": 7, "correlation": {corr}, "grid": [8, 1, 1]'
    name = f"sm90_gemm_{i % 31}"
    if i % 20 == 0:
        name = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL"
        args += ', "Collective name": "allreduce", "In msg nelems": 8192, "Out msg nelems": 8192, "Group size": 2, '
        args += f'"dtype": "BFloat16", "Process Group Name": "3", "Process Group Ranks": "[0, 1]", "Seq": {i}'
    return (
        f'"ph": "X", "cat": "kernel", "name": "{name}", "pid": 0, "tid": 7,\n    "ts": {ts}, "dur": 40.500,\n'
        f'    "args": {{\n      {args}\n    }}'
    )


def head(rank: int) -> str:
    """What stands before the events."""
    info = json.dumps({"backend": "nccl", "rank": rank, "world_size": 8})
    return f'{{\n  "schemaVersion": 1,\n  "distributedInfo": {info},\n  "traceEvents": [\n'


TAIL = '\n  ],\n  "traceName": "bench",\n  "displayTimeUnit": "ms",\n  "baseTimeNanoseconds": 0\n}\n'


def base_text() -> tuple[str, str]:
    """One trace of some 200 000 events and what it is."""
    if REAL.is_file():
        return gzip.decompress(REAL.read_bytes()).decode(), REAL.name
    piece = chunk()
    body = ",\n".join(piece.replace("TTTTTT", str(170000 + k)) for k in range(5))
    return head(1) + body + TAIL, "a synthetic trace (the recorded one is absent)"


def as_ranks(text: str, folder: Path, count: int) -> list[Path]:
    """`count` copies of a trace, each with a rank of its own."""
    paths = []
    for rank in range(count):
        mine = re.sub(
            r'"rank": \d+, "world_size": \d+', f'"rank": {rank}, "world_size": {count}', text, count=1
        )
        path = folder / f"rank_{rank}.json.gz"
        path.write_bytes(gzip.compress(mine.encode(), 6, mtime=0))
        paths.append(path)
    return paths


def big(path: Path, size: int) -> int:
    """Write a trace of at least `size` bytes; returns the number of events with a duration."""
    piece = chunk().encode()
    with path.open("wb") as file:
        written = file.write(head(0).encode())
        count = 0
        while written < size:
            stretch = piece.replace(b"TTTTTT", b"%06d" % (170000 + count))
            written += file.write((b",\n" if count else b"") + stretch)
            count += 1
        file.write(TAIL.encode())
    return count * CHUNK_EVENTS // 5 * 3
