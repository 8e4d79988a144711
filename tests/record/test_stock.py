"""A real job in the form `stock`, what torch itself records on Gloo: its slow rank is named, or the answer is open."""

import gzip
import json

import pytest

from reftrain.job.demo import demo_config
from reftrain.job.launcher import launch
from tracekit.analysis.slowrank.analyse import analyse
from tracekit.ingest import load

SIZES = {"mesh": {"tp": 1, "cp": 1}, "evidence": {"measure_lag": False, "trace_form": "stock"}}


@pytest.mark.slow
def test_what_stock_torch_leaves_names_the_rank(tmp_path):
    launch(demo_config(tmp_path, 3, ["slow_compute:rank=1,factor=1.5"], SIZES), lambda _rank: [])
    trace = json.loads(gzip.decompress((tmp_path / "trace" / "rank1.json.gz").read_bytes()))
    names = {str(event.get("name")) for event in trace["traceEvents"]}
    assert {"gloo:all_reduce", "gloo:send"} <= names
    assert "record_param_comms" not in names
    assert len(trace["distributedInfo"]["pg_config"]) == 3
    found = analyse(load([str(tmp_path / "trace")]))
    assert found.verdict in {"slow_rank", "inconclusive"}
    assert [s.rank for s in (*found.suspects, *found.candidates)][:1] == [1]
