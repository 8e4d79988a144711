"""Offloaded optimizers in models and traces: what they cost, what they free, and whose link to the host is slow."""

import gzip
import json
from dataclasses import replace

import pytest

from reftrain.cost.hardware import load_hardware
from reftrain.cost.job import cost_model_of, job_of_run
from reftrain.cost.memory import MemoryModel
from reftrain.errors import ConfigError
from reftrain.plan.projection import project
from reftrain.simulate.runner import simulate
from reftrain.simulate.summary import summarise
from tests.simulate.case import config_of, setup_of, written
from tracekit.analysis.slowrank.analyse import analyse as find_slow
from tracekit.ingest import load

OFFLOADED = {"model": {"layers": 8}, "optimizer": {"offload": True}}
H100 = load_hardware("h100")


def test_state_moves_from_the_device_to_the_host():
    job = job_of_run(config_of({"dp": 4}, model={"layers": 8}))
    kept, moved = (MemoryModel(replace(job, offload=flag)).rank(0) for flag in (False, True))
    shard = job.trained_parameters(0)
    assert (kept.host, moved.largest.optimizer) == (0, 0)
    assert kept.largest.optimizer == 8 * shard
    assert moved.host == 16 * shard  # two moments, a weight and its gradient in FP32


def test_simulated_and_projected_steps_grow_alike():
    setup, _ = setup_of({"dp": 4}, jitter=0.0, tables=OFFLOADED)
    other = replace(setup, job=replace(setup.job, offload=False))
    moved, kept = (summarise(simulate(s)).mean_step_ms for s in (setup, other))
    planned = [project(s.job, H100).step_s * 1e3 for s in (setup, other)]
    update = cost_model_of(setup.job, H100).offloaded_update(setup.job.trained_parameters(0) * 4)
    assert update.nbytes == 4 * setup.job.trained_parameters(0)
    assert planned[0] - planned[1] == pytest.approx(moved - kept, rel=0.02)
    assert moved - kept > 0.9 * update.step_s * 1e3


def test_hardware_without_a_host_link_is_refused():
    bare = replace(H100, host_link=type(H100.host_link)())
    with pytest.raises(ConfigError, match="describes no link to the host"):
        project(replace(job_of_run(config_of({"dp": 4})), offload=True), bare)


LINKS = [({"dp": 4}, 2), ({"tp": 2, "dp": 4}, 5), ({"tp": 2, "pp": 2, "dp": 4}, 9), ({"cp": 2, "dp": 4}, 3)]


@pytest.mark.slow
@pytest.mark.parametrize(("mesh", "rank"), LINKS)
def test_slowrank_names_a_slow_link_to_the_host(tmp_path, mesh, rank):
    setup, config = setup_of(mesh, f"slow_host_link:rank={rank},delay_ms=40", steps=4, tables=OFFLOADED)
    outcome = written(tmp_path, setup, config)
    finding = find_slow(load([str(tmp_path / "trace")]))
    assert (finding.verdict, finding.cause) == ("slow_rank", "host_copies")
    assert [s.rank for s in finding.suspects] == [rank]
    assert (finding.what_if.slowdown - 1) / (outcome.slowdown - 1) == pytest.approx(0.85, abs=0.25)


@pytest.mark.slow
@pytest.mark.parametrize("mesh", [mesh for mesh, _ in LINKS])
def test_offloading_itself_is_healthy(tmp_path, mesh):
    setup, config = setup_of(mesh, steps=4, tables=OFFLOADED)
    written(tmp_path, setup, config)
    assert find_slow(load([str(tmp_path / "trace")])).verdict == "healthy"


@pytest.mark.slow
def test_slow_computing_is_no_slow_link(tmp_path):
    setup, config = setup_of({"tp": 2, "dp": 4}, "slow_compute:rank=5,factor=1.3", steps=4, tables=OFFLOADED)
    written(tmp_path, setup, config)
    finding = find_slow(load([str(tmp_path / "trace")]))
    assert (finding.cause, [s.rank for s in finding.suspects]) == ("gpu_compute", [5])


def test_traces_hold_copies_as_kineto_writes_them(tmp_path):
    setup, config = setup_of({"dp": 2}, steps=2, merge=False, tables={**OFFLOADED, "model": {"layers": 1}})
    written(tmp_path, setup, config, detail="kernels", ranks=[1])
    events = json.loads(gzip.decompress((tmp_path / "trace" / "rank1.json.gz").read_bytes()))["traceEvents"]
    copied = [e for e in events if e.get("cat") == "gpu_memcpy"]
    names = ["Memcpy DtoH (Device -> Pinned)", "Memcpy HtoD (Pinned -> Device)"]
    assert [e["name"] for e in copied] == names * 2
    launched = {e["args"]["correlation"] for e in events if e["name"] == "cudaMemcpyAsync"}
    assert {e["args"]["correlation"] for e in copied} == launched
    assert all(e["args"]["bytes"] > 0 for e in copied)
    host = [e for e in events if e["name"] == "aten::_fused_adamw_"]
    assert [e["cat"] for e in host] == ["cpu_op"] * 2
