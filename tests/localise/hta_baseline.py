"""HolisticTraceAnalysis' `get_potential_stragglers` on the same files, in a process of its own.

HTA 0.6 looks for kernels named `ncclKernel…`, which NCCL calls `ncclDevKernel…` since 2.18. It gets copies with the
names that it knows, so that its rule is compared and not its list of names.
"""

import gzip
import importlib.util
import json
import subprocess
import sys
import tempfile
from pathlib import Path

LONGEST_S = 120
MOST_RANKS = 64
"""HTA holds every event in memory; larger jobs are not given to it."""
PROGRAM = """
import json, sys
from hta.trace_analysis import TraceAnalysis
analysis = TraceAnalysis(trace_dir=sys.argv[1], include_last_profiler_step=True)
print("\\n" + json.dumps([int(rank) for rank in analysis.get_potential_stragglers(num_candidates=1)]))
"""


def available() -> bool:
    """Whether HTA can be imported here."""
    return importlib.util.find_spec("hta") is not None


def stragglers(folder: Path) -> tuple[int, ...] | str:
    """Ranks that HTA suspects, the first of them first; or why it gave no answer."""
    with tempfile.TemporaryDirectory(prefix="localise-hta-") as copies:
        renamed(folder, Path(copies))
        command = [sys.executable, "-W", "ignore", "-c", PROGRAM, copies]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=LONGEST_S, check=False)
        except subprocess.TimeoutExpired:
            return "timeout"
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        return lines[-1][:200] if lines else "failed"
    return tuple(json.loads(done.stdout.strip().splitlines()[-1]))


def renamed(folder: Path, copies: Path) -> None:
    """Copy the files with NCCL's older names of kernels."""
    for path in folder.rglob("*.json*"):
        data = path.read_bytes()
        text = gzip.decompress(data) if path.suffix == ".gz" else data
        (copies / path.name.removesuffix(".gz")).write_bytes(text.replace(b"ncclDevKernel_", b"ncclKernel_"))
