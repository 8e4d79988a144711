"""Traces that a simulation writes: valid, complete, the same whoever writes them, and true to the times."""

import gzip
import json

import numpy as np
import pytest

from reftrain.simulate.runner import simulate
from tests.simulate.case import setup_of, written

MESH = {"tp": 2, "pp": 2, "dp": 2}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    setup, config = setup_of(MESH, steps=2, merge=False, tables={"model": {"layers": 4}})
    outcome = written(folder, setup, config, detail="kernels")
    traces = {
        rank: json.loads(gzip.decompress((folder / "trace" / f"rank{rank}.json.gz").read_bytes()))
        for rank in range(8)
    }
    return outcome, traces, folder, setup, config


def events(trace, **wanted):
    return [
        e
        for e in trace["traceEvents"]
        if all(e.get(k) == v for k, v in wanted.items()) and e.get("ph") == "X"
    ]


def test_every_file_names_its_rank_world_host_and_groups(run):
    for rank, trace in run[1].items():
        info = trace["distributedInfo"]
        assert (info["rank"], info["world_size"]) == (rank, 8)
        assert trace["host_name"] == "node0"
        assert [g["pg_desc"] for g in info["pg_config"]] == ["default_pg", "mesh_tp", "mesh_pp", "mesh_dp"]
        assert all(rank in g["ranks"] for g in info["pg_config"])


def test_every_step_every_kernel_and_its_launch_are_there(run):
    outcome, traces, *_ = run
    program = outcome.simulation.programs[0]
    kinds = [op.kind.name for op in program.ops]
    trace = traces[0]
    assert [e["name"] for e in events(trace) if "ProfilerStep" in e["name"]] == [
        "ProfilerStep#0",
        "ProfilerStep#1",
    ]
    kernels = events(trace, cat="kernel")
    assert len(kernels) == 2 * sum(k in {"COMPUTE", "COLLECTIVE", "SEND", "RECV"} for k in kinds)
    launches = {e["args"]["correlation"] for e in events(trace, cat="cuda_runtime")}
    assert {e["args"]["correlation"] for e in kernels} <= launches
    assert len(events(trace, name="record_param_comms")) == 2 * (len(kinds) - kinds.count("COMPUTE")) - 2 * (
        kinds.count("SYNC") + kinds.count("LOAD")
    )


def test_times_are_the_simulated_ones_on_the_hosts_clock(run):
    outcome, traces, *_ = run
    sim = outcome.simulation
    stage, place = sim.grid.place(5)
    want = np.sort(sim.clocks.stamp(0, sim.times[stage].start[:, place]))
    kernels = sorted(e["ts"] for e in events(traces[5], cat="kernel"))
    kinds = [op.kind.name in {"COMPUTE", "COLLECTIVE", "SEND", "RECV"} for op in sim.programs[stage].ops] * 2
    want = np.sort(sim.clocks.stamp(0, sim.times[stage].start[np.array(kinds), place])) / 1e3
    shown = np.array(kernels) + (traces[5]["baseTimeNanoseconds"] - sim.begin_ns) / 1e3
    assert np.abs(shown - want).max() < 0.6  # microseconds: what doubles of epoch size hold


def test_collective_members_agree_and_end_together(run):
    _, traces, *_ = run
    for kind, members in (("mesh_tp", (2, 3)), ("mesh_dp", (0, 4))):
        rows = [
            [
                e
                for e in events(traces[rank], cat="kernel")
                if e["args"].get("Process Group Description") == kind
            ]
            for rank in members
        ]
        assert len(rows[0]) == len(rows[1]) > 0
        for a, b in zip(*rows, strict=True):
            for key in ("Collective name", "Seq", "Process Group Name", "Process Group Ranks", "dtype"):
                assert a["args"][key] == b["args"][key]
            assert abs((a["ts"] + a["dur"]) - (b["ts"] + b["dur"])) < 40  # microseconds


def test_messages_name_their_peer_and_have_a_partner(run):
    _, traces, *_ = run
    sends = {}
    for rank, trace in traces.items():
        for e in events(trace, cat="kernel"):
            args = e["args"]
            if args.get("Collective name") in {"send", "recv"}:
                assert ("Src Rank" in args) == (args["Collective name"] == "recv") != ("Dst Rank" in args)
                key = args.get("Src Rank", rank), args.get("Dst Rank", rank)
                sends.setdefault(key, []).append(args["Collective name"])
    assert sends
    for names in sends.values():
        assert names.count("send") == names.count("recv")


def test_files_do_not_depend_on_processes_or_selection(run, tmp_path):
    *_, folder, setup, config = run
    written(tmp_path / "two", setup, config, detail="kernels", jobs=2)
    written(tmp_path / "some", setup, config, detail="kernels", ranks=[5])
    for rank in range(8):
        name = f"trace/rank{rank}.json.gz"
        assert (tmp_path / "two" / name).read_bytes() == (folder / name).read_bytes()
    assert (tmp_path / "some/trace/rank5.json.gz").read_bytes() == (
        folder / "trace/rank5.json.gz"
    ).read_bytes()
    assert len(list((tmp_path / "some/trace").iterdir())) == 1


def test_seeds_change_runs_and_no_jitter_makes_them_alike():
    times = [simulate(setup_of(MESH, seed=seed, steps=1)[0]).times[0].end for seed in (1, 1, 2)]
    assert np.array_equal(times[0], times[1])
    assert not np.array_equal(times[0], times[2])
    even = simulate(setup_of(MESH, jitter=0.0, steps=1)[0]).times[0].end
    assert np.ptp(even, axis=1).max() == 0


def test_groups_above_thirty_are_cut_only_in_rows(tmp_path):
    setup, config = setup_of({"dp": 34}, steps=1, micro_batches=1, tables={"model": {"layers": 2}})
    written(tmp_path, setup, config, ranks=[33])
    trace = json.loads(gzip.decompress((tmp_path / "trace/rank33.json.gz").read_bytes()))
    told = {
        e["args"]["Process Group Ranks"]
        for e in events(trace, cat="kernel")
        if "Process Group Ranks" in e["args"]
    }
    assert told == {"[" + ", ".join(map(str, range(30))) + ", ...]"}
    listed = {g["pg_desc"]: g["ranks"] for g in trace["distributedInfo"]["pg_config"]}
    assert listed["mesh_dp"] == list(range(34))


def test_the_manifest_has_the_truth_and_traces_do_not(tmp_path):
    setup, config = setup_of(MESH, "slow_compute:rank=3,factor=1.4", steps=2)
    outcome = written(tmp_path, setup, config)
    manifest = json.loads((tmp_path / "run.json").read_text())
    assert manifest["schema"] == "reftrain.run/1"
    assert manifest["faults"] == [{"kind": "slow_compute", "rank": 3, "steps": "0:", "factor": 1.4}]
    assert manifest["mesh"]["sizes"] == {"tp": 2, "cp": 1, "pp": 2, "dp": 2}
    assert manifest["simulated"]["slowdown"] == pytest.approx(outcome.slowdown, abs=1e-6)
    assert outcome.slowdown > 1.05
    for path in (tmp_path / "trace").iterdir():
        assert b"slow_compute" not in gzip.decompress(path.read_bytes())
    line = json.loads((tmp_path / "timeline.json").read_text())
    assert [r["rank"] for r in line["ranks"]] == [0, 2]
