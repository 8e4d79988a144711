"""The run folder: run.json, metrics a rank, and traces in which every communication call can be matched."""

import gzip
import json
from collections import Counter, defaultdict

import pytest

from reftrain.config.file import load
from reftrain.errors import ConfigError
from reftrain.faults.registry import read_faults
from tests.reftrain import workers

MESH = {"tp": 2, "pp": 2, "dp": 2, "zero": 2}
FAULT = "late_data:rank=1,delay_ms=1,steps=1:"
STEPS, TRACED = 4, (1, 2)


@pytest.fixture(scope="module")
def run(ranks, tmp_path_factory):
    """One run of eight ranks; the folder."""
    folder = tmp_path_factory.mktemp("run")
    config = load(
        None,
        {
            "mesh": MESH,
            "model": {"layers": 2},
            "data": {"batch_size": 4},
            "run": {"steps": STEPS, "out": str(folder)},
            "evidence": {"trace_steps": list(TRACED), "faults": [FAULT]},
        },
    )
    ranks.run(workers.whole_run, 8, config)
    return folder


@pytest.fixture(scope="module")
def traces(run):
    return [json.loads(gzip.open(run / "trace" / f"rank{rank}.json.gz").read()) for rank in range(8)]


def calls(trace):
    return [event for event in trace["traceEvents"] if event.get("name") == "record_param_comms"]


def test_manifest_tells_what_ran(run):
    told = json.loads((run / "run.json").read_text())
    assert told["schema"] == "reftrain.run/1"
    assert told["mesh"] == {"order": ["tp", "cp", "pp", "dp"], "sizes": {"tp": 2, "cp": 1, "pp": 2, "dp": 2}}
    assert told["world_size"] == len(told["hosts"]) == 8
    assert told["dtype_policy"] == "bf16"
    assert told["schedule"]["micro_batches"] == 2
    assert told["seeds"] == {"weights": 0, "data": 1}
    assert told["faults"] == [{"kind": "late_data", "rank": 1, "steps": "1:", "delay_ms": 1.0}]


def test_metrics_have_a_line_a_step(run):
    rows = [
        [json.loads(line) for line in (run / "metrics" / f"rank{rank}.jsonl").read_text().splitlines()]
        for rank in range(8)
    ]
    for of_rank in rows:
        assert [row["step"] for row in of_rank] == list(range(STEPS))
        for row, first in zip(of_rank, rows[0], strict=True):
            assert row["tokens"] == 4 * 64
            assert (row["loss"], row["grad_norm"]) == (first["loss"], first["grad_norm"])
            assert row["peak_bytes"] > 0
            assert row["tokens_per_s"] == pytest.approx(row["tokens"] / row["step_s"])


def test_traces_hold_whole_steps(traces):
    for rank, trace in enumerate(traces):
        assert trace["distributedInfo"]["rank"] == rank
        steps = {e["name"]: e for e in trace["traceEvents"] if e.get("name", "").startswith("ProfilerStep")}
        assert set(steps) == {f"ProfilerStep#{step}" for step in TRACED}
        spans = [(s["ts"], s["ts"] + s["dur"]) for s in steps.values()]
        for call in calls(trace):
            assert any(a <= call["ts"] and call["ts"] + call["dur"] <= b for a, b in spans)
        assert sum(e.get("name", "").startswith("PP:") for e in trace["traceEvents"]) == 2 * 2 * 2
        assert not any("_Mark" in e.get("name", "") for e in trace["traceEvents"]), (
            "announcements compute nothing"
        )
        loads = [e for e in trace["traceEvents"] if e.get("name", "").startswith("enumerate(DataLoader)")]
        assert len(loads) == len(TRACED)


def test_every_collective_is_found_on_all_members(traces):
    seen = defaultdict(Counter)
    for rank, trace in enumerate(traces):
        for call in calls(trace):
            a = call["args"]
            members = tuple(json.loads(a["Process Group Ranks"]))
            assert len(members) == a["Group size"]
            if a["Collective name"] not in ("send", "recv"):
                assert members[a["Rank"]] == rank
                key = (members, a["Process Group Description"], a["Seq"], a["Collective name"], a["dtype"])
                seen[key][rank] += 1
    for (members, *_), by_rank in seen.items():
        assert by_rank == dict.fromkeys(members, 1)
    axes = {description for _, description, *_ in seen}
    assert {"mesh_tp", "mesh_pp", "mesh_dp"} <= axes
    names = {(description, name) for _, description, _, name, _ in seen}
    assert ("mesh_dp", "_reduce_scatter_base") in names, "FSDP2's too"
    reduced = {dtype for _, d, _, name, dtype in seen if (d, name) == ("mesh_dp", "_reduce_scatter_base")}
    assert reduced == {"Float"}


def test_every_message_has_two_ends(traces):
    sizes = {"send": defaultdict(list), "recv": defaultdict(list)}
    for rank, trace in enumerate(traces):
        for call in calls(trace):
            a = call["args"]
            if a["Collective name"] in sizes:
                assert ("Src Rank" in a, "Dst Rank" in a) == (
                    (a["Collective name"] == "recv"),
                    (a["Collective name"] == "send"),
                )
                ends = a.get("Src Rank", rank), a.get("Dst Rank", rank)
                assert json.loads(a["Process Group Ranks"])[a["Rank"]] == ({*ends} - {rank}).pop()
                sizes[a["Collective name"]][a["Process Group Name"], *ends].append(a["In msg nelems"])
    assert sizes["send"] == sizes["recv"]
    assert (
        sum(map(len, sizes["send"].values())) == 2 * 2 * 2 * 2 * 2
    )  # steps, micro-batches, directions, tp, dp


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("slow_compute:rank=9", "fault.rank: '9' is not a rank of a world of 8"),
        ("slow:rank=1", "fault: no such kind 'slow'"),
        ("slow_compute:rank=1,factor=0.5", "fault.factor: 0.5 is out of bounds"),
    ],
)
def test_faults_that_cannot_be_planted_are_refused(fault, message):
    config = load(None, {"mesh": MESH, "evidence": {"faults": [fault]}})
    with pytest.raises(ConfigError) as caught:
        read_faults(config)
    assert str(caught.value).startswith(message)
