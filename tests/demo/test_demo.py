"""`reftrain demo`: its job, and what it says when it cannot start. The run itself is under test as samples."""

import json
import sys

import pytest
from tracekit_cli import reftrain as command
from tracekit_cli.reftrain_commands.demo import clear

from reftrain.errors import ConfigError
from reftrain.faults.registry import read_faults
from reftrain.job.demo import DEFAULT_FAULT, LONG_SEQUENCES, WARM_UP, demo_config
from reftrain.record.manifest import write_manifest


def test_the_job_has_two_ranks_on_every_axis(tmp_path):
    made = demo_config(tmp_path, 5, [DEFAULT_FAULT])
    assert made.mesh.world_size == 16
    assert {made.mesh.tp, made.mesh.cp, made.mesh.pp, made.mesh.dp} == {2}
    assert made.evidence.trace_steps == tuple(range(WARM_UP, WARM_UP + 5))
    assert made.steps == WARM_UP + 5
    (fault,) = read_faults(made)
    assert fault.kind == "slow_compute"
    assert 1 < fault.values["factor"] <= 1.5, "at most half as slow again"


def test_overrides_go_before_the_job(tmp_path):
    made = demo_config(tmp_path, 3, [], {"run": {"emulated_gflops": 9.0}})
    assert (made.emulated_gflops, made.compute) == (9.0, "emulated")
    assert demo_config(tmp_path, 3, [], LONG_SEQUENCES).data.seq_len == 256


def test_seeds_change_weights_and_data_and_none_plants_nothing(monkeypatch, tmp_path):
    started = []
    monkeypatch.setattr("reftrain.job.launcher.launch", lambda config, hooks: started.append(config))
    for options in ([], ["--seed", "7"], ["--fault", "none"]):
        monkeypatch.setattr(sys, "argv", ["reftrain", "demo", "--out", str(tmp_path / "run"), *options])
        with pytest.raises(SystemExit, match="0"):
            command.main()
    usual, other, healthy = started
    assert usual.evidence.faults == other.evidence.faults == (DEFAULT_FAULT,)
    assert healthy.evidence.faults == ()
    assert (usual.seed, usual.data.seed) == (0, 1)
    assert (other.seed, other.data.seed) == (7, 8)


def refused(capsys, monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["reftrain", "demo", *map(str, arguments)])
    with pytest.raises(SystemExit) as stop:
        command.main()
    return stop.value.code, capsys.readouterr().err


def test_what_is_no_run_stays(capsys, monkeypatch, tmp_path):
    (tmp_path / "thesis.tex").write_text("precious")
    code, said = refused(capsys, monkeypatch, "--out", tmp_path)
    assert (code, said.count("\n")) == (2, 1)
    assert f"--out: {tmp_path} holds something else than a run" in said
    assert (tmp_path / "thesis.tex").exists()


@pytest.mark.parametrize(
    ("fault", "words"),
    [("slow:rank=1", "no such kind 'slow'"), ("slow_compute:rank=16", "'16' is not a rank of a world of 16")],
)
def test_an_impossible_fault_leaves_an_earlier_run(capsys, monkeypatch, tmp_path, fault, words):
    write_manifest(tmp_path, {"faults": []})
    code, said = refused(capsys, monkeypatch, "--out", tmp_path, "--fault", fault)
    assert code == 2
    assert words in said
    assert (tmp_path / "run.json").exists()


def test_an_earlier_run_is_replaced(tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    clear(run)
    assert run.exists(), "an empty folder is used"
    write_manifest(run, {"faults": []})
    (run / "trace").mkdir()
    clear(run)
    assert not run.exists()
    clear(run)
    link = tmp_path / "link"
    run.mkdir()
    (run / "run.json").write_text(json.dumps({"schema": "reftrain.run/1"}))
    link.symlink_to(run)
    with pytest.raises(ConfigError, match="holds something else"):
        clear(link)


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [(["--steps", "0"], 2, "3<=x<=200"), (["--out", "/proc/nowhere/run"], 3, "choose another out")],
)
def test_bad_steps_and_folders_are_refused(capsys, monkeypatch, arguments, code, words):
    found, said = refused(capsys, monkeypatch, *arguments)
    assert found == code
    assert words in said
    assert "Traceback" not in said
