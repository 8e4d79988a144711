"""One measurement in a process of its own: `python -m tests.bench.measure WHO JOBS FILE…` prints JSON."""

import importlib
import json
import logging
import resource
import sys
import time
import warnings
from pathlib import Path

WHO = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)


def ours(jobs: int, paths: list[str]) -> int:
    """Ingest with tracekit; returns the events read."""
    from tracekit.ingest import load

    return sum(r.events for r in load(paths, jobs=jobs).ranks)


def hta(jobs: int, paths: list[str]) -> int:
    """Parse with HTA's default parser, on one process or on its pool of one process a core."""
    from hta.common.trace import Trace

    trace = Trace(trace_files=dict(enumerate(paths)))
    trace.parse_traces(use_multiprocessing=jobs > 1)
    return sum(len(frame) for frame in trace.traces.values())


def main() -> None:
    """Import first, then time the work; peak memory is the process's and its children's, as if all at once."""
    who, jobs, paths = sys.argv[1], int(sys.argv[2]), sys.argv[3:]
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    importlib.import_module("hta.common.trace" if who == "hta" else "tracekit.ingest")
    before = sum(sum(resource.getrusage(who)[:2]) for who in WHO)
    start = time.perf_counter()
    events = {"ours": ours, "hta": hta}[who](jobs, paths)
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
