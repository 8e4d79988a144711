"""Newer forms give the times that one works out by hand."""

from collections.abc import Iterator

import pytest

from tests.shapes import forms
from tests.shapes import rank as rank_module
from tests.shapes.calls import GraphCall, KernelCall, SpinCall
from tests.shapes.case import run
from tests.shapes.draw import drawn_case
from tests.shapes.fault import Fault, Part
from tests.shapes.graph import HOST, KERNEL
from tests.shapes.job import Job
from tests.shapes.network import NVLINK, across, slowed
from tests.shapes.rank import Rank
from tests.shapes.setting import Setting
from tests.shapes.stages import FORWARD, INPUT, WEIGHT, halves

HOST_US, SPAN = 10.0, 0.8
TOLD = "kernel"


@pytest.fixture(autouse=True)
def exact(monkeypatch: pytest.MonkeyPatch) -> None:
    """No chance, but for the few hundred ns by which members leave apart."""
    monkeypatch.setattr(Rank, "noise", lambda *_: 1.0)
    for module in (rank_module, forms):
        monkeypatch.setattr(module, "chance", lambda *_: 1.0)


def job_of(world: int, fault: Fault | None = None) -> Job:
    job = Job(Setting(0, world, (2, 7), 0.0, HOST_US, 1.0, fault))
    for rank in job.ranks:
        rank.gpu_pace = rank.host_pace = 1.0
    return job


def spins(job: Job, rank: int) -> Iterator[tuple[float, float]]:
    for call in job.ranks[rank].calls:
        if isinstance(call, SpinCall):
            yield job.graph.begin[call.enter], job.graph.begin[call.leave]


def test_a_push_waits_for_nobody() -> None:
    job, size = job_of(2), 3 * 10**6
    for rank, us in zip(job.ranks, (100, 900), strict=True):
        with rank.step(1):
            rank.kernel("gemm", us)
            if rank.number == 0:
                forms.push(rank, job.world, TOLD, 1, size, "compute")
            else:
                forms.pull(rank, job.world, TOLD, 0, size, "receive")
    job.run()
    (sent,), (received,) = (list(spins(job, rank)) for rank in (0, 1))
    came = SPAN + HOST_US + 100
    assert sent[0] == pytest.approx(came)
    assert sent[1] == pytest.approx(came + 7 + size / NVLINK, abs=1.5)
    assert received[0] == pytest.approx(SPAN + 2.1 * HOST_US)
    assert received[1] == pytest.approx(sent[1], abs=1.5)


def test_members_of_a_spin_leave_together() -> None:
    job = job_of(2)
    for rank, us in zip(job.ranks, (100, 900), strict=True):
        with rank.step(1):
            rank.kernel("gemm", us)
            forms.together(rank, job.world, TOLD, 10**6)
    job.run()
    (early,), (late,) = (list(spins(job, rank)) for rank in (0, 1))
    assert late[0] - early[0] == pytest.approx(800)
    assert early[1] == pytest.approx(late[1], abs=1.5)


def test_kernels_of_a_graph_follow_each_other() -> None:
    job = job_of(1, Fault("slow_memory", (Part("memory", (0,), 3.0),)))
    with job.ranks[0].step(1):
        forms.replay(job.ranks[0], [("gemm", 50, "gemm"), ("norm", 10, "memory")])
    job.run()
    (call,) = [call for call in job.ranks[0].calls if isinstance(call, GraphCall)]
    (first, _), (second, _) = call.nodes
    assert job.graph.end[first] - job.graph.begin[first] == pytest.approx(50)
    assert job.graph.begin[second] == job.graph.end[first]
    assert job.graph.end[second] - job.graph.begin[second] == pytest.approx(30)


def test_only_copies_over_pcie_are_slow() -> None:
    job = job_of(2, Fault("slow_pcie", (Part("copy", (0,), 4.0),)))
    rank = job.ranks[0]
    with rank.step(1):
        rank.kernel("Memcpy HtoD (Pinned -> Device)", 20, copied=10**6)
        forms.peer_copy(rank, 1, 10**6, "compute")
        rank.kernel("gemm", 20)
    job.run()
    nodes = [call.node for call in rank.calls if isinstance(call, KernelCall)]
    lasting = [job.graph.end[node] - job.graph.begin[node] for node in nodes]
    assert lasting == pytest.approx([80, 4 + 10**6 / (NVLINK * forms.COPIED), 20])


@pytest.mark.parametrize(
    ("what", "ranks", "message", "luck", "slow"),
    [
        ("nic_out", (3, 8), True, 1.0, 30.0),
        ("nic_out", (8, 3), True, 1.0, 10.0),
        ("nic_out", range(16), False, 1.0, 30.0),
        ("port", range(8), False, 1.0, 30.0),
        ("port", (2, 3), True, 1.0, 30.0),
        ("port", range(16), False, 1.0, 10.0),
        ("retry", range(16), False, 0.01, 13.0),
        ("retry", range(16), False, 0.9, 10.0),
        ("retry", range(8), False, 0.01, 10.0),
    ],
)
def test_links_are_slow_in_their_own_way(
    what: str, ranks: tuple[int, ...], message: bool, luck: float, slow: float
) -> None:
    fault = Fault("slow_port", (Part(what, (3,), 3.0, (7,)),))
    assert slowed(10.0, fault, ranks, 7, message=message, luck=luck) == slow
    assert slowed(10.0, fault, ranks, 8, message=message, luck=luck) == 10.0


def test_hosts_have_as_many_ranks_as_they_have() -> None:
    assert across((3, 4), 4)
    assert not across((3, 4))
    assert not across((7, 8), 16)


@pytest.mark.parametrize(("stages", "micro"), [(2, 2), (4, 4), (4, 8), (8, 8)])
def test_halves_follow_each_other(stages: int, micro: int) -> None:
    for stage in range(stages):
        actions = list(halves(stage, stages, micro))
        assert len(actions) == len(set(actions)) == 3 * micro
        for number in range(micro):
            places = [actions.index((what, number)) for what in (FORWARD, INPUT, WEIGHT)]
            assert places == sorted(places)


@pytest.mark.quick(1)
@pytest.mark.parametrize("seed", [3000, 3019, 3021])
def test_newer_faults_alone_differ(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU that gets hot, a rank that allocates, one that compiles; other ranks' nodes are the same."""
    monkeypatch.undo()
    case = drawn_case(seed)
    with_fault, clean = run(case).graph, run(case, clean=True).graph
    differing = [node for node, us in enumerate(with_fault.duration) if us != clean.duration[node]]
    assert {with_fault.rank[node] for node in differing} == set(case.culprits)
    assert {with_fault.kind[node] for node in differing} == {KERNEL if case.kind == "throttling" else HOST}
    assert with_fault.kind == clean.kind
