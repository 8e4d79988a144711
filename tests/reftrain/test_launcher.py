"""The command: ranks that die are named, runs resume, and what cannot start says why."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tracekit_cli import reftrain as command

from reftrain.config.file import load
from reftrain.errors import ConfigError
from reftrain.rank.world import World, world_from_environment
from reftrain.train.checkpoint import finished
from tests.ranks.patience import patience

TINY = ["--set", "model.layers=2", "--set", "data.batch_size=4", "--set", "data.seq_len=32"]


@pytest.fixture
def start(ranks):
    """Start `reftrain run` on a tiny job."""

    def run(*arguments, **environment):
        return ranks.reftrain("run", *TINY, *arguments, environment=environment)

    return run


def children(pid):
    return [int(p) for p in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def wait_for(condition, seconds=60):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return
        time.sleep(0.05)
    raise AssertionError("did not happen in time")


def refused(capsys, monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["reftrain", "run", *map(str, arguments)])
    with pytest.raises(SystemExit) as stop:
        command.main()
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1, "one sentence"
    return stop.value.code, captured.err


def test_a_killed_rank_is_named_and_the_run_resumes(start, tmp_path):
    arguments = ["--mesh", "tp=2,dp=2", "--out", tmp_path, "--set", "checkpoint.every=2"]
    job = start(*arguments, "--steps", 100000)
    wait_for(lambda: finished(tmp_path / "checkpoint"))
    victims = children(job.pid)
    assert len(victims) == 4
    os.kill(victims[2], signal.SIGKILL)
    done = job.wait(patience(8))
    assert done.returncode == 3
    assert (
        f"reftrain: rank 2 (process {victims[2]}) was killed by SIGKILL; ended the other 3 ranks"
        in done.stderr
    )
    assert not any(Path(f"/proc/{pid}").exists() for pid in victims)
    last = finished(tmp_path / "checkpoint")[-1][0]
    again = start(*arguments, "--steps", last + 1, "--resume", "auto").wait()
    assert again.returncode == 0
    assert again.stderr.startswith(f"step {last}  loss")
    assert again.stderr.count("\n") == 1


def test_ranks_end_with_their_parent(start, tmp_path):
    job = start("--mesh", "dp=2", "--steps", 100000, "--out", tmp_path)
    wait_for(lambda: "\n" in job.said())
    pids = children(job.pid)
    assert len(pids) == 2
    job.kill()
    job.wait()
    wait_for(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids))


@pytest.mark.slow
def test_torchrun_starts_the_same_run(tmp_path):
    """One smoke test with torchrun itself; the two ranks join the world it made."""
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m",
         "tracekit_cli.reftrain", "run", *TINY, "--mesh", "dp=2", "--steps", "1", "--out", str(tmp_path)],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("step 0  loss") == 1


def test_port_in_use(start, tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        job = start(
            "--mesh", "dp=2", "--out", tmp_path,
            RANK="0", LOCAL_RANK="0", WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port),
        )  # fmt: skip
        done = job.wait()
    said = done.stderr
    assert done.returncode == 3
    assert "reftrain: rank 0 cannot meet the others at env://" in said
    assert "choose a free MASTER_PORT" in said
    assert "Traceback" not in said


def test_folder_that_cannot_be_written(capsys, monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    code, said = refused(capsys, monkeypatch, "--out", tmp_path / "file" / "run")
    assert code == 3
    assert said == f"reftrain: {tmp_path}/file/run: Not a directory; choose another out\n"


MISCONFIGURATIONS = {
    "--mesh tp=3": "mesh.tp: 8 heads cannot be split over tp 3; choose tp among 1, 2, 4, 8",
    "--mesh tp=2,dq=3": "--mesh: unknown axis 'dq' in 'tp=2,dq=3'; the axes are tp, cp, pp, dp, ep",
    "--mesh cp=3": (
        "mesh.cp: the sequence of 64 tokens cannot be cut into 2·cp = 6 chunks; "
        "choose data.seq_len as a multiple of 6"
    ),
    "--mesh dp=3": (
        "data.batch_size: 8 sequences do not split over dp 3 by 1 a micro-batch; choose a multiple of 3"
    ),
    "--set mesh.zreo=3": "mesh.zreo: is not a field; did you mean zero?",
    "--set steps=3": "--set: 'steps=3' is not a table.field=value; write for example optimizer.clip_norm=0.5",
    "--set numerics.policy=fp8": (
        "numerics.policy: 'fp8' is unknown; choose among bf16, bf16_pure, fp32, fp64"
    ),
    "--set data.micro_batches=3": (
        "data.micro_batches: 3 micro-batches of 1 on dp 1 make 3 sequences, not 8; give 8, or leave it out"
    ),
    "--preset 9b": (
        "model.preset: '9b' is unknown; choose among "
        "tiny, sensitive, small, 8b, 8x7b, 70b, 405b, llama2_7b, llama2_13b, llama2_70b, tiny_vision, 70b_vision"
    ),
    "--set run.steps=0": "run.steps: 0 is not within bounds; give 1 to 1000000000",
    "none.toml": "none.toml: No such file or directory; give a readable TOML file",
}


@pytest.mark.parametrize("arguments", MISCONFIGURATIONS)
def test_misconfigurations_exit_2_with_one_sentence(capsys, monkeypatch, arguments):
    said = f"reftrain: {MISCONFIGURATIONS[arguments]}\n"
    assert refused(capsys, monkeypatch, *arguments.split()) == (2, said)


def test_world_of_another_size_exits_2(capsys, monkeypatch, tmp_path):
    for name, value in {"RANK": "0", "WORLD_SIZE": "6", "LOCAL_RANK": "0"}.items():
        monkeypatch.setenv(name, value)
    code, said = refused(capsys, monkeypatch, "--mesh", "tp=2,dp=2", "--out", tmp_path)
    assert code == 2
    assert said.startswith("reftrain: mesh: tp 2 * dp 2 * cp 1 * pp 1 = 4 ranks, but 6 were started")


def test_a_rank_that_fails_is_named(start, tmp_path):
    """The vocabulary is too small for documents: only the ranks find out."""
    done = start("--mesh", "dp=2", "--out", tmp_path, "--set", "model.vocab_size=8").wait()
    assert done.returncode == 2
    assert done.stderr == "reftrain: model.vocab_size: 8 is too small for documents; give 16 or more\n"


def test_world_from_environment():
    assert world_from_environment({}) is None
    torchrun = {"RANK": "5", "LOCAL_RANK": "1", "WORLD_SIZE": "8"}
    assert world_from_environment(torchrun) == World(5, 1, 8, "env://")
    slurm = {
        "SLURM_PROCID": "9",
        "SLURM_LOCALID": "1",
        "SLURM_NTASKS": "16",
        "SLURM_JOB_ID": "123456",
        "MASTER_ADDR": "node1",
    }
    assert world_from_environment(slurm) == World(9, 1, 16, "tcp://node1:23456")
    assert world_from_environment({**slurm, "MASTER_PORT": "4000"}).meeting == "tcp://node1:4000"
    with pytest.raises(ConfigError, match="RANK: 'x' is not a number"):
        world_from_environment({**torchrun, "RANK": "x"})


@pytest.mark.slow
def test_a_planted_hang_leaves_dumps_and_ends_all_ranks(start, tmp_path):
    """Whoever waits gives up, the others are ended, and the sentence says where to look."""
    job = start(
        "--mesh", "dp=2", "--out", tmp_path, "--steps", 100,
        "--fault", "host_stall:rank=1,steps=1", "--set", f"evidence.timeout_s={patience(2)}",
    )  # fmt: skip
    done = job.wait(patience(90))
    assert done.returncode == 3
    last = done.stderr.splitlines()[-1]
    assert last.startswith("reftrain: rank 0 (process ")
    assert "waited in vain for another rank" in last
    assert last.endswith(f"ended the other 1 ranks; tracekit hang {tmp_path}/fr shows which rank never came")
    assert sorted(p.name for p in (tmp_path / "fr").iterdir()) == ["rank_0", "rank_1"]
    assert json.loads((tmp_path / "run.json").read_text())["faults"][0]["kind"] == "host_stall"


def test_hangs_end_soon_and_keep_dumps_unless_told_otherwise():
    def evidence(*faults, **given):
        return load(None, {"mesh": {"dp": 2}, "evidence": {"faults": list(faults), **given}}).evidence

    assert (evidence().waiting_s, evidence().records_flight) == (600, False)
    slow = evidence("slow_compute:rank=0")
    assert (slow.waiting_s, slow.records_flight) == (600, False)
    hang = evidence("slow_compute:rank=0", "crash:rank=1")
    assert (hang.waiting_s, hang.records_flight) == (25, True)
    assert evidence("crash:rank=1", timeout_s=70.0).waiting_s == 70
    assert evidence(flight_recorder=True).records_flight
