"""The machine gives the times that one works out by hand."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from tests.shapes import rank as rank_module
from tests.shapes.calls import CollectiveCall, KernelCall, Message, MessagesCall
from tests.shapes.case import run
from tests.shapes.draw import drawn_case
from tests.shapes.fault import Fault, Part
from tests.shapes.graph import HOST, TRANSFER, Graph
from tests.shapes.job import Job
from tests.shapes.network import CARD, NVLINK, collective_us, slowed
from tests.shapes.order import order
from tests.shapes.rank import QUEUE, Rank
from tests.shapes.setting import Setting

HOST_US = 10.0
SPAN = 0.8
"""What a step's annotation costs before its first call."""
FIRST = SPAN + HOST_US
"""When a first kernel begins: its launch takes no longer than the host's call."""
COLLECTIVE, MESSAGE = 32.0, 37.0
"""What the host takes to call a collective, and one message."""
JITTER = 1.5
LONG = 10**6
QUICK_US = 400
"""Longer than any batch takes that is not late, and shorter than any stall."""


@pytest.fixture(autouse=True)
def exact(monkeypatch: pytest.MonkeyPatch) -> None:
    """No chance, but for the few hundred ns by which members leave apart."""
    monkeypatch.setattr(Rank, "noise", lambda *_: 1.0)
    monkeypatch.setattr(rank_module, "chance", lambda *_: 1.0)


def job_of(
    world: int, torch: tuple[int, int] = (2, 7), contention: float = 1.0, fault: Fault | None = None
) -> Job:
    job = Job(Setting(0, world, torch, 0.0, HOST_US, contention, fault))
    for rank in job.ranks:
        rank.gpu_pace = rank.host_pace = 1.0
    return job


@contextmanager
def told(job: Job) -> Iterator[Callable[[int], list[tuple[float, float]]]]:
    """A job to be told; afterwards gives when a rank's kernels were on the device."""
    yield lambda rank: list(on_device(job, rank))
    job.run()


def on_device(job: Job, rank: int) -> Iterator[tuple[float, float]]:
    graph = job.graph
    for call in job.ranks[rank].calls:
        if isinstance(call, KernelCall):
            yield graph.begin[call.node], graph.end[call.node]
        elif isinstance(call, CollectiveCall | MessagesCall):
            yield graph.begin[call.enter], graph.begin[call.leave]


@pytest.mark.parametrize("torch", [(2, 7), (2, 8)])
def test_members_leave_with_the_last(torch: tuple[int, int]) -> None:
    job = job_of(2, torch)
    with told(job) as times:
        for rank, us in zip(job.ranks, (1000, 1500), strict=True):
            with rank.step(1):
                rank.kernel("gemm", us)
                rank.collective(job.world, "allreduce", 10**6, 10**6, "Float")
                rank.kernel("gemm", 100)
    over = FIRST + 1500 + 9 + 2 + 4e6 / NVLINK
    for number, came in ((0, FIRST + 1000), (1, FIRST + 1500)):
        _, (enter, leave), (after, _) = times(number)
        assert enter == pytest.approx(came)
        assert over <= leave <= over + JITTER
        assert after == leave


def test_pipeline_of_three_is_a_staircase() -> None:
    job = job_of(3)
    stages = job.group("stages", range(3))
    with told(job) as times:
        for rank, us in zip(job.ranks, (100, 200, 300), strict=True):
            with rank.step(1):
                if rank.number:
                    rank.messages(stages, [Message(False, rank.number - 1, 500000)])
                rank.kernel("gemm", us)
                if rank.number < 2:
                    rank.messages(stages, [Message(True, rank.number + 1, 500000)], waited=False)
    transfer, leaving = 7 + 1e6 / NVLINK, 0.5
    received, worked, _ = times(1)
    assert received == pytest.approx((SPAN + MESSAGE, FIRST + 100 + transfer))  # it spins from its launch on
    assert worked[0] == pytest.approx(FIRST + 100 + transfer + leaving)
    assert times(2)[1][0] == pytest.approx(FIRST + 100 + 200 + 2 * (transfer + leaving))


@pytest.mark.parametrize(("elements", "waits"), [(500000, False), (10**7, True)])
def test_large_messages_wait_for_their_receiver(elements: int, waits: bool) -> None:
    job = job_of(2)
    with told(job) as times:
        for rank, us in zip(job.ranks, (100, 900), strict=True):
            with rank.step(1):
                rank.kernel("gemm", us)
                rank.messages(job.world, [Message(rank.number == 0, 1 - rank.number, elements)])
    came = FIRST + (900 if waits else 100)
    assert times(0)[1][1] == pytest.approx(came + 7 + 2 * elements / NVLINK)
    assert times(1)[1][1] == pytest.approx(FIRST + 900 + 7 + 2 * elements / NVLINK)


