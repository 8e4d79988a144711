"""A trace of prefill and decode steps of unequal length: slowrank names the slow tensor rank."""

import pytest

from reftrain.infer.engine import Workload
from reftrain.infer.serve import prepared
from tests.infer import workers
from tests.infer.test_engine import configuration
from tracekit.analysis.slowrank.analyse import analyse as find_slow
from tracekit.ingest import load

WORK = Workload(requests=4, prompt=32, generate=8, slots=2)
MESH = {"tp": 3, "sequence_parallel": False}


def traced(ranks, folder, *faults):
    """Serve on three tensor ranks with emulated computation, and judge the trace."""
    tables = {
        "run": {"out": str(folder), "compute": "emulated", "emulated_gflops": 0.05},
        "model": {"heads": 12, "kv_heads": 3},
        "evidence": {"faults": list(faults)},
    }
    config = prepared(configuration(MESH, **tables), WORK, traced=True)
    ranks.run(workers.served, 3, config, WORK)
    return find_slow(load([str(folder / "trace")])), config


@pytest.mark.slow
def test_the_slow_tensor_rank_of_an_engine_is_named(ranks, tmp_path):
    found, config = traced(ranks, tmp_path / "slow", "slow_compute:rank=1,factor=3")
    assert found.verdict == "slow_rank", found.reason
    assert [suspect.rank for suspect in found.suspects] == [1]
    assert len(found.steps.analysed) == config.steps - 1
    kinds = {kind for kind, _ in WORK.steps(1)}
    assert kinds == {"prefill", "decode"}


@pytest.mark.slow
def test_a_healthy_engine_is_not_accused_of_much(ranks, tmp_path):
    """Other work on this machine may make ranks late, but not by what the planted fault costs."""
    found, _ = traced(ranks, tmp_path / "healthy")
    assert found.verdict in {"healthy", "inconclusive"} or found.what_if.slowdown < 1.15, found.reason


def test_steps_to_trace_leave_the_first_out():
    config = prepared(configuration(MESH, model={"kv_heads": 3}), WORK, traced=True)
    assert config.evidence.trace_steps == tuple(range(1, len(WORK.steps(1))))
