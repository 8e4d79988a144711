"""HTA's answers on our tables are those of its own parser, on recordings of others; it needs the extra `hta`."""

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

DATA = Path(os.environ.get("TRACEKIT_SHARED_DATA", Path(__file__).parents[3] / "shared" / "data"))
pytestmark = [
    pytest.mark.slow,
    pytest.mark.realdata,
    pytest.mark.skipif(importlib.util.find_spec("hta") is None, reason="needs `make bench`'s extra hta"),
    pytest.mark.skipif(not DATA.is_dir(), reason="recordings of others are not here (TRACEKIT_SHARED_DATA)"),
]
PROGRAM = """
import sys
import pandas as pd
from hta.trace_analysis import TraceAnalysis
import tracekit

folder = sys.argv[1]
run = tracekit.load(folder)
first = run.ranks[0].rank
files = {record.rank: record.path for record in run.ranks}
theirs = TraceAnalysis(trace_files=files, trace_dir=folder, include_last_profiler_step=True)
ours = tracekit.interop.hta(run, include_last_profiler_step=True)
compared = 0
for name, asked in (
    ("get_temporal_breakdown", {}), ("get_comm_comp_overlap", {}), ("get_idle_time_breakdown", {"ranks": [first]}),
    ("get_gpu_kernel_breakdown", {}),
):
    answers = [getattr(a, name)(visualize=False, **asked) for a in (theirs, ours)]
    pairs = zip(*(a if isinstance(a, tuple) else (a,) for a in answers), strict=True)
    for one, other in pairs:
        if one is None and other is None:
            continue
        pd.testing.assert_frame_equal(one, other, check_dtype=False, check_index_type=False)
        compared += len(one)
paths = []
for analysis in (theirs, ours):
    graph, done = analysis.critical_path_analysis(rank=first, annotation="ProfilerStep", instance_id=0)
    found = graph.get_critical_path_breakdown()
    spent = found[found.duration > 0].groupby(["type", "bound_by", "s_name"]).duration.sum().to_dict()
    paths.append((done, len(graph.critical_path_nodes), spent))
if paths[0] != paths[1]:
    raise SystemExit([*(set(paths[0][2].items()) ^ set(paths[1][2].items())), paths[0][:2], paths[1][:2]])
print(compared, len(paths[0][2]))
"""


@pytest.mark.parametrize(
    ("recording", "ranks"),
    [("kineto_dlrm8", 8), ("kineto_misc/nccl_data.json.gz", 1), ("kineto_misc/df_index_resolver.json.gz", 1)],
)
def test_hta_gives_its_own_answers(recording, ranks, tmp_path):
    source = DATA / recording
    for file in sorted(source.glob("*.gz")) if source.is_dir() else [source]:
        shutil.copy(file, tmp_path)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PROGRAM, str(tmp_path)],
        capture_output=True, text=True, timeout=280, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    rows, edges = (int(word) for word in done.stdout.split()[-2:])
    assert rows > ranks
    assert edges > 0
