"""An elastic job: deaths of ranks cost steps, never the run, its evidence or a bit of its losses."""

import json
import os
import signal
import time
from dataclasses import replace
from pathlib import Path

import pytest

from reftrain.config.fault_spec import parse_fault
from reftrain.config.file import load
from reftrain.errors import ConfigError
from reftrain.faults.fault import PLANTS
from reftrain.job.attempts import Attempts
from reftrain.job.elastic import smaller
from reftrain.rank.processes import Death
from reftrain.record.manifest import write_manifest
from reftrain.train.checkpoint import finished
from tests.ranks.patience import patience
from tests.reftrain import ten_kills
from tracekit.analysis.hang.witnesses.judge import judge_evidence
from tracekit.evidence.gather import load_evidence
from tracekit.own_files import of_a_run, strangers

TINY = [
    "--set", "model.layers=2", "--set", "data.batch_size=12", "--set", "data.seq_len=32",
    "--set", "checkpoint.asynchronous=false", "--quiet",
]  # fmt: skip


def rows(out, rank=0):
    """Step, loss and gradient norm of each row of a rank's metrics."""
    text = (out / "metrics" / f"rank{rank}.jsonl").read_text().splitlines()
    return [(row["step"], row["loss"], row["grad_norm"]) for row in map(json.loads, text)]


def hang(folder):
    """The answer of `tracekit hang` on a folder."""
    return judge_evidence(load_evidence(str(folder)), None, None)[0]


def manifest(out):
    return json.loads((out / "run.json").read_text())


def train(ranks, out, *arguments):
    done = ranks.reftrain("run", *TINY, "--out", out, *arguments).wait(patience(60))
    assert done.returncode == 0, done.stderr
    return done


@pytest.mark.slow
def test_losses_are_as_if_never_killed(ranks, tmp_path):
    steps = ["--mesh", "dp=3", "--steps", 5]
    train(ranks, tmp_path / "plain", *steps)
    killed = tmp_path / "killed"
    elastic = ["--elastic", "--set", "checkpoint.every=2", "--fault", "kill:rank=1,steps=3"]
    train(ranks, killed, *steps, *elastic)
    for rank in range(3):
        assert rows(killed, rank) == rows(tmp_path / "plain", rank)
    first = killed / "attempts" / "attempt-0"
    assert [step for step, *_ in rows(first)] == [0, 1, 2]
    assert manifest(killed)["attempts"] == [{"attempt": 0, "ranks": 3, "rank": 1, "by": "SIGKILL", "step": 3}]
    assert manifest(first)["faults"] == manifest(killed)["faults"]
    assert hang(first).culprits[0].rank == 1
    assert hang(killed).verdict == "none", "the last attempt came to its end"
    assert strangers(killed, of_a_run) == []


@pytest.mark.slow
def test_eight_ranks_killed_twice_from_outside(tmp_path):
    """A tenth of `python -m tests.reftrain.ten_kills`."""
    assert ten_kills.started(tmp_path / "plain", 50).wait() == 0
    assert ten_kills.killed(tmp_path / "killed", 50, 5, [(8, 3), (31, 6)]) == 0
    assert len(manifest(tmp_path / "killed")["attempts"]) == 2
    assert ten_kills.unequal(tmp_path / "plain", tmp_path / "killed", 50) == []


@pytest.mark.slow
def test_two_kills_a_trace_and_eight_ranks(ranks, tmp_path):
    steps = ["--mesh", "tp=2,pp=2,dp=2", "--steps", 9]
    train(ranks, tmp_path / "plain", *steps)
    killed = tmp_path / "killed"
    faults = ["--fault", "kill:rank=5,steps=3:9:4", "--fault", "kill:rank=0,steps=5"]
    train(ranks, killed, *steps, "--elastic", "--set", "checkpoint.every=2", "--trace", "4:6", *faults)
    assert rows(killed, 7) == rows(tmp_path / "plain", 7)
    assert [(a["rank"], a["step"]) for a in manifest(killed)["attempts"]] == [(5, 3), (0, 5), (5, 7)]
    attempts = [killed / "attempts" / f"attempt-{n}" for n in range(3)]
    assert [hang(folder).culprits[0].rank for folder in attempts] == [5, 0, 5]
    assert len([*(attempts[2] / "trace").iterdir()]) == 8, "traced whole in the attempt that came through"


