"""The generator obeys the laws of the machine that it simulates, and keeps its own promises."""

import json

import numpy as np
import pytest

from tests.generator import FAULT_KINDS, KINDS, generate
from tests.generator.case import LEAST, NO_COST
from tests.generator.mesh import Mesh
from tests.generator.program import COLLECTIVE, COMPUTE, LABELS, RECV, SEND, SYNC
from tests.generator.rows import BASE
from tests.generator.variants import shift_clock

SEEDS = (3, 11, 24)


@pytest.fixture(scope="module", params=SEEDS)
def case(request):
    return generate(request.param, kind="slow_compute", world=16)


@pytest.mark.quick(1)
def test_collective_members_leave_together_after_the_last_arrival(case):
    arrivals, leaves = {}, {}
    for prog, start, end in zip(case.program.ranks, case.times.start, case.times.end, strict=True):
        for i, kind in enumerate(prog.kind):
            if kind == COLLECTIVE:
                arrivals.setdefault(prog.key[i], []).append(start[i])
                leaves.setdefault(prog.key[i], []).append(end[i])
    assert arrivals
    for key, begun in arrivals.items():
        assert len(begun) == case.program.keys.members[key]
        assert min(leaves[key]) > max(begun)
        assert max(leaves[key]) - min(leaves[key]) < 50_000


def test_operations_start_after_launch_stream_and_dependencies(case):
    for prog, launch, start, end in zip(
        case.program.ranks, case.times.launch, case.times.start, case.times.end, strict=True
    ):
        last = {}
        for i, kind in enumerate(prog.kind):
            if kind in (COMPUTE, COLLECTIVE, SEND, RECV):
                assert start[i] >= launch[i]
                assert start[i] >= last.get(prog.stream[i], 0.0)
                assert all(start[i] >= end[j] for j in prog.after[i])
                last[prog.stream[i]] = end[i]
            elif kind == SYNC:
                assert all(end[i] >= end[j] for j in prog.after[i])
        assert (end >= start).all()


@pytest.mark.parametrize("eager", [False, True])
def test_messages_arrive_after_sending_and_rendezvous_awaits_the_receiver(eager):
    case = generate(
        1,
        kind="healthy",
        mesh=Mesh(("tp", "cp", "pp", "dp"), {"tp": 2, "cp": 1, "pp": 4, "dp": 2}),
        eager=eager,
    )
    sends, receives = {}, {}
    for prog, start, end in zip(case.program.ranks, case.times.start, case.times.end, strict=True):
        for i, kind in enumerate(prog.kind):
            if kind in (SEND, RECV):
                (sends if kind == SEND else receives)[prog.key[i]] = (start[i], end[i])
    assert sends
    assert sends.keys() == receives.keys()
    for key, (sent, done) in sends.items():
        posted, received = receives[key]
        assert received > sent
        assert eager or done > posted


@pytest.mark.parametrize("kind", FAULT_KINDS)
def test_a_planted_fault_costs_what_the_truth_says(kind):
    case = generate(7, kind=kind, world=16)
    assert case.truth.slowdown >= LEAST
    assert case.truth.verdict != "healthy"


@pytest.mark.slow
def test_slack_costs_nothing():
    for seed in range(6):
        truth = generate(seed, kind="healthy_slack", world=16).truth
        assert truth.slowdown <= NO_COST
        assert truth.verdict == "healthy"


def test_one_seed_gives_the_same_bytes(tmp_path):
    texts = []
    for turn in ("a", "b"):
        paths = generate(5, world=8).write(tmp_path / turn)
        texts.append([(p.name, p.read_bytes()) for p in paths])
    assert texts[0] == texts[1]
    assert texts[0]


@pytest.mark.slow
def test_a_shifted_clock_shifts_times_and_changes_nothing_else(tmp_path):
    plain = {"gz": False, "truncated": {}, "missing": set(), "metadata_last": False}
    case = generate(2, world=8, **plain)
    ours = case.write(tmp_path / "a")
    moved = shift_clock(case, 3, 700_000_000).write(tmp_path / "b")
    for a, b in zip(ours, moved, strict=True):
        x, y = (json.loads(p.read_text())["traceEvents"][1:] for p in (a, b))
        shift = 700_000.0 if json.loads(a.read_text())["distributedInfo"]["rank"] == 3 else 0.0
        assert len(x) == len(y)
        for left, right in zip(x, y, strict=True):
            assert right.pop("ts") - left.pop("ts") == pytest.approx(shift, abs=1e-2)
            assert left == right


def test_truth_is_not_in_the_files(tmp_path):
    paths = generate(4, kind="slow_compute", world=8, gz=False).write(tmp_path)
    text = "".join(p.read_text(errors="replace") for p in paths)
    assert not any(word in text for word in (*KINDS, "suspect", "severity", "slowdown", "fault"))


def test_rows_carry_what_kineto_writes(tmp_path):
    whole = {"truncated": {}, "missing": set(), "ragged": False, "gz": False}
    case = generate(9, world=16, seq=True, base=True, style="megatron", **whole)
    for path in case.write(tmp_path):
        trace = json.loads(path.read_text())
        assert trace["baseTimeNanoseconds"] == BASE
        kernels = [e for e in trace["traceEvents"] if e.get("cat") == "kernel"]
        launches = {e["args"]["correlation"] for e in trace["traceEvents"] if e.get("cat") == "cuda_runtime"}
        assert {k["args"]["correlation"] for k in kernels} <= launches
        comms = [k for k in kernels if "Collective name" in k["args"]]
        assert comms
        for kernel in comms:
            args = kernel["args"]
            assert kernel["name"].startswith("ncclDevKernel")
            assert args["Seq"] >= 1
            assert json.loads(args["Process Group Ranks"]) == sorted(json.loads(args["Process Group Ranks"]))
            assert ("Dst Rank" in args) == (args["Collective name"] == "send")
        assert {e["name"] for e in kernels} - {e["name"] for e in comms} <= {k for k, _ in LABELS.values()}


def test_ragged_windows_begin_at_different_points(tmp_path):
    case = generate(8, world=8, ragged=True)
    begins = [w[0] for w in case.capture.windows]
    assert len(set(np.round(begins))) == 8
