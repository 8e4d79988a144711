"""The demo as users start it: what it leaves, and what it says when it cannot."""

import contextlib
import gzip
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

STEPS = 3
COMMAND = [sys.executable, "-m", "reftrain.demo"]


def _demo(*arguments, cwd=None):
    return subprocess.run(
        [*COMMAND, *map(str, arguments)], capture_output=True, text=True, timeout=250, check=False, cwd=cwd
    )


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    out = tmp_path_factory.mktemp("demo") / "run"
    done = _demo("--out", out, "--steps", STEPS, "--fault", "slow_compute:rank=2,factor=1.4")
    assert done.returncode == 0, done.stderr
    return out, done


def test_the_manifest_holds_the_truth(demo):
    out, _ = demo
    manifest = json.loads((out / "run.json").read_text())
    assert manifest["schema"] == "reftrain.run/1"
    assert manifest["mesh"] == {
        "order": ["tp", "cp", "pp", "dp"],
        "sizes": {"tp": 2, "cp": 1, "pp": 2, "dp": 2},
    }
    assert manifest["world_size"] == 8
    assert len(manifest["steps"]) == STEPS
    fault = manifest["faults"][0]
    assert (fault["kind"], fault["rank"], fault["factor"]) == ("slow_compute", 2, 1.4)
    assert 0.0 < fault["lag_ms"] < manifest["step_ms"]


def test_it_learns(demo):
    out, _ = demo
    loss = json.loads((out / "run.json").read_text())["loss"]
    assert loss[-1] < loss[0]


def test_every_rank_leaves_whole_steps_and_the_same_calls(demo):
    out, _ = demo
    assert sorted(p.name for p in (out / "trace").iterdir()) == [f"rank{r}.json.gz" for r in range(8)]
    calls = {}
    for rank in range(8):
        trace = json.loads(gzip.decompress((out / "trace" / f"rank{rank}.json.gz").read_bytes()))
        assert trace["distributedInfo"]["rank"] == rank
        steps = [e for e in trace["traceEvents"] if e["name"].startswith("ProfilerStep#")]
        assert len(steps) == STEPS
        comm = [e["args"] for e in trace["traceEvents"] if e["name"] == "record_param_comms"]
        calls[rank] = [(a["Process Group Ranks"], a["Collective name"], a["Seq"]) for a in comm]
    for first, second in ((0, 1), (2, 3), (4, 5), (6, 7)):
        members = f"[{first}, {second}]"
        mine, theirs = ([c for c in calls[r] if c[0] == members] for r in (first, second))
        assert mine == theirs != []


def test_nothing_but_the_run_is_left_beside_it(demo):
    out, done = demo
    assert [p.name for p in out.parent.iterdir()] == ["run"]
    assert done.stdout == ""
    assert str(STEPS) in done.stderr.splitlines()[-1]
    assert "USDT" not in done.stderr


def _processes_of(parent: int) -> list[int]:
    return [int(p) for p in Path(f"/proc/{parent}/task/{parent}/children").read_text().split()]


@pytest.fixture
def started(tmp_path):
    """A demo under way in `run` and its ranks' process numbers; whatever is left of it ends with the test."""
    before = signal.signal(signal.SIGINT, signal.SIG_DFL)  # a test run started in the background ignores it
    try:
        process = subprocess.Popen(
            [*COMMAND, "--out", str(tmp_path / "run"), "--steps", "200"],
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
    finally:
        signal.signal(signal.SIGINT, before)
    try:
        yield process, _ranks_of(process)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def _ranks_of(process):
    deadline = time.monotonic() + 120
    while len(ranks := _processes_of(process.pid)) < 8:
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.1)
    return ranks


def _gone(pids):
    return all(not Path(f"/proc/{pid}").exists() for pid in pids)


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="finds the ranks through /proc")
def test_a_killed_rank_is_named_and_the_others_end(started, tmp_path):
    process, ranks = started
    os.kill(ranks[3], signal.SIGKILL)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 3
    assert f"rank 3 (process {ranks[3]}) was killed by SIGKILL" in said
    assert _gone(ranks)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="finds the ranks through /proc")
def test_ctrl_c_leaves_nothing_behind(started, tmp_path):
    process, ranks = started
    os.killpg(process.pid, signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in said
    assert "interrupted" in said
    assert _gone(ranks)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_of_something_else_is_not_replaced(tmp_path):
    (tmp_path / "thesis.tex").write_text("precious")
    done = _demo("--out", tmp_path)
    assert done.returncode == 2
    assert "no earlier run of this demo" in done.stderr
    assert (tmp_path / "thesis.tex").read_text() == "precious"


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["--fault", "slow_compute:rank=8"], 2, "fault.rank: '8' is no rank of a world of 8"),
        (["--fault", "crash:rank=1"], 2, "cannot plant crash"),
        (["--fault", "slow:rank=1"], 2, "no such kind 'slow'"),
        (["--steps", "0"], 2, "between 2 and 200"),
        (["--out", "/proc/nowhere/run"], 3, "give another --out"),
    ],
)
def test_one_clear_sentence_for_bad_input(arguments, code, words, tmp_path):
    done = _demo(*arguments, cwd=tmp_path)
    assert done.returncode == code
    assert words in done.stderr
    assert "Traceback" not in done.stderr
    assert not re.search(r"training on", done.stderr)
    assert list(tmp_path.iterdir()) == []
