"""Jobs of two ranks: neither shows which of them is usual, and few steps vary much."""

import pytest

import tracekit
from tests.simulate.case import setup_of, written


@pytest.mark.quick(1)
@pytest.mark.parametrize("mesh", [{"dp": 2}, {"tp": 2}])
def test_a_device_that_gets_hotter_is_not_healthy(tmp_path, mesh):
    """It is slower from step to step, so that its excess varies as much as it costs: up to 20 % of the step."""
    text = "throttle:rank=1,factor=1.6,rise_s=2"
    setup, config = setup_of(mesh, text, steps=4, tables={"model": {"layers": 4}}, merge=False)
    outcome = written(tmp_path, setup, config, detail="kernels")
    found = tracekit.slowrank(tracekit.load([str(tmp_path / "trace")]))
    assert (found.verdict, [c.rank for c in found.candidates]) == ("inconclusive", [1])
    gain = outcome.summary.mean_step_ms - outcome.healthy.mean_step_ms
    assert found.candidates[0].lost_ms_low <= gain <= found.candidates[0].lost_ms_high * 1.01


@pytest.mark.parametrize("mesh", [{"dp": 2}, {"cp": 2}])
def test_noise_of_two_ranks_is_healthy(tmp_path, mesh):
    setup, config = setup_of(mesh, steps=3, jitter=2.0, tables={"model": {"layers": 4}}, merge=False)
    written(tmp_path, setup, config, detail="kernels")
    assert tracekit.slowrank(tracekit.load([str(tmp_path / "trace")])).verdict == "healthy"


@pytest.mark.quick(1)
@pytest.mark.parametrize("mesh", [{"tp": 2}, {"pp": 2, "dp": 2}])
def test_slow_compute_hides_no_pauses_of_its_rank(tmp_path, mesh):
    """In a pair the other rank seems early by as much, which is no spread between ranks that would explain it."""
    faults = ("pauses:rank=1,pause_ms=80,every=4", "slow_compute:rank=1,factor=1.5")
    setup, config = setup_of(mesh, *faults, steps=3, tables={"model": {"layers": 4}}, merge=False)
    outcome = written(tmp_path, setup, config, detail="kernels")
    found = tracekit.slowrank(tracekit.load([str(tmp_path / "trace")]))
    assert (found.verdict, [s.rank for s in found.suspects]) == ("slow_rank", [1])
    gain = outcome.summary.mean_step_ms - outcome.healthy.mean_step_ms
    assert found.suspects[0].lost_ms_low <= gain <= found.suspects[0].lost_ms_high


@pytest.mark.slow
def test_a_late_loader_costs_less_than_its_stage(tmp_path):
    """Stage 1 has the head as well, which costs 57 ms a step of its own; the loader is late in one step of three."""
    text = "late_data:rank=1,delay_ms=200,steps=1"
    tables = {"model": {"layers": 4, "vocab_size": 32000}}
    setup, config = setup_of({"pp": 2, "dp": 2}, text, steps=3, tables=tables, merge=False)
    outcome = written(tmp_path, setup, config, detail="kernels")
    found = tracekit.slowrank(tracekit.load([str(tmp_path / "trace")]))
    assert (found.cause, [s.rank for s in found.suspects]) == ("dataloader", [1])
    gain = outcome.summary.mean_step_ms - outcome.healthy.mean_step_ms
    assert found.suspects[0].lost_ms_low <= gain <= found.suspects[0].lost_ms_high