@pytest.mark.slow
def test_a_rank_killed_from_outside_is_replaced(ranks, tmp_path):
    arguments = ["--mesh", "dp=3", "--steps", 40, "--set", "checkpoint.every=2", "--elastic"]
    job = ranks.reftrain("run", *TINY, "--out", tmp_path, *arguments)
    end = time.monotonic() + patience(60)
    while not finished(tmp_path / "checkpoint") and time.monotonic() < end:
        time.sleep(0.02)
    children = Path(f"/proc/{job.pid}/task/{job.pid}/children").read_text().split()
    os.kill(int(children[2]), signal.SIGKILL)
    assert job.wait(patience(60)).returncode == 0
    assert [step for step, *_ in rows(tmp_path)] == list(range(40))
    assert [(a["rank"], a["by"]) for a in manifest(tmp_path)["attempts"]] == [(2, "SIGKILL")]


@pytest.mark.slow
def test_a_frozen_rank_is_named_and_replaced(ranks, tmp_path):
    """It made no wrong call and reports nothing: it is the one that does not end when it is asked to."""
    arguments = ["--mesh", "dp=3", "--steps", 8, "--set", "checkpoint.every=2", "--elastic"]
    plant = ["--fault", "stop:rank=2,steps=5", "--set", f"evidence.timeout_s={patience(4)}"]
    train(ranks, tmp_path, *arguments, *plant)
    assert [step for step, *_ in rows(tmp_path)] == list(range(8))
    assert [(a["rank"], a["by"]) for a in manifest(tmp_path)["attempts"]] == [(2, "frozen")]
    first = tmp_path / "attempts" / "attempt-0"
    assert "rank 2 (process " in (first / "log" / "launcher.log").read_text()
    assert hang(first).culprits[0].rank == 2


@pytest.mark.slow
def test_the_job_shrinks_by_a_replica(ranks, tmp_path):
    steps = ["--mesh", "dp=3", "--steps", 6]
    train(ranks, tmp_path / "plain", *steps)
    shrunk = tmp_path / "shrunk"
    faults = ["--fault", "kill:rank=2,steps=3", "--fault", "kill:rank=1,steps=5"]
    train(ranks, shrunk, *steps, "--elastic", "--min-replicas", 2, "--set", "checkpoint.every=2", *faults)
    assert [a["ranks"] for a in manifest(shrunk)["attempts"]] == [3, 2]
    assert manifest(shrunk)["mesh"]["sizes"]["dp"] == 2
    whole, fewer = rows(tmp_path / "plain"), rows(shrunk)
    assert fewer[:2] == whole[:2], "with all replicas, bit by bit"
    assert [step for step, *_ in fewer] == [step for step, *_ in whole]
    assert [loss for _, loss, _ in fewer] == pytest.approx([loss for _, loss, _ in whole], rel=1e-3)


@pytest.mark.slow
def test_it_gives_up_when_no_restart_is_left(ranks, tmp_path):
    arguments = ["--mesh", "dp=3", "--steps", 9, "--elastic", "--max-restarts", 1]
    kills = ["--set", "checkpoint.every=4", "--fault", "kill:rank=1"]
    done = ranks.reftrain("run", *TINY, "--out", tmp_path, *arguments, *kills).wait(patience(60))
    assert done.returncode == 3
    assert done.stderr.startswith("reftrain: rank 1 (process ")
    assert done.stderr.endswith(
        "no restart is left of 1; raise elastic.restarts, and go on with --resume auto\n"
    )
    assert done.stderr.count("\n") == 1
    assert sorted(path.name for path in (tmp_path / "attempts").iterdir()) == ["attempt-0"]
    assert hang(tmp_path).culprits[0].rank == 1, "the last attempt lies in the run folder"


@pytest.mark.slow
def test_a_wrong_configuration_is_not_tried_again(ranks, tmp_path):
    arguments = ["--mesh", "dp=3", "--elastic", "--set", "checkpoint.every=2", "--set", "model.vocab_size=8"]
    done = ranks.reftrain("run", *TINY, "--out", tmp_path, *arguments).wait(patience(60))
    assert (done.returncode, done.stderr) == (
        2, "reftrain: model.vocab_size: 8 is too small for documents; give 16 or more\n",
    )  # fmt: skip
    assert not (tmp_path / "attempts").exists()


def configuration(**tables):
    return load(None, {"elastic": {"enabled": True}, "checkpoint": {"every": 2}, **tables})


