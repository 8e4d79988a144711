"""The evaluation loop: held-out loss alike in every layout, training untouched, its own kind of step, trackers."""

import gzip
import json
import sys
from types import ModuleType

import pytest

import tracekit
from reftrain.config.file import load
from reftrain.errors import ConfigError
from reftrain.rank.events import Evaluation, StepMetrics
from reftrain.record import trackers
from tests.marks import quick_first
from tests.ranks.patience import patience
from tests.reftrain import workers


def configuration(every=1, **tables):
    small = {"layers": 4, "dim": 32, "heads": 4, "kv_heads": 2, "ffn_dim": 32}
    return load(
        None,
        {
            "model": small, "numerics": {"policy": "fp32"}, "data": {"batch_size": 12, "seq_len": 32},
            "evaluation": {"every": every, "batches": 2}, "run": {"steps": 2},
        } | tables,
    )  # fmt: skip


@pytest.fixture(scope="module")
def alone(ranks):
    """Losses and evaluations of one process."""
    return ranks.run(workers.evaluated, 1, configuration(), 2)[0]


LAYOUTS = [
    ({"dp": 3, "zero": 3}, {}),
    ({"pp": 2, "dp": 3}, {}),
    ({"tp": 2, "cp": 2}, {}),
    ({"pp": 2, "dp": 2, "zero": 2}, {"virtual_stages": 2}),
    ({"pp": 2}, {"schedule": "chimera"}),
    ({"pp": 2}, {"schedule": "zb_h1"}),
]


@pytest.mark.parametrize(("mesh", "pipeline"), quick_first(0, LAYOUTS))
def test_held_out_loss_is_alike_in_every_layout(ranks, alone, mesh, pipeline):
    config = configuration(mesh=mesh, pipeline=pipeline)
    losses, seen = ranks.run(workers.evaluated, config.mesh.world_size, config, 2)[-1]
    assert [(step, count) for step, _, count in seen] == [(step, count) for step, _, count in alone[1]]
    assert [step for step, *_ in seen] == [0, 1]
    assert [loss for _, loss, _ in seen] == pytest.approx([loss for _, loss, _ in alone[1]], rel=1e-5)
    without = configuration(0, mesh=mesh, pipeline=pipeline)
    assert ranks.run(workers.evaluated, config.mesh.world_size, without, 2)[-1] == (losses, [])


REFUSED = {
    "evaluation.files: no data are held out": {"data": {"source": "tokens", "files": ["a.bin"]}},
    "evaluation.files: holds a file that trains": {
        "data": {"source": "text", "files": ["a", "b"]}, "evaluation": {"every": 1, "files": ["b"]},
    },
    "evaluation.every: stages of pipedream": {
        "mesh": {"pp": 2}, "pipeline": {"schedule": "pipedream"}, "optimizer": {"clip_norm": 0},
    },
    "evidence.capture: would hold evaluations": {"evidence": {"capture": "digest"}},
    "evidence.trackers: 'visdom' is unknown": {"evidence": {"trackers": ["visdom"]}},
}  # fmt: skip


@pytest.mark.parametrize("said", REFUSED)
def test_what_cannot_be_evaluated_is_refused(said):
    with pytest.raises(ConfigError) as caught:
        configuration(**REFUSED[said])
    assert str(caught.value).startswith(said)


@pytest.mark.slow
def test_slowrank_sees_steps_alone(ranks, tmp_path):
    """An evaluation of four batches, on emulated devices, between traced steps: no step is longer for it."""
    done = ranks.reftrain(
        "run", "--preset", "tiny", "--mesh", "pp=2,dp=2", "--steps", 8, "--trace", "2:8", "--quiet",
        "--compute", "emulated", "--set", "run.emulated_gflops=2", "--out", tmp_path,
        "--set", "evaluation.every=2", "--set", "evaluation.batches=4",
    ).wait(patience(60))  # fmt: skip
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in (tmp_path / "metrics" / "evaluation.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [1, 3, 5, 7]
    for path in (
        tmp_path / "trace"
    ).iterdir():  # a loaded machine may make a rank late: spans do not depend on it
        events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
        spans = {
            name: [(e["ts"], e["ts"] + e["dur"]) for e in events if str(e["name"]).startswith(name)]
            for name in ("Evaluation#", "ProfilerStep#")
        }
        assert len(spans["Evaluation#"]) >= 2
        assert all(
            end <= first or last <= start
            for start, end in spans["Evaluation#"]
            for first, last in spans["ProfilerStep#"]
        )
    found = tracekit.slowrank(tracekit.load(tmp_path))
    steps = [
        json.loads(line)["step_s"] for line in (tmp_path / "metrics" / "rank0.jsonl").read_text().splitlines()
    ]
    assert found.what_if.step_ms == pytest.approx(1e3 * sum(steps[2:]) / 6, rel=0.25)


STEP = StepMetrics(4, 2.5, 1.0, 1e-3, 96, 90, 0.5, None, 0)
WANTED = [
    ({"train/loss": 2.5, "train/grad_norm": 1.0, "train/learning_rate": 1e-3, "train/tokens_per_s": 192.0,
      "train/step_s": 0.5}, 4),
    ({"evaluation/loss": 2.0}, 4),
]  # fmt: skip


def test_trackers_get_the_figures(monkeypatch, tmp_path):
    """Modules in the place of two trackers that are not installed here."""
    said = []
    wandb, mlflow = ModuleType("wandb"), ModuleType("mlflow")
    run = ModuleType("run")
    run.log, run.finish = lambda values, step: said.append((values, step)), lambda: said.append("end")
    wandb.init = lambda **_: run
    mlflow.start_run, mlflow.log_metrics, mlflow.end_run = lambda **_: None, run.log, run.finish
    for module in (wandb, mlflow):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(trackers, "check_extra", lambda *_: None)
    for name in ("wandb", "mlflow"):
        config = configuration(evidence={"trackers": [name]}, run={"out": str(tmp_path)})
        hook = trackers.Tracking(config.evidence.trackers)
        hook.setup(type("Context", (), {"rank": 0, "config": config}))
        hook.step_end(STEP)
        hook.evaluation_end(Evaluation(4, 2.0, 90, 0.1))
        hook.close()
        assert said == [*WANTED, "end"], name
        said.clear()
