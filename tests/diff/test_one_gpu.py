"""One GPU without communication: diff and breakdown answer, slowrank says why it cannot; empty traces are named so."""

import json

import pytest

import tracekit
from tracekit.errors import InputError
from tracekit.ingest import load

KERNELS, LAUNCH_US = 6, 45.0


def span(cat, name, ts, dur, **args):
    return {"ph": "X", "cat": cat, "name": name, "pid": 10, "tid": 10, "ts": ts, "dur": dur, "args": args}


def trace(gemm_us=900.0, steps=5, *, rank=None, gpu=True, marks=True):
    """A trace of steps of six kernels; `gemm_us` long are those of matrix products."""
    events, at = [], 1e6
    for step in range(steps):
        begin = at
        for k in range(KERNELS):
            number = step * KERNELS + k
            name, us = ("gemm", gemm_us + step) if k % 2 else ("gelu", 400.0 + k)
            events.append(span("cpu_op", "aten::op", at, 30.0, **{"External id": number}))
            if gpu:
                events.append(span("cuda_runtime", "cudaLaunchKernel", at + 5, 10.0, correlation=number))
                args = {"device": 0, "stream": 7, "correlation": number}
                events.append(span("kernel", name, at + 40, us, **args) | {"pid": 0, "tid": 7})
            at += us + LAUNCH_US
        if marks:
            events.append(span("user_annotation", f"ProfilerStep#{step}", begin, at - begin))
    told = {} if rank is None else {"distributedInfo": {"rank": rank, "world_size": 1}}
    return {"schemaVersion": 1, **told, "traceEvents": events}


def kept(path, document):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document))
    return path


@pytest.mark.parametrize(
    ("name", "rank"),
    [("trace.json", None), ("rank0.json", None), ("trace.json", 0), ("h_12.1690000000.pt.trace.json", None)],
)
def test_two_traces_of_one_gpu_are_compared(tmp_path, name, rank):
    before, after = (
        load(kept(tmp_path / side / name, trace(us, rank=rank))) for side, us in (("a", 900.0), ("b", 1100.0))
    )
    found = tracekit.diff(before, after)
    assert found.verdict == "slower"
    assert found.step.change_ns == pytest.approx(600e3, rel=0.01)
    assert [(c.what, round(c.change_ns)) for c in found.kernels if c.proven] == [("gemm", 600_000)]
    assert [c.what for c in found.parts if c.proven] == ["compute"]


@pytest.mark.parametrize(("rank", "world"), [(3, None), (0, 8), (5, 8)])
def test_one_rank_without_communication_needs_no_mesh(tmp_path, rank, world):
    """Its number may come from a file's name, and the other ranks of its job have nothing to do with it."""
    runs = []
    for side, us in (("a", 900.0), ("b", 1100.0)):
        document = trace(us)
        if world is not None:
            document["distributedInfo"] = {"rank": rank, "world_size": world}
        runs.append(load(kept(tmp_path / side / f"rank{rank}.json", document)))
    found = tracekit.diff(*runs)
    assert (found.verdict, found.step.change_ns) == ("slower", pytest.approx(600e3, rel=0.01))
    assert tracekit.breakdown(runs[0]).total.compute_ns > 0
    with pytest.raises(InputError):
        tracekit.slowrank(runs[0])


def test_breakdown_of_one_gpu_adds_up(tmp_path):
    found = tracekit.breakdown(load(kept(tmp_path / "trace.json", trace())))
    assert found.traffic == ()
    assert len(found.steps.analysed) == 5
    assert found.total.compute_ns == pytest.approx(5 * (3 * 902 + 3 * 402) * 1000, rel=0.001)
    assert "no_communication" in {q.kind for q in found.quality}


def test_a_trace_of_the_host_alone_has_steps(tmp_path):
    run = load(kept(tmp_path / "trace.json", trace(gpu=False)))
    assert tracekit.diff(run, run).verdict == "unchanged"


def test_unmarked_traces_compare_kernels_and_prove_nothing(tmp_path):
    before, after = (load(kept(tmp_path / f"{us}.json", trace(us, marks=False))) for us in (900.0, 1100.0))
    found = tracekit.diff(before, after)
    assert found.verdict == "inconclusive"
    assert found.kernels[0].what == "gemm"


def test_slowrank_sends_one_gpu_elsewhere(tmp_path):
    with pytest.raises(
        InputError, match="one process, so there is no rank to compare it with; use tracekit breakdown"
    ):
        tracekit.slowrank(load(kept(tmp_path / "trace.json", trace(rank=0))))


def test_a_trace_without_rank_may_be_of_no_training(tmp_path):
    with pytest.raises(
        InputError, match=r"names neither its rank nor any communication, .* or of no training job"
    ):
        tracekit.slowrank(load(kept(tmp_path / "trace.json", trace())))


def test_a_trace_of_another_program_is_refused(tmp_path):
    events = [span("blink", name, ts, 20.0) for name, ts in (("Paint", 1e6), ("Layout", 2e6))]
    with pytest.raises(
        InputError, match=r"it is of another program; give the traces that torch.profiler wrote"
    ):
        load(kept(tmp_path / "browser.json", {"traceEvents": events}))


def test_several_files_without_ranks_are_not_guessed(tmp_path):
    for number in range(2):
        kept(tmp_path / f"node_{number}.json", trace())
    with pytest.raises(InputError, match="its rank is unknown"):
        load(tmp_path)


def test_a_rank_is_not_assumed_beside_communication(tmp_path):
    document = trace()
    document["traceEvents"].append(span("kernel", "ncclDevKernel_AllReduce", 5e6, 50.0, device=0, stream=9))
    with pytest.raises(InputError, match="its rank is unknown"):
        load(kept(tmp_path / "trace.json", document))


def test_ranks_without_communication_are_told_why(tmp_path):
    for rank in range(4):
        document = trace(gpu=rank < 0) | {"distributedInfo": {"rank": rank, "world_size": 4}}
        kept(tmp_path / "cpu" / f"rank{rank}.json", document)
        document = trace() | {"distributedInfo": {"rank": rank, "world_size": 4}}
        kept(tmp_path / "gpu" / f"rank{rank}.json", document)
    with pytest.raises(InputError, match=r"only CPU events.*activities=\[CPU, CUDA\]"):
        tracekit.slowrank(load(tmp_path / "cpu"))
    with pytest.raises(InputError, match="record whole training steps"):
        tracekit.slowrank(load(tmp_path / "gpu"))


OWN = span("Trace", "PyTorch Profiler (0)", 1e6, 500.0)


@pytest.mark.parametrize(
    ("events", "said"),
    [
        ([], "it is empty: the profiler recorded nothing"),
        (
            [{"ph": "M", "name": "process_name", "pid": 1, "tid": 0, "args": {"name": "python"}}],
            "it is empty: the",
        ),
        ([OWN], "a cycle of its schedule had begun again"),
        ([OWN, span("cuda_runtime", "cudaDeviceSynchronize", 1e6, 9.0)], "export in on_trace_ready"),
        (
            [span("user_annotation", f"ProfilerStep#{s}", 1e6 + s, 1.0) for s in range(3)],
            "empty but for marks of steps",
        ),
    ],
    ids=["nothing", "metadata", "itself", "synchronize", "marks"],
)
def test_an_empty_trace_is_called_empty(tmp_path, events, said):
    for rank in range(2):
        kept(
            tmp_path / f"rank{rank}.json",
            {"distributedInfo": {"rank": rank, "world_size": 2}, "traceEvents": events},
        )
    with pytest.raises(InputError, match=said):
        load(tmp_path)
