"""One measurement in a process of its own: `python -m tests.bench.measure WHO JOBS FILE…` prints JSON."""

import importlib
import json
import logging
import resource
import sys
import time
import warnings
from pathlib import Path

from tracekit.thresholds.ingest import WORTH_COMPILING

WHO = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)


def ours(jobs: int, paths: list[str]) -> int:
    """Ingest with tracekit; returns the events read."""
    from tracekit.ingest import load

    return sum(r.events for r in load(paths, jobs=jobs).ranks)


def scanner(jobs: int, paths: list[str]) -> int:
    """Read files into typed batches by the compiled scanner, in this process; returns the events read."""
    from functools import partial

    from tracekit.files.source import ByteStream
    from tracekit.ingest.kineto.compiled.event_buffer import CompiledEvents
    from tracekit.ingest.kineto.compiled.scanner_code import scanner
    from tracekit.ingest.kineto.scanner import ScanRecord, scan

    count = 0
    for path in paths:
        with Path(path).open("rb") as raw:
            made = partial(CompiledEvents, scan=scanner())
            count += sum(b.num_rows for b in list(scan(ByteStream(raw).blocks(), ScanRecord(), made)))
    return count


def general(jobs: int, paths: list[str]) -> int:
    """Read files into typed batches by the general reader, in this process; returns the events read."""
    from tracekit.files.source import ByteStream
    from tracekit.ingest.kineto.scanner import ScanRecord, scan

    count = 0
    for path in paths:
        with Path(path).open("rb") as raw:
            count += sum(b.num_rows for b in list(scan(ByteStream(raw).blocks(), ScanRecord())))
    return count


def gunzip(jobs: int, paths: list[str]) -> int:
    """Decompress files, and do nothing with the bytes; returns their number."""
    from tracekit.files.source import ByteStream

    count = 0
    for path in paths:
        with Path(path).open("rb") as raw:
            count += sum(len(block) for block in ByteStream(raw).blocks())
    return count


def hta(jobs: int, paths: list[str]) -> int:
    """Parse with HTA's default parser, on one process or on its pool of one process a core."""
    from hta.common.trace import Trace

    trace = Trace(trace_files=dict(enumerate(paths)))
    trace.parse_traces(use_multiprocessing=jobs > 1)
    return sum(len(frame) for frame in trace.traces.values())


WORK = {"ours": ours, "hta": hta, "scanner": scanner, "general": general, "gunzip": gunzip}


def main() -> None:
    """Import first, then time the work; peak memory is the process's and its children's, as if all at once."""
    who, jobs, paths = sys.argv[1], int(sys.argv[2]), sys.argv[3:]
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    importlib.import_module("hta.common.trace" if who == "hta" else "tracekit.ingest")
    if who in {"scanner", "ours"}:
        from tracekit.ingest.kineto.compiled.scanner_code import prepare

        prepare(WORTH_COMPILING)
    before = sum(sum(resource.getrusage(who)[:2]) for who in WHO)
    start = time.perf_counter()
    events = WORK[who](jobs, paths)
    seconds = time.perf_counter() - start
    cpu = sum(sum(resource.getrusage(who)[:2]) for who in WHO) - before
    # ru_maxrss would count the parent's memory at the fork too
    status = Path("/proc/self/status").read_text()
    own = int(status.split("VmHWM:")[1].split()[0])
    child = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    peak = own + (jobs * child if jobs > 1 else 0)
    print(json.dumps({"seconds": seconds, "cpu": cpu, "peak_mib": peak / 1024, "events": events}))


if __name__ == "__main__":
    main()
