"""What a host alone held up is its own time, though a collective was outstanding meanwhile."""

import pytest

from tests.tables.rows import comm, gemm, launch, recorded, row
from tracekit.rank_events.own_time import own_progress


def called(name, begin, us, tid=1):
    """A call of the launching thread, or of another one."""
    return row("cuda_runtime", name, begin, us, pid=1, tid=tid, correlation=99)


def exposed(launched, *calls):
    """Exposed time, µs, of a collective from 100 to 400 µs, behind which compute was `launched`."""
    work = [gemm(0, 100, correlation=1), comm(100, 300, 0, correlation=2), gemm(405, 50, correlation=3)]
    launches = [launch(-10, 1), launch(-5, 2), launch(launched, 3)]
    ops = recorded(0, *work, *launches, *calls)
    return own_progress(ops).exposed_ns.tolist()[0] / 1000


@pytest.mark.parametrize(("launched", "us"), [(0, 300), (100, 300), (350, 50), (402, 0)])
def test_a_device_without_work_waits_for_its_host(launched, us):
    assert exposed(launched) == us


@pytest.mark.parametrize(
    "name", ["cudaStreamSynchronize", "hipDeviceSynchronize", "cudaMemcpyAsync", "cudaFree"]
)
def test_a_host_in_a_synchronising_call_waits(name):
    assert exposed(350, called(name, 90, 240)) == 280  # it waited until 330 µs, and launched 20 µs later
    assert exposed(350, called(name, 90, 240, tid=2)) == 50


def test_a_thread_waits_for_what_another_one_launches():
    """The forward's thread synchronises, and then the backward's launches."""
    other = [launch(-20, 9, tid=2), gemm(-15, 5, correlation=9)]
    assert exposed(350, called("cudaDeviceSynchronize", 90, 240, tid=2), *other) == 280


def test_a_host_that_polls_waits_as_well():
    asks = [called("cudaEventQuery", 110 + 50 * n, 1) for n in range(4)]
    assert exposed(350, *asks) == 300
    assert exposed(350, asks[0]) == 50


def test_without_launches_nothing_is_the_hosts_own():
    work = [gemm(0, 100), comm(100, 300, 0), gemm(405, 50)]
    assert own_progress(recorded(0, *work)).exposed_ns.tolist() == [300_000]


def operator(begin, end, name="FusedDispatch"):
    """An operator of the launching thread."""
    return row("cpu_op", name, begin, end - begin, pid=1, tid=1)


@pytest.mark.parametrize(
    ("spans", "us"),
    [
        ([(-6, 401)], 300),  # it launched the collective and returned when that had ended
        ([(-6, 20)], 0),  # it returned at once, and the host did something else
        ([(-6, 300)], 0),
        ([(-20, 402), (-6, 20)], 0),  # what counts is the operator that launched it, not the one around that
        ([(-20, 402), (-12, -8)], 300),
    ],
)
def test_an_operator_that_returns_behind_its_collective_waits(spans, us):
    assert exposed(402, *(operator(*span) for span in spans)) == us
