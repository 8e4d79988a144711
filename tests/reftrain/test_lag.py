"""run.json says what a planted slow fault cost, measured against the same run without it."""

import dataclasses
import json

import pytest

from reftrain.config.file import load
from reftrain.job.lag import (
    compared_steps,
    error_of_difference,
    mean,
    record_lag,
    step_ms,
    wants_lag,
    without_slow_faults,
)
from reftrain.job.launcher import launch
from reftrain.record.manifest import write_manifest

SLOW = "late_data:rank=1,delay_ms=80,steps=1:"
DELAYS_MS = (
    80,
    160,
    320,
    640,
    2560,
)  # on a busy machine steps differ by more than the first: then the next is tried


def config(out, *faults, **evidence):
    return load(
        None,
        {
            "mesh": {"dp": 2},
            "model": {"layers": 1},
            "data": {"batch_size": 2},
            "run": {"steps": 4, "out": str(out)},
            "evidence": {"faults": list(faults), **evidence},
        },
    )


def test_a_run_measures_its_own_lag(tmp_path):
    for delay in DELAYS_MS:
        out = tmp_path / str(delay)
        launch(config(out, f"late_data:rank=1,delay_ms={delay},steps=1:"), lambda _: [])
        told = json.loads((out / "run.json").read_text())
        lag = told["lag"]
        assert lag["steps"] == [1, 2, 3]
        assert lag["lag_ms"] == pytest.approx(lag["step_ms"] - lag["step_ms_without_faults"], abs=0.01)
        assert lag["lag_share"] == pytest.approx(lag["lag_ms"] / lag["step_ms"], abs=1e-3)
        assert told["faults"][0]["kind"] == "late_data", "the truth stays"
        assert sorted(p.name for p in out.iterdir()) == ["metrics", "run.json"], "the second run is gone"
        if 50 / 80 * delay < lag["lag_ms"] < 400 / 80 * delay:
            return
    pytest.fail(f"no delay shows: {lag}")


@pytest.mark.parametrize(
    ("faults", "evidence", "wanted"),
    [
        ([SLOW], {}, True),
        ([SLOW], {"measure_lag": False}, False),
        (["crash:rank=1"], {}, False),
        ([SLOW, "crash:rank=1"], {}, False),
        ([], {}, False),
    ],
)
def test_only_runs_that_end_are_measured(tmp_path, faults, evidence, wanted):
    assert wants_lag(config(tmp_path, *faults, **evidence)) is wanted


def test_what_a_second_run_keeps(tmp_path):
    first = config(tmp_path / "a", SLOW, "P04", trace_steps=[2, 3])
    first = dataclasses.replace(first, checkpoint=dataclasses.replace(first.checkpoint, every=2))
    second = without_slow_faults(first, str(tmp_path / "b"))
    assert second.evidence.faults == ("P04",)
    assert (second.out, second.checkpoint.every) == (str(tmp_path / "b"), 0)
    assert (second.seed, second.evidence.trace_steps) == (first.seed, (2, 3))
    assert compared_steps(first) == [2, 3]


def metrics(run, seconds):
    (run / "metrics").mkdir(parents=True)
    for rank, extra in enumerate((0.0, 0.002)):
        rows = [{"step": i, "step_s": s + extra} for i, s in enumerate(seconds)]
        (run / "metrics" / f"rank{rank}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_the_lag_is_the_difference_of_mean_step_times(tmp_path):
    made = config(tmp_path, SLOW)
    metrics(tmp_path, (9.0, 0.5, 0.7, 0.6))
    write_manifest(tmp_path, {"faults": []})
    record_lag(made, lambda other: metrics(type(tmp_path)(other.out), (7.0, 0.4, 0.4, 0.4)))
    lag = json.loads((tmp_path / "run.json").read_text())["lag"]
    assert (lag["step_ms"], lag["step_ms_without_faults"]) == (601.0, 401.0)
    assert (lag["lag_ms"], lag["lag_share"]) == (200.0, round(200 / 601, 4))
    assert lag["lag_ms_error"] == pytest.approx(100 / 3**0.5, abs=1e-3), "0.5, 0.7 and 0.6 s spread by 100 ms"


def test_nothing_recorded_is_no_time(tmp_path):
    assert step_ms(tmp_path / "nothing", [1]) == []
    assert mean([]) == error_of_difference([], [1.0]) == 0.0
