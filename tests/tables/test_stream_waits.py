"""`cuda_sync` events prove what compute waited for, and what it did not; where they do not tell, nothing changes."""

import numpy as np
import pytest

from tests.tables.rows import comm, gemm, group, launch, matched, recorded, recv, row, send
from tracekit.matching.clock import align
from tracekit.rank_events.own_time import own_progress
from tracekit.rank_events.stream_waits import FREE, UNTOLD, WAITED
from tracekit.timing.buffered_sends import buffered_sends

HOST = {"pid": 1, "tid": 1}


def call(at, correlation, name, us=1):
    """A call of the CUDA runtime."""
    return row("cuda_runtime", name, at, us, correlation=correlation, **HOST)


def waits(at, stream, other, record, *, recorded_at=None):
    """`stream` waits from `at` for what `other` had been given at `recorded_at`; `record` counts the event."""
    listed = [call(at, record + 50, "cudaStreamWaitEvent")]
    if recorded_at is not None:
        listed.append(call(recorded_at, record, "cudaEventRecord"))
    told = {"stream": stream, "wait_stream": other, "wait_record": record, "correlation": record + 50}
    return [*listed, row("cuda_sync", "Stream Wait Event", at, 1, **told)]


def job(*more, resumed=40):
    """Compute to 100 µs and from 302, launched at `resumed`; on stream 20 a collective, launched at 20, ends at 300."""
    compute = [
        gemm(0, 100) | {"stream": 7, "correlation": 1},
        gemm(302, 50) | {"stream": 7, "correlation": 2},
    ]
    collective = comm(50, 250, 0, stream=20, correlation=3)
    rows = [*compute, collective, launch(0, 1), launch(resumed, 2), launch(20, 3)]
    return recorded(0, *rows, *(r for some in more for r in some), groups=[group(0, 0, 1)])


FOR_IT = waits(30, 7, 20, 101, recorded_at=25)
EARLIER = waits(30, 7, 20, 101, recorded_at=10)
OTHER = waits(30, 7, 21, 101, recorded_at=25)
CHAIN = [*waits(28, 22, 20, 102, recorded_at=25), *waits(30, 7, 22, 101, recorded_at=29)]


@pytest.mark.parametrize(
    ("listed", "told"),
    [
        ([], UNTOLD),
        (FOR_IT, WAITED),
        (OTHER, FREE),
        (EARLIER, FREE),  # for what the stream had been given before
        (waits(60, 7, 20, 101, recorded_at=25), FREE),  # it holds up what is launched later
        (waits(30, 7, 20, 101), WAITED),  # when the event was recorded is not known
        (CHAIN, UNTOLD),
        ([*OTHER, *waits(30, 7, None, 104)], UNTOLD),  # CUDA 12.9 names no stream
    ],
)
def test_waits_of_streams_tell_who_was_waited_for(listed, told):
    assert job(listed).waited.tolist() == [told]


@pytest.mark.parametrize(
    ("host", "told"), [("cudaStreamSynchronize", UNTOLD), ("cudaMemcpyAsync", UNTOLD), ("cudaMalloc", FREE)]
)
def test_a_host_that_stood_still_may_have_waited(host, told):
    assert job(OTHER, [call(200, 9, host, us=105)], resumed=306).waited.tolist() == [told]


def test_kernels_of_graphs_tell_nothing():
    launched = [r | {"name": "cudaGraphLaunch"} for r in (launch(40, 2),)]
    compute = [
        gemm(0, 100) | {"stream": 7, "correlation": 1},
        gemm(302, 50) | {"stream": 7, "correlation": 2},
    ]
    rows = [
        *compute,
        comm(50, 250, 0, stream=20, correlation=3),
        launch(0, 1),
        launch(20, 3),
        *launched,
        *OTHER,
    ]
    assert recorded(0, *rows, groups=[group(0, 0, 1)]).waited.tolist() == [UNTOLD]


def test_time_beside_free_communication_is_own():
    """The host launched late, and a collective that nobody waits for ended meanwhile."""
    slow = own_progress(job(OTHER, resumed=290))
    assert slow.exposed_ns.tolist() == [0]
    assert np.diff([slow.at_start[0], slow.at_end[0]]).tolist() == [250_000]
    assert own_progress(job(FOR_IT)).exposed_ns.tolist() == [200_000]


@pytest.mark.parametrize(("grid", "opened"), [(None, 4), (8, 4), (2, 0)])
def test_no_buffer_is_larger_than_channels_allow(grid, opened):
    """Sends of 12 MiB that found their receive posted: they may have gone to a buffer, if there are three channels."""
    more = {"nelems": 3 << 20, "grid": grid}
    here = [r for n in range(4) for r in (send(1000.0 * n, 300, 0, 1, **more), comm(1000.0 * n + 800, 30, 0))]
    there = [
        r for n in range(4) for r in (recv(1000.0 * n, 300, 0, 1, **more), comm(1000.0 * n + 790, 40, 0))
    ]
    ops = matched({0: here, 1: there}, group(0, 0, 1))
    assert int(buffered_sends(ops, align(ops)).unsure[ops.op == "send"].sum()) == opened
