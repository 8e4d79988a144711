"""What a run refuses instead of leaving something out without a word, and what the machine refuses to a run."""

import errno
import json
import os
import resource
import signal
import sys
import time
from pathlib import Path

import pytest
import torch
from tracekit_cli import reftrain as command

from reftrain.config.fault_spec import parse_fault
from reftrain.config.file import load
from reftrain.errors import ConfigError, MachineError
from reftrain.faults.registry import fault_hooks, read_faults
from reftrain.job.one_rank import _check_resumed, choose_device, let_ranks_share_gpus, stderr_unless_it_fails
from reftrain.rank import processes as rank_processes
from reftrain.rank.events import CollectiveCall
from reftrain.rank.hooks import RunContext
from reftrain.rank.processes import Ranks, describe_error, refusal

TINY = ["--set", "model.layers=2", "--set", "data.batch_size=4", "--set", "data.seq_len=32"]


@pytest.fixture
def run(ranks):
    """Run `reftrain run` on a tiny job; how it ended."""

    def started(out, *arguments, **how):
        return ranks.reftrain("run", *TINY, "--out", out, *arguments, **how).wait()

    return started


@pytest.mark.parametrize(
    ("tables", "words"),
    [
        (
            {"evidence": {"trace_steps": [2, 9]}},
            r"evidence\.trace_steps: step 9 is not among the run's steps 0 to 3",
        ),
        ({"evidence": {"trace_steps": [-1]}}, r"evidence\.trace_steps: -1 is not within bounds"),
        (
            {"optimizer": {"learning_rate": float("nan")}},
            r"optimizer\.learning_rate: nan is not within bounds; give 0 to",
        ),
        ({"run": {"emulated_gflops": float("inf")}}, r"run\.emulated_gflops: inf is not within bounds"),
        ({"data": {"padding": float("nan")}}, r"data\.padding: nan is not within bounds; give 0 to 1"),
        (
            {"run": {"device": "cpu", "share_gpus": True}},
            r"run\.share_gpus: device = cpu has no GPUs to share",
        ),
    ],
)
def test_configurations(tables, words):
    with pytest.raises(ConfigError, match=words):
        load(None, tables)


