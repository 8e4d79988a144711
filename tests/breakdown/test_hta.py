"""Compute, idle time and overlap beside those of HolisticTraceAnalysis, on files that both read."""

import importlib.util
import json
import subprocess
import sys

import pytest

import tracekit
from tests.breakdown.runs import STEP_US, pair
from tests.tables.rows import comm

PROGRAM = """
import json, sys
from hta.trace_analysis import TraceAnalysis
analysis = TraceAnalysis(trace_dir=sys.argv[1], include_last_profiler_step=True)
spent = analysis.get_temporal_breakdown(visualize=False).to_dict("records")
beside = analysis.get_comm_comp_overlap(visualize=False).to_dict("records")
print("\\n" + json.dumps([spent, beside]))
"""
AHEAD_US = 100
NEEDS_HTA = pytest.mark.skipif(
    importlib.util.find_spec("hta") is None, reason="needs `make bench`'s extra hta"
)


def events(rows):
    """The rows as events of Kineto, every kernel launched ahead of its step.

    Communication behind which nothing is launched yet holds nothing up: `breakdown` gives that time to the host,
    and HTA, which looks at no launch, to communication.
    """
    kernels = [r for r in rows if r["cat"] == "kernel"]
    marks = [r for r in rows if r["cat"] == "user_annotation"]
    for number, kernel in enumerate(kernels, 1):
        begin = max(0, kernel["ts"] // 1000 // STEP_US * STEP_US - AHEAD_US)
        args = {"correlation": number}
        yield {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": begin, "dur": 1, "pid": 1, "tid": 1,
               "args": args}  # fmt: skip
        yield event(kernel, args | {"stream": kernel.get("stream", 7)} | called(kernel), pid=0)
    for mark in marks:
        yield event(mark, {}, pid=1)


def event(row, args, pid):
    """A complete event; NCCL's kernels have the names that HTA 0.6 knows."""
    name = row["name"].replace("ncclDevKernel_", "ncclKernel_")
    times = {"ts": row["ts"] // 1000, "dur": row["dur"] // 1000}
    return {"ph": "X", "cat": row["cat"], "name": name, "args": args, "pid": pid, "tid": 1, **times}


def called(row):
    """The arguments of a collective."""
    if not row.get("collective"):
        return {}
    group = {
        "Process Group Name": "0",
        "Process Group Ranks": "[0, 1]",
        "Group size": 2,
        "dtype": row["dtype"],
    }
    counts = {"In msg nelems": row["in_nelems"], "Out msg nelems": row["out_nelems"]}
    return {"Collective name": row["collective"]} | group | counts


@NEEDS_HTA
def test_hta_finds_the_same_times(tmp_path):
    for rank, rows in pair(both=[comm(420, 160, 0, "all_gather", stream=30)]).items():
        document = {
            "distributedInfo": {"rank": rank, "world_size": 2},
            "traceEvents": list(events(rows)),
        }
        (tmp_path / f"rank{rank}.json").write_text(json.dumps(document))
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PROGRAM, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    spent, beside = json.loads(done.stdout.strip().splitlines()[-1])
    found = {r.rank: r for r in tracekit.breakdown(tracekit.load(tmp_path), mesh={"tp": 2}).by_rank}
    assert sorted(found) == [0, 1]
    for theirs, overlap in zip(spent, beside, strict=True):
        ours = found[theirs["rank"]]
        assert ours.parts.step_ns == 1000 * theirs["kernel_time(us)"]
        assert ours.parts.compute_ns == 1000 * theirs["compute_time(us)"]
        assert ours.communication_ns - ours.hidden_ns == 1000 * theirs["non_compute_time(us)"]
        alone = ours.parts.host_ns + ours.parts.idle_ns
        assert alone == 1000 * theirs["idle_time(us)"]
        hidden = 100 * ours.hidden_ns / ours.communication_ns
        assert hidden == pytest.approx(overlap["comp_comm_overlap_pctg"], abs=0.01)