def test_nothing_to_go_on_from_is_refused():
    with pytest.raises(ConfigError, match=r"checkpoint\.every: 0 saves nothing"):
        configuration(checkpoint={"every": 0})
    with pytest.raises(ConfigError, match=r"elastic\.min_replicas: 3 replicas are more than dp 2"):
        configuration(mesh={"dp": 2}, elastic={"enabled": True, "min_replicas": 3})


def test_checkpoints_of_another_job_are_refused(tmp_path):
    (tmp_path / "checkpoint" / "step-00000004").mkdir(parents=True)
    with pytest.raises(ConfigError, match="earlier job; go on from them with --resume auto"):
        Attempts(tmp_path, "")
    assert Attempts(tmp_path, "auto").source == "auto"


def test_shrinking_takes_the_next_size_that_divides():
    config = configuration(
        mesh={"dp": 4}, data={"batch_size": 8}, elastic={"enabled": True, "min_replicas": 1}
    )
    faults = replace(config.evidence, faults=("kill:rank=3", "kill:rank=1,axis=dp"))
    two = smaller(replace(config, evidence=faults))
    assert two.mesh.dp == 2, "8 sequences do not split over 3"
    assert two.evidence.faults == ("kill:rank=1,axis=dp",)
    assert smaller(two).mesh.dp == 1
    assert smaller(smaller(two)) is None


@pytest.mark.parametrize(
    ("text", "reached", "strikes"),
    [
        ("kill:rank=0,steps=2:9:3", -1, [2, 5, 8]),
        ("kill:rank=0,steps=2:9:3", 5, [8]),
        ("crash:rank=0,steps=2:9:3", -1, [2, 5, 8]),  # it dies in the first of them
        ("crash:rank=0,steps=2:9:3", 2, []),
    ],
)
def test_a_planted_death_strikes_a_step_once(text, reached, strikes):
    spec = parse_fault(text, 2)
    fault = PLANTS[spec.kind](spec, reached)
    fault.here = True
    active = []
    for step in range(10):
        fault.step_begin(step)
        active += [step] if fault.active else []
    assert active == strikes


def write_rows(out, steps, mode="a"):
    (out / "metrics").mkdir(exist_ok=True)
    with (out / "metrics" / "rank0.jsonl").open(mode) as file:
        file.writelines(json.dumps({"step": step, "loss": float(at)}) + "\n" for at, step in enumerate(steps))


def test_metrics_hold_each_step_once(tmp_path):
    attempts = Attempts(tmp_path, "")
    write_manifest(tmp_path, {"steps": 9})
    write_rows(tmp_path, [0, 1, 2])
    with (tmp_path / "metrics" / "rank0.jsonl").open("a") as file:
        file.write('{"step": 3, "lo')  # killed while it wrote
    attempts.end(Death(1, 7, signal.SIGKILL, None), 2)
    attempts.next("2 ranks")
    assert (tmp_path / "metrics" / "rank0.jsonl").read_text() == "", "no checkpoint yet"
    write_rows(tmp_path, [0, 1, 2, 3])
    (tmp_path / "checkpoint" / "step-00000002").mkdir(parents=True)
    attempts.end(Death(0, 8, 1 << 8, ("Other", "a sentence")), 2)
    attempts.next("2 ranks")
    write_rows(tmp_path, [2, 3])
    kept = (tmp_path / "metrics" / "rank0.jsonl").read_text().splitlines()
    assert [json.loads(row)["step"] for row in kept] == [0, 1, 2, 3]
    aside = (tmp_path / "attempts" / "attempt-0" / "metrics" / "rank0.jsonl").read_text()
    assert aside.count('"step"') == 4, "also the row that is not whole"
    assert [(e["rank"], e["by"], e["step"]) for e in attempts.ended] == [(1, "SIGKILL", 3), (0, "Other", 4)]
    log = (tmp_path / "attempts" / "attempt-1" / "log" / "launcher.log").read_text()
    assert "rank 0 (process 8) failed: a sentence\n" in log
    assert "attempt 2 goes on with 2 ranks from step 2\n" in log
    assert Attempts(tmp_path, "auto").number == 2, "a later job counts on"


def test_a_job_that_saved_nothing_begins_again(tmp_path):
    (tmp_path / "attempts" / "attempt-0").mkdir(parents=True)
    write_rows(tmp_path, [0, 1, 2])
    Attempts(tmp_path, "auto")
    assert (tmp_path / "metrics" / "rank0.jsonl").read_text() == ""
