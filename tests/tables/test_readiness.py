"""From when a communication kernel could have started."""

import numpy as np

from tests.tables.rows import comm, events, gemm, row
from tracekit.rank_events.operations import rank_ops
from tracekit.rank_events.own_time import own_progress
from tracekit.rank_events.stream_waits import UNKNOWN, _first_uses


def launch(begin, correlation):
    return row("cuda_runtime", "cudaLaunchKernel", begin, 1, correlation=correlation)


def computed(begin, us, correlation, stream=7):
    return {**gemm(begin, us), "correlation": correlation, "stream": stream}


def reduced(begin, us, correlation):
    return comm(begin, us, 0, correlation=correlation, stream=20)


def ready(*rows):
    ops = rank_ops(0, events(rows))
    return [r if r == UNKNOWN else r // 1000 for r in ops.ready.tolist()], ops


def test_it_waits_for_compute_launched_before_it():
    told, _ = ready(
        launch(0, 1), launch(2, 2), launch(4, 3), launch(6, 4),
        computed(10, 40, 1), reduced(300, 20, 2), computed(50, 100, 3), reduced(320, 20, 4),
    )  # fmt: skip
    assert told == [50, 150]  # the queue held both until 300 and 320


def test_a_late_launch_makes_it_ready_late():
    told, _ = ready(launch(0, 1), launch(90, 2), computed(10, 40, 1), reduced(120, 20, 2))
    assert told == [90]


def test_compute_that_outlasts_its_start_is_no_wait():
    told, _ = ready(
        launch(0, 1),
        launch(2, 2),
        launch(4, 3),
        computed(10, 40, 1),
        computed(50, 100, 2),
        reduced(60, 20, 3),
    )
    assert told == [50]


def test_only_the_busiest_compute_stream_counts():
    told, _ = ready(
        launch(0, 1), launch(1, 2), launch(2, 3), launch(3, 4),
        computed(10, 20, 1), computed(30, 20, 2), computed(30, 70, 3, stream=9), reduced(110, 20, 4),
    )  # fmt: skip
    assert told == [50]


def test_compute_launched_ahead_of_the_window_counts():
    """A host that runs ahead launched two kernels before the window began; a stream runs in order of launch."""
    told, _ = ready(
        launch(0, 3), launch(1, 4), launch(2, 6),
        computed(0, 90, 1), computed(90, 60, 2), computed(150, 50, 3), reduced(400, 20, 4),
        computed(200, 90, 5), reduced(500, 20, 6),
    )  # fmt: skip
    assert told == [200, 200]  # behind kernel 3; of kernel 5, launched behind both, nothing is recorded


def test_the_launch_of_a_graph_shows_nothing():
    """One launch carries two kernels of compute and both collectives, behind a kernel with a launch of its own."""
    told, _ = ready(
        launch(0, 1), launch(2, 2),
        computed(10, 40, 1), computed(60, 40, 2), reduced(101, 20, 2), computed(102, 90, 2), reduced(300, 20, 2),
    )  # fmt: skip
    assert told == [UNKNOWN, UNKNOWN]


def test_without_launches_nothing_is_told():
    told, ops = ready(gemm(10, 40), comm(60, 20, 0))
    assert told == [UNKNOWN]
    assert own_progress(ops).at_ready.tolist() != own_progress(ops).at_ready.tolist()  # NaN


def test_each_message_is_used_after_its_own_wait():
    """The host waits for the first message until 200 µs, finds the second one done, and launches compute after each."""
    used = _first_uses(
        (np.array([120, 204]), np.array([200, 206])),
        launch=np.array([10, 12, 14]),
        done=np.array([199, 150, 400]),
        begin=np.array([20, 90, 210, 300]),
        launched=np.array([11, 13, 203, 207]),
    )
    assert used.tolist() == [210, 300, UNKNOWN]  # no wait for the third was recorded


def test_a_wait_ends_with_its_own_message():
    """The host waits for the second message until 200 µs, and later for the first one, which was done at 150 µs."""
    used = _first_uses(
        (np.array([120, 304, 402]), np.array([200, 306, 500])),
        launch=np.array([10, 12, 410]),
        done=np.array([150, 200, 500]),
        begin=np.array([20, 90, 210, 320, 520]),
        launched=np.array([11, 13, 203, 307, 501]),
    )
    assert used.tolist() == [320, 210, 520]
