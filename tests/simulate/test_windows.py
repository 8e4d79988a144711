"""Windows of a simulated job: what changes with time is found by `trend`, and no rank is blamed that is not slow."""

import json

import pytest

import tracekit
from reftrain.errors import ConfigError
from reftrain.simulate.run_folder import outcome_of, windows_of
from reftrain.simulate.runner import simulate
from tests.simulate.case import setup_of, written

MESH = {"dp": 3}
SMALL = {"model": {"layers": 2}}


def job(folder, count, hours, *faults, merge=True):
    """The run folder of a job that was recorded in `count` windows, and its truth."""
    setup, config = setup_of(MESH, *faults, micro_batches=1, tables=SMALL, merge=merge)
    done = []
    for window in windows_of(setup, count, 3600 * hours):
        detail = "collectives" if merge else "kernels"
        done.append(written(folder, window, config, detail=detail, earlier=tuple(done)))
    return json.loads((folder / "run.json").read_text())["simulated"]


def test_windows_share_devices_and_no_step(tmp_path):
    setup, _ = setup_of(MESH, "clock_swing", micro_batches=1, tables=SMALL, steps=2, jitter=0.0)
    each = [outcome_of(w, simulate(w)) for w in windows_of(setup, 3, 3600 * 12)]
    assert [o.slowdown for o in each] == pytest.approx([1, 1.019, 1], abs=0.001)
    noisy = [simulate(w).times[0].end[5] for w in windows_of(setup_of(MESH, steps=2)[0], 2, 3600)]
    assert (noisy[0] != noisy[1]).all()


def test_hang_has_one_window():
    setup, _ = setup_of(MESH, "host_stall:rank=1,steps=4")
    with pytest.raises(ConfigError, match="leave --windows out"):
        windows_of(setup, 2, 3600)
    assert len(windows_of(setup, 1, 3600)) == 1


@pytest.mark.slow
def test_daily_swing_is_common_to_all_ranks(tmp_path):
    truth = job(tmp_path, 24, 2.5, "clock_swing")
    found = tracekit.trend(tracekit.load([str(tmp_path)]))
    assert (truth["windows"], len(truth["step_ms"])) == (24, 72)
    assert found.swing.proven
    assert found.swing.peak_h == pytest.approx(12, abs=2)
    assert found.swing.swing_ns == pytest.approx(0.02 * 1e6 * truth["step_ms_without_faults"], rel=0.3)
    assert found.verdict in {"steady", "varies"}
    assert found.slower == ()
    assert found.common.share == pytest.approx(0.02, rel=0.3)


@pytest.mark.slow
def test_power_swing_is_common_to_all_ranks(tmp_path):
    job(tmp_path, 16, 1, "power_swing:steps=24:")
    found = tracekit.trend(tracekit.load([str(tmp_path)]))
    assert (found.verdict, [s.number for s in found.step.shifts], found.slower) == ("slower", [8], ())
    assert found.common.least > 0.02


@pytest.mark.slow
def test_rank_that_throttles_is_named(tmp_path):
    """It stays as slow as it got: a course that ends level is no chance."""
    job(tmp_path, 15, 1, "throttle:rank=2,factor=1.3,rise_s=43200", merge=False)
    found = tracekit.trend(tracekit.load([str(tmp_path)]))
    assert (found.verdict, [r.rank for r in found.slower], found.common) == ("slower", [2], None)
    assert found.slower[0].part == "compute"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "suspects"),
    [("throttle:rank=5,rise_s=5", [5]), ("clock_swing:size=0.2,period_s=10", []), ("power_swing", [])],
)
def test_slowrank_accuses_no_rank_of_the_weather(tmp_path, fault, suspects):
    setup, config = setup_of({"tp": 2, "dp": 4}, fault, merge=False, steps=8, tables={"model": {"layers": 8}})
    written(tmp_path, setup, config, detail="kernels")
    found = tracekit.slowrank(tracekit.load([str(tmp_path)]))
    assert [s.rank for s in found.suspects] == suspects
    if suspects:
        assert (found.cause, found.suspects[0].mechanisms[0].name) == ("gpu_compute", "throttling")
