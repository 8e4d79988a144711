import gzip
import json
import subprocess
import sys

import pytest
import torch
import torch.distributed as dist

from reftrain.record.groups import GroupInfo
from reftrain.record.kineto import STANDARD_NAME, StepProfiler, outermost
from reftrain.record.spans import CommSpans, Span, arguments
from tests.record.alone import run_ranks

STEPS = (7, 8)


def _record(rank, folder):
    pair = [dist.new_group(m, group_desc="mesh_tp") for m in ([0, 1], [2])][rank // 2]
    ends = dist.new_group([0, 2], group_desc="mesh_pp")
    spans = CommSpans()
    profiler = StepProfiler()
    profiler.start()
    tensor = torch.ones(30)
    for step in STEPS:
        with profiler.step(step):
            with spans.blocking("allreduce", pair, tensor, tensor.numel()):
                dist.all_reduce(tensor, group=pair)
            _ = tensor.view(5, 6) @ tensor.view(6, 5)
            if rank != 1:
                op, peer = ("send", 2) if rank == 0 else ("recv", 0)
                span = spans.p2p(op, ends, tensor, peer)
                (dist.send if rank == 0 else dist.recv)(tensor, peer, group=ends)
                span.end()
                span.end()  # closing twice is harmless
    wide = GroupInfo("wide", "mesh_dp", tuple(range(0, 80, 2)), 0, "gloo")
    Span(arguments("allreduce", wide, torch.bfloat16, 1, 1, 1)).end()
    profiler.stop()
    profiler.export(folder / f"rank{rank}.json.gz")
    dist.barrier()


@pytest.fixture(scope="module")
def traces(ranks, tmp_path_factory):
    folder = tmp_path_factory.mktemp("kineto")
    ended = run_ranks(ranks, _record, 3, folder)
    assert [done.returncode for done in ended] == [0, 0, 0], ended
    return [json.loads(gzip.decompress((folder / f"rank{r}.json.gz").read_bytes())) for r in range(3)]


def _calls(trace):
    return [e for e in trace["traceEvents"] if e["name"] == STANDARD_NAME]


def test_calls_stand_in_the_standard_form(traces):
    first = _calls(traces[1])[0]
    assert first["cat"] == "cpu_op"
    assert first["dur"] > 0
    values = {k: v for k, v in first["args"].items() if k != "External id"}
    name = values.pop("Process Group Name")
    assert name in {g["pg_name"] for g in traces[1]["distributedInfo"]["pg_config"]}
    assert values == {
        "Collective name": "allreduce",
        "dtype": "Float",
        "In msg nelems": 30,
        "Out msg nelems": 30,
        "In split size": "[]",
        "Out split size": "[]",
        "Group size": 2,
        "Process Group Description": "mesh_tp",
        "Process Group Ranks": "[0, 1]",
        "Rank": 1,
        "Global rank start": 0,
        "Global rank stride": 1,
        "Seq": 1,
    }


def test_a_message_names_its_peer_as_torch_does(traces):
    def messages(rank, op):
        calls = [e["args"] for e in _calls(traces[rank]) if e["args"]["Collective name"] == op]
        return [(a.get("Src Rank"), a.get("Dst Rank"), a["Rank"], a["Seq"]) for a in calls]

    assert messages(0, "send") == [(None, 2, 1, 1), (None, 2, 1, 2)]
    assert messages(2, "recv") == [(0, None, 0, 1), (0, None, 0, 2)]


def test_a_message_has_its_title(traces):
    titles = [[e for e in t["traceEvents"] if e["name"].startswith("nccl:")] for t in traces]
    assert [[e["name"] for e in told] for told in titles] == [
        ["nccl:send 0->1"] * 2,
        [],
        ["nccl:recv 1<-0"] * 2,
    ]
    for told, trace in zip(titles, traces, strict=True):
        spans = {(e["ts"], e["dur"], e["tid"]) for e in _calls(trace)}
        assert {(e["ts"], e["dur"], e["tid"]) for e in told} <= spans


def test_a_call_encloses_what_the_backend_did(traces):
    by_name = {e["name"]: e for e in traces[0]["traceEvents"] if e["name"] in {STANDARD_NAME, "c10d::send"}}
    call, inner = by_name[STANDARD_NAME], by_name["c10d::send"]
    send = next(e for e in _calls(traces[0]) if e["args"]["Collective name"] == "send")
    inner = next(e for e in traces[0]["traceEvents"] if e["name"] == "c10d::send")
    assert send["ts"] <= inner["ts"]
    assert inner["ts"] + inner["dur"] <= send["ts"] + send["dur"]
    assert call["ph"] == "X"


def test_long_member_lists_are_whole(traces):
    wide = next(e for e in _calls(traces[0]) if e["args"]["Process Group Name"] == "wide")
    assert json.loads(wide["args"]["Process Group Ranks"]) == list(range(0, 80, 2))
    assert wide["args"]["Global rank stride"] == 2
    assert wide["args"]["dtype"] == "BFloat16"


def test_groups_and_rank_are_in_the_header(traces):
    info = traces[2]["distributedInfo"]
    assert (info["rank"], info["world_size"]) == (2, 3)
    members = {tuple(g["ranks"]): g["pg_desc"] for g in info["pg_config"]}
    assert members == {(0, 1, 2): "default_pg", (2,): "mesh_tp", (0, 2): "mesh_pp"}


def test_steps_carry_their_numbers(traces):
    names = [e["name"] for e in traces[0]["traceEvents"] if e["name"].startswith("ProfilerStep")]
    assert names == [f"ProfilerStep#{n}" for n in STEPS]


@pytest.mark.parametrize(("operator", "kept"), [("aten::matmul", False), ("aten::mm", True)])
def test_only_products_keep_their_shapes(traces, operator, kept):
    operators = [e for e in traces[0]["traceEvents"] if e["name"] == operator]
    assert operators
    assert all(("Input Dims" in e["args"]) == kept for e in operators)
    assert not any("Input Strides" in e["args"] for e in operators)


def _event(name, ts, dur, tid=1):
    return {"ph": "X", "cat": "cpu_op", "name": name, "ts": ts, "dur": dur, "tid": tid}


def test_outermost_keeps_what_a_wrapper_around_communication_holds():
    linear = [_event("aten::linear", 0, 10), _event("aten::addmm", 1, 8), _event("aten::copy_", 2, 1)]
    backward = [_event("Backward", 20, 10), _event("aten::mm", 21, 2), _event(STANDARD_NAME, 25, 3)]
    other = [_event("aten::addmm", 1, 8, tid=2), {"ph": "M", "name": "process_name"}]
    kept = outermost(linear + backward + other)
    assert kept == [linear[0], *backward, *other]


def test_traceinsight_reads_the_calls(traces, tmp_path):
    pytest.importorskip("hta", reason="traceinsight is not installed (pip install .[hta])")
    for rank, trace in enumerate(traces):
        (tmp_path / f"rank{rank}.json.gz").write_bytes(gzip.compress(json.dumps(trace).encode()))
    program = (
        "import sys, warnings; warnings.simplefilter('ignore')\n"
        "from hta.trace_analysis import TraceAnalysis\n"
        "frame = TraceAnalysis(trace_dir=sys.argv[1]).t\n"
        "print(sorted(frame.get_all_traces()))\n"
        "symbols = frame.symbol_table.get_sym_table()\n"
        "name = symbols.index('record_param_comms')\n"
        "print([int((frame.get_trace(rank)['name'] == name).sum()) for rank in range(3)])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    # it analyses whole steps and leaves the last one out: one all-reduce a rank, a message on ranks 0 and 2
    assert done.stdout.splitlines()[-2:] == ["[0, 1, 2]", "[2, 1, 2]"]
