"""What a host needs for a step is what it works, not what it stands still for its device or for others."""

import numpy as np
import pytest

from tests.slowrank.hosts import KERNELS, LOADING_US, PACE_US, ROUNDS, host_bound
from tests.tables.rows import events, gemm, launch, row
from tracekit.case.opened import opened
from tracekit.step_graph.host_timeline import Host
from tracekit.steps.host_work import host_work, silences
from tracekit.thresholds.slowrank import QUEUE_ROOM

LAUNCHES_US, MORE_US = ROUNDS * (KERNELS + 1) * PACE_US, 400.0


def needs(run):
    """µs a step of each rank."""
    return opened(run, None, None, None, None)[0].host_needs / 1000


@pytest.mark.parametrize(
    ("also", "counts"),
    [
        (("cpu_op", "aten::copy_", MORE_US), True),
        (("user_annotation", "enumerate(DataLoader)#_Iter.__next__", MORE_US), True),
        (("", "python, or a wait for somebody", MORE_US), False),
        (("", "python", 50.0), True),
        (("cuda_runtime", "cudaEventSynchronize", MORE_US), False),
        (("cuda_runtime", "cudaLaunchKernel", MORE_US), False),  # its queue is full
        (("cuda_runtime", "cudaEventQuery", MORE_US), False),
        (("cpu_op", "gloo:all_reduce", MORE_US), False),
    ],
)
def test_a_host_needs_what_it_works(tmp_path, also, counts):
    found = needs(host_bound(tmp_path, world=2, steps=3, also=also)[0])
    assert found == pytest.approx(LOADING_US + LAUNCHES_US + counts * also[2], abs=1)


def test_hosts_that_were_not_recorded_need_nothing_known(tmp_path):
    assert np.isnan(needs(host_bound(tmp_path, world=2, steps=3, recorded=False)[0])).all()


@pytest.mark.parametrize("queued", [1, QUEUE_ROOM + 1])
def test_a_long_launch_is_work_if_queues_have_room(queued):
    """Kernels that were launched before it wait for the device, which runs one for long."""
    launches = [launch(2 * n, n) for n in range(queued + 1)]
    kernels = [gemm(5, 900, correlation=0), *(gemm(900 + n, 1, correlation=n) for n in range(1, queued + 1))]
    begin = 2 * (queued + 1)
    long = row("cuda_runtime", "cudaLaunchKernel", begin, 300, correlation=queued + 1, pid=1, tid=1)
    (begins, ends), _ = host_work(events([*launches, *kernels, long, gemm(1000, 5, correlation=queued + 1)]))
    assert (ends - begins).sum() / 1000 == pytest.approx(begin + (300 if queued < QUEUE_ROOM else 0), abs=2)


@pytest.mark.parametrize(("tid", "counts"), [(1, True), (7, False)])
def test_a_thread_that_launches_nothing_works_beside(tid, counts):
    """A loader's thread pins memory while the one that launches is done."""
    launches = [row_ for n in range(3) for row_ in (launch(20 * n, n), gemm(20 * n + 5, 5, correlation=n))]
    pins = row("cpu_op", "pin_memory_worker", 60, 500, pid=1, tid=tid)
    (begins, ends), _ = host_work(events([*launches, pins]))
    assert (ends - begins).sum() / 1000 == pytest.approx(41 + (519 if counts else 0), abs=2)


def launched(rooms, also):
    """Events of a host that pauses for 4 ms behind launches, with room in the queue or not, as `rooms` says.

    `also` makes the events of each pause.
    """
    rows, number = [], 0
    for at, room in enumerate(rooms):
        for _ in range(1 if room else QUEUE_ROOM + 1):
            rows += [
                launch(4000 * at, number),
                gemm(4000 * at + (5 if room else 3999), 1, correlation=number),
            ]
            number += 1
        rows += also(4000 * at + 10)
    return events(
        [*rows, launch(4000 * len(rooms), number), gemm(4000 * len(rooms) + 5, 1, correlation=number)]
    )


@pytest.mark.parametrize(
    ("name", "works"), [("aten::mm", 3000), ("record_param_comms", 3000), ("gloo:all_reduce", 0)]
)
def test_a_long_operator_is_work_with_room(name, works):
    """Without room it works as long as such operators do with room."""
    recorded = launched([True, False], lambda at: [row("cpu_op", name, at, 3000, pid=1, tid=1)])
    (begins, ends), _ = host_work(recorded)
    assert (ends - begins).sum() / 1000 == pytest.approx(2 * works, rel=0.02, abs=30)


def test_a_silent_host_works_where_no_operators_are_recorded():
    """Pauses without room are longer here, and count as long as those with room."""
    recorded = launched([True, True, False], lambda at: [])
    (begins, ends), _ = host_work(recorded)
    assert (ends - begins).sum() / 1000 == pytest.approx(3 * 4000, rel=0.02)


def paused(recorded, longest=0):
    """(begins, ends) of pauses, µs, where the queue of another rank held `longest` kernels."""
    silent, queued, most = silences(recorded)
    none = np.zeros(0, np.int64)
    busy = Host((none, none), silent, queued, max(most, longest), none, none, none, 0.0, called=True).busy
    return busy[0] / 1000, busy[1] / 1000


@pytest.mark.parametrize(("longest", "pauses"), [(0, [0, 2]), (4 * QUEUE_ROOM, [0, 1, 2])])
def test_a_host_pauses_unless_its_queue_is_full(longest, pauses):
    """It records nothing for 4 ms three times, in the second one behind as many launches as ever.

    Where the queue of another rank held four times as many, that one had room.
    """
    begins, ends = paused(launched([True, False, True], lambda at: []), longest)
    assert begins.tolist() == pytest.approx([4000 * n for n in pauses], abs=3)
    assert ends.tolist() == [4000 * (n + 1) for n in pauses]


@pytest.mark.parametrize(
    ("name", "until", "reads"),
    [
        ("deep_ep::intranode::notify_dispatch", 1003, True),
        ("deep_ep::intranode::notify_dispatch", 400, False),  # the next launch comes sooner
        ("ampere_sgemm_128x64", 1003, False),
    ],
)
@pytest.mark.parametrize("inside", [True, False])
def test_a_host_that_reads_what_a_kernel_sent_waits(name, until, reads, inside):
    """DeepEP's dispatch reads how many tokens came, in an operator or in none."""
    sent = row("kernel", name, 10, 990, correlation=0, stream=20)
    around = [row("cpu_op", "FusedDispatch", 0, 1100, pid=1, tid=1)] if inside else []
    recorded = events([launch(2, 0), sent, launch(until, 1), gemm(1010, 10, correlation=1), *around])
    (begins, ends), _ = host_work(recorded)
    worked = float((ends - begins).sum()) / 1000
    assert worked == pytest.approx((1100 if inside else until) - (997 if reads else 0), abs=12)
    assert bool(len(paused(recorded)[0])) is not (reads or inside)


def test_recorded_calls_and_operators_are_no_pauses():
    call = row("cuda_runtime", "cudaStreamSynchronize", 10, 3950, pid=1, tid=1)
    operator = row("cpu_op", "gloo:all_reduce", 4010, 3950, pid=1, tid=1)
    rest = launched([True, True, True], lambda at: {10: [call], 4010: [operator]}.get(at, []))
    assert paused(rest)[0].tolist() == pytest.approx([8002], abs=1)