def test_ranks_share_gpus_only_when_asked(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", lambda _: None)
    with pytest.raises(ConfigError, match=r"rank 2 of this machine has no GPU of 2; .*share_gpus"):
        choose_device(load(None, {}), 2)
    shared = load(None, {"run": {"share_gpus": True}})
    assert [choose_device(shared, rank).index for rank in range(5)] == [0, 1, 0, 1, 0]
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    with pytest.raises(ConfigError, match="no GPU of 0"):
        choose_device(shared, 0)


def test_flex_attention_needs_a_gpu():
    with pytest.raises(ConfigError, match="flex has no backward on a CPU; choose sdpa, math or documents"):
        choose_device(load(None, {"run": {"device": "cpu"}, "numerics": {"attention": "flex"}}), 0)


def test_sharing_sets_nccl_hosts_and_keeps_user_settings(monkeypatch):
    for name in [n for n in os.environ if n.startswith("NCCL_")]:
        monkeypatch.delenv(name)
    monkeypatch.setattr(os, "environ", dict(os.environ, NCCL_SOCKET_IFNAME="eth0"))
    let_ranks_share_gpus(3)
    assert (os.environ["NCCL_HOSTID"], os.environ["NCCL_SOCKET_IFNAME"]) == ("reftrain-3", "eth0")


@pytest.mark.parametrize(
    ("fault", "mesh", "words"),
    [
        (
            "slow_compute:rank=0,steps=4:",
            {"dp": 2},
            r"fault\.steps: slow_compute would begin in step 4 of a run with last step 3",
        ),
        ("host_stall:rank=0", {}, "fault: host_stall strikes at communication, and one rank has none"),
        ("slow_link:rank=0", {}, "fault: slow_link strikes at communication"),
    ],
)
def test_faults_that_would_never_strike(fault, mesh, words):
    config = load(None, {"mesh": mesh, "evidence": {"faults": [fault]}})
    with pytest.raises(ConfigError, match=words):
        read_faults(config)


def hang(text, **checkpoint):
    config = load(None, {"mesh": {"dp": 2}, "checkpoint": checkpoint})
    (made,) = fault_hooks([parse_fault(text, 2)])
    made.setup(RunContext(config, None, 0, torch.device("cpu")))
    made.step_begin(0)
    made.strike = lambda call: None
    return made


def test_a_hang_that_never_struck_is_reported_last():
    call = CollectiveCall("dp", "all_reduce", "x", torch.zeros(1), None, 1)
    missed = hang("host_stall:rank=0,axis=dp,op=send")
    missed.collective_begin(call)
    with pytest.raises(ConfigError, match="host_stall never struck: in its steps rank 0 made no send on dp"):
        missed.close()
    struck = hang("host_stall:rank=0,axis=dp")
    struck.collective_begin(call)
    struck.close()
    hang("host_stall:rank=1").close()  # the other rank's
    hang("host_stall:rank=0", resume="auto").close()  # it may have struck before the restart


def test_a_missed_hang_does_not_hide_another_error():
    def failing():
        try:
            raise KeyError("first")
        finally:
            hang("host_stall:rank=0").close()

    with pytest.raises(KeyError, match="first"):
        failing()


def test_a_named_checkpoint_that_leaves_nothing_to_do():
    def resumed(at, **tables):
        _check_resumed(load(None, {"checkpoint": {"resume": "elsewhere"}, **tables}), at)

    resumed(3)
    with pytest.raises(ConfigError, match=r"run\.steps: the checkpoint is at step 4, but run\.steps is 4"):
        resumed(4)
    with pytest.raises(
        ConfigError, match=r"evidence\.trace_steps: step 1 is before step 2, where the run resumes"
    ):
        resumed(2, evidence={"trace_steps": [1, 3]})
    _check_resumed(load(None, {"checkpoint": {"resume": "auto"}}), 4)  # a restarted job that was done


def test_a_machine_that_gives_no_process_is_named(monkeypatch):
    def refuse():
        raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")

    monkeypatch.setattr(rank_processes.os, "fork", refuse)
    with pytest.raises(
        MachineError, match="rank 0 cannot be started: Resource temporarily unavailable; start fewer"
    ):
        Ranks().fork(lambda: None)
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == set(), "interrupts come again"


def test_refusals_name_the_file_and_any_remedy():
    assert refusal(OSError(errno.EFBIG, "File too large", "a/b")) == (
        "a/b: File too large; free space or choose another out"
    )
    assert refusal(FileNotFoundError(errno.ENOENT, "No such file", "a")) == "a: No such file"
    short = OSError("8192 requested and 1888 written")  # numpy's
    assert refusal(short) == "a file could not be written whole; free space or choose another out"
    assert describe_error(short) == ("MachineError", refusal(short))


def limited():
    """Files may grow to 100 kB: what a full disk does, at a place of our choice."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))


@pytest.mark.parametrize(
    "extra", [["--trace", "1:3"], ["--set", "checkpoint.every=1"]], ids=["trace", "checkpoint"]
)
def test_a_full_disk_is_one_sentence(run, tmp_path, extra):
    done = run(tmp_path, "--mesh", "dp=2", "--steps", "3", *extra, before=limited)
    assert done.returncode == 3, done.stderr
    last = done.stderr.splitlines()[-1]
    assert last.startswith("reftrain: ")
    assert "free space or choose another out" in last
    assert "Traceback" not in done.stderr
    assert not list(tmp_path.rglob("*.gz"))
    assert not list(tmp_path.glob("checkpoint/step-*"))


def test_ranks_leave_an_interrupt_to_their_parent():
    """Ctrl-C reaches the whole group; a rank that took it would write a traceback of its own."""
    ranks = Ranks()
    ranks.fork(lambda: time.sleep(60))
    try:
        os.kill(ranks.pids[0], signal.SIGINT)
        time.sleep(0.3)
        assert os.waitpid(ranks.pids[0], os.WNOHANG) == (0, 0), "it lives"
    finally:
        ranks.end()
    assert not ranks.living
    assert not Path(f"/proc/{ranks.pids[0]}").exists()


def test_a_run_folder_records_a_fault_that_missed(run, tmp_path):
    """The sentence comes at the end of the whole run; the run itself is as good as any."""
    done = run(tmp_path, "--mesh", "dp=2", "--steps", "2", "--fault", "crash:rank=1,axis=dp,op=recv")
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1] == (
        "reftrain: fault: crash never struck: in its steps rank 1 made no recv on dp; choose another axis, op or rank"
    )
    assert json.loads((tmp_path / "run.json").read_text())["faults"][0]["kind"] == "crash"


def test_a_damaged_checkpoint_is_one_sentence(run, tmp_path):
    assert run(tmp_path, "--steps", "1", "--set", "checkpoint.every=1").returncode == 0
    (data,) = tmp_path.glob("checkpoint/step-*/*.distcp")
    os.truncate(data, 1000)
    done = run(tmp_path, "--steps", "2", "--resume", data.parent)
    assert done.returncode == 3
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith(f"reftrain: {data.parent}: ")
    assert done.stderr.endswith("; name another finished checkpoint\n")


@pytest.mark.slow
def test_ranks_that_cannot_meet_say_so_in_one_sentence(run, tmp_path):
    """torch would add fifty lines of a C++ stack."""
    here = {"RANK": "1", "LOCAL_RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "9"}
    done = run(tmp_path, "--mesh", "dp=2", "--set", "evidence.timeout_s=2", environment=here)
    assert done.returncode == 3
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith("reftrain: rank 1 cannot meet the others at env://: ")


def test_cpp_output_is_kept_when_the_block_succeeds(capfd):
    with stderr_unless_it_fails():
        os.write(2, b"a warning\n")
    assert capfd.readouterr().err == "a warning\n"

    def failing():
        with stderr_unless_it_fails():
            os.write(2, b"fifty lines\n")
            raise ValueError("in short")

    with pytest.raises(ValueError, match="in short"):
        failing()
    os.write(2, b"again\n")
    assert capfd.readouterr().err == "again\n"


def test_an_unwritable_file_and_an_internal_error(capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["reftrain", "faults", "--json", "/proc/nowhere/faults.json"])
    with pytest.raises(SystemExit) as stop:
        command.main()
    said = capsys.readouterr().err
    assert (stop.value.code, said) == (
        3,
        "reftrain: /proc/nowhere/faults.json: cannot be written (its folder does not exist); name another file\n",
    )  # fmt: skip

    def broken(**_):
        raise RuntimeError("so it is")

    monkeypatch.setattr(command.reftrain, "main", broken)
    monkeypatch.delenv("TRACEKIT_DEBUG", raising=False)
    with pytest.raises(SystemExit) as stop:
        command.main()
    assert stop.value.code == 70
    assert capsys.readouterr().err == (
        "reftrain: a fault of ours, please report it: RuntimeError: so it is (TRACEKIT_DEBUG=1 shows where)\n"
    )


def test_a_dry_run_checks_the_faults(capsys, monkeypatch):
    words = [
        "reftrain",
        "run",
        "--preset",
        "tiny",
        "--mesh",
        "dp=2",
        "--dry-run",
        "--fault",
        "slow_compute:rank=9",
    ]
    monkeypatch.setattr(sys, "argv", words)
    with pytest.raises(SystemExit) as stop:
        command.main()
    assert stop.value.code == 2
    assert "'9' is not a rank of a world of 2" in capsys.readouterr().err