def test_compute_is_slower_beside_communication() -> None:
    job = job_of(2, contention=1.5)
    with told(job) as times:
        for rank in job.ranks:
            with rank.step(1):
                rank.collective(job.world, "allreduce", 10**8, 10**8, waited=False)
                rank.kernel("gemm", 100)
    begin, end = times(0)[1]
    assert end - begin == pytest.approx(150)


@pytest.mark.parametrize("serial", [True, False])
def test_one_group_works_on_one_call_at_a_time(serial: bool) -> None:
    job = Job(Setting(0, 2, (2, 8), 0.0, HOST_US, 1.0, serial=serial))
    for rank in job.ranks:
        rank.gpu_pace = rank.host_pace = 1.0
    with told(job) as times:
        for rank in job.ranks:
            with rank.step(1):
                rank.kernel("gemm", 1)
                for stream in ("gather", "reduce"):
                    rank.collective(job.world, "allreduce", 10**8, 10**8, caller=stream)
    _, first, second = times(0)
    assert (second[0] >= first[1]) is serial


def test_host_waits_for_its_device() -> None:
    job = job_of(1)
    with told(job) as times, job.ranks[0].step(1):
        job.ranks[0].kernel("gemm", 100)
        job.ranks[0].sync()
        job.ranks[0].kernel("gemm", 50)
    assert times(0)[1][0] == pytest.approx(FIRST + 100 + 1.5 + HOST_US)


def test_host_is_bounded_ahead() -> None:
    job = job_of(1)
    with told(job), job.ranks[0].step(1):
        for _ in range(QUEUE + 1):
            job.ranks[0].kernel("gemm", LONG)
    last = [call for call in job.ranks[0].calls if isinstance(call, KernelCall)][-1]
    assert job.graph.begin[last.host] == pytest.approx(FIRST + LONG)


def test_nodes_in_a_circle_are_told() -> None:
    graph = Graph(1, 1.0)
    first = graph.add(HOST, 0, 1.0)
    graph.follow(graph.add(HOST, 0, 1.0, [first]), first)
    with pytest.raises(RuntimeError, match="2 of 2 nodes wait for each other"):
        graph.run()


def test_nodes_begin_with_the_last_they_wait_for() -> None:
    graph = Graph(1, 1.0)
    first, second = graph.add(HOST, 0, 3.0), graph.add(HOST, 0, 5.0)
    third = graph.add(TRANSFER, -1, 1.0, [first, None, second])
    graph.run()
    assert (graph.begin[third], graph.end[third]) == (5.0, 6.0)


def test_rings_are_as_quick_as_their_cards() -> None:
    assert collective_us(range(8), "_allgather_base", 8 * 10**6) == pytest.approx(9 + 6 + 7e6 / NVLINK)
    assert collective_us(range(16), "allreduce", 16 * 10**6) == pytest.approx(18 + 8 + 30e6 / (8 * CARD))
    assert collective_us((0, 8), "allreduce", 10**6) == pytest.approx(18 + 2 + 1e6 / CARD)


@pytest.mark.parametrize(
    ("what", "culprits", "ranks", "message", "factor"),
    [
        ("nic", (3,), range(16), False, 4),
        ("nic", (3,), range(8), False, 1),
        ("nic", (3,), (4, 12), True, 1),
        ("nvlink", (2, 3), range(8), False, 4),
        ("nvlink", (2, 3), (2, 3), True, 4),
        ("nvlink", (2, 3), (1, 2, 3), True, 1),
        ("nvlink", (2, 3), (2, 6), False, 1),
    ],
)
def test_a_slow_link_slows_what_uses_it(
    what: str, culprits: tuple[int, ...], ranks: tuple[int, ...], message: bool, factor: int
) -> None:
    fault = Fault("slow_nic", (Part(what, culprits, 4.0, (7,)),))
    assert slowed(10.0, fault, ranks, 7, message=message) == 10.0 * factor
    assert slowed(10.0, fault, ranks, 8, message=message) == 10.0


@pytest.mark.parametrize("chunks", [1, 2, 3])
@pytest.mark.parametrize("stages", [2, 4])
def test_stages_work_on_everything_once(stages: int, chunks: int) -> None:
    for stage in range(stages):
        actions = order(stage, stages, chunks, 2 * stages)
        assert len(set(actions)) == len(actions) == 2 * chunks * 2 * stages
        for place, action in enumerate(actions):
            assert action.forward or action._replace(forward=True) in actions[:place]


@pytest.mark.parametrize("seed", [2059, 1020])
def test_the_clean_job_differs_in_the_fault_alone(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    case = drawn_case(seed)
    with_fault, clean = run(case).graph, run(case, clean=True).graph
    differing = [node for node, us in enumerate(with_fault.duration) if us != clean.duration[node]]
    assert differing
    assert with_fault.kind == clean.kind
    assert {(with_fault.kind[node], with_fault.rank[node]) for node in differing} == {
        (HOST, case.culprits[0])
    }
    assert (
        max(clean.duration[node] for node in differing)
        < QUICK_US
        < min(with_fault.duration[node] for node in differing)
    )
