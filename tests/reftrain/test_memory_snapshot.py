"""The allocator's snapshot: refused with a sentence on a CPU; on CUDA written once, whole, and in time.

torch's two calls are replaced here by ones that need no GPU; tests/gpu opens a real snapshot.
"""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from reftrain.config.file import load
from reftrain.errors import ConfigError
from reftrain.rank.events import CollectiveCall, StepMetrics
from reftrain.rank.hooks import RunContext
from reftrain.record.allocator import AllocatorSnapshot
from reftrain.record.evidence import StepTrace

METRICS = StepMetrics(0, 1.0, 1.0, 1e-3, 8, 8, 0.1, None, 1)
CUDA = torch.device("cuda")


@pytest.fixture
def allocator(monkeypatch):
    """What the allocator was asked for: 'on', 'off', or the name of a file."""
    asked = []
    monkeypatch.setattr(
        torch.cuda.memory,
        "_record_memory_history",
        lambda **how: asked.append("on" if how.get("max_entries") else "off"),
    )

    def dump(filename):
        asked.append(Path(filename).name)
        Path(filename).write_bytes(b"snapshot")

    monkeypatch.setattr(torch.cuda.memory, "_dump_snapshot", dump)
    return asked


def made(out, last):
    hook = AllocatorSnapshot(last)
    config = load(None, {"run": {"out": str(out)}})
    hook.setup(RunContext(config, None, 3, CUDA))
    return hook


def left(out):
    return {path.name: path.read_bytes() for path in (out / "memory").iterdir()}


def test_written_after_the_last_traced_step_and_only_then(tmp_path, allocator):
    hook = made(tmp_path, 1)
    hook.step_end(METRICS)
    assert left(tmp_path) == {}
    hook.step_end(replace(METRICS, step=1))
    assert left(tmp_path) == {"rank3.pickle": b"snapshot"}
    hook.step_end(replace(METRICS, step=1))
    hook.close()
    assert allocator == ["on", ".rank3.pickle.tmp", "off"]


def test_without_traced_steps_written_at_the_end(tmp_path, allocator):
    hook = made(tmp_path, None)
    hook.step_end(METRICS)
    assert left(tmp_path) == {}
    hook.close()
    assert left(tmp_path) == {"rank3.pickle": b"snapshot"}
    assert allocator[-1] == "off"


def run_out_of_memory(hook):
    try:
        raise torch.OutOfMemoryError("no more")
    finally:
        hook.close()


def test_an_error_that_ends_the_run_leaves_a_snapshot(tmp_path, allocator):
    hook = made(tmp_path, 9)
    with pytest.raises(torch.OutOfMemoryError):
        run_out_of_memory(hook)
    assert left(tmp_path) == {"rank3.pickle": b"snapshot"}


def refuse(filename):
    Path(filename).write_bytes(b"half")
    raise OSError(28, "No space left on device", filename)


def test_a_full_disk_leaves_no_half_file(tmp_path, allocator, monkeypatch):
    monkeypatch.setattr(torch.cuda.memory, "_dump_snapshot", refuse)
    with pytest.raises(OSError, match="No space left"):
        made(tmp_path, None).close()
    assert left(tmp_path) == {}
    assert allocator == ["on", "off"]


def test_it_does_not_hide_the_runs_error(tmp_path, allocator, monkeypatch):
    monkeypatch.setattr(torch.cuda.memory, "_dump_snapshot", refuse)
    hook = made(tmp_path, None)
    with pytest.raises(torch.OutOfMemoryError, match="no more"):
        run_out_of_memory(hook)


def test_a_cpu_has_no_such_history():
    with pytest.raises(
        ConfigError, match=r"evidence\.memory_snapshot: torch's allocator keeps no history on a CPU"
    ):
        load(None, {"run": {"device": "cpu"}, "evidence": {"memory_snapshot": True}})
    hook = AllocatorSnapshot(None)
    with pytest.raises(ConfigError, match="rank 3 computes on cpu, where torch's allocator keeps no history"):
        hook.setup(RunContext(load(None, {}), None, 3, torch.device("cpu")))
    hook.close()


@pytest.mark.skipif(torch.cuda.is_available(), reason="here auto means CUDA")
def test_the_command_says_so_in_one_sentence(ranks, tmp_path):
    snapshot = ["--set", "evidence.memory_snapshot=true"]
    done = ranks.reftrain("run", "--mesh", "dp=2", "--out", tmp_path, *snapshot).wait()
    assert done.returncode == 2
    assert done.stderr.startswith("reftrain: evidence.memory_snapshot: rank ")
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "memory").exists()


def test_on_cuda_nccls_own_span_stands(tmp_path, monkeypatch):
    """Otherwise each call would stand in the trace twice."""
    spans = []
    monkeypatch.setattr("reftrain.record.evidence.Span", spans.append)
    config = load(None, {"run": {"out": str(tmp_path)}})
    call = CollectiveCall("dp", "all_reduce", "x", torch.zeros(1), None, 1)
    counted = []
    for device in ("cuda", "cpu"):
        trace = StepTrace([0])
        monkeypatch.setattr(trace._groups, "info", lambda group: group)
        monkeypatch.setattr(trace._groups, "next_collective", lambda info: counted.append(info) or 1)
        monkeypatch.setattr("reftrain.record.evidence.arguments", lambda *values: {})
        trace.setup(RunContext(config, None, 0, torch.device(device)))
        trace._profiler = object()
        trace.collective_begin(call)
        assert len(spans) == (device == "cpu")
    assert len(counted) == 2
