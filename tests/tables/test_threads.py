"""What one thread does is no stall of another: launches by thread, spans beside a device that computes."""

import pytest

from tests.slowrank.events import Timeline, write_run
from tests.slowrank.jobs import grid, prepared
from tracekit.steps.features import read_features
from tracekit.steps.host_need import launch_pace

MAIN, AUTOGRAD = 1, 2


def jobs(folder, spans):
    """Two ranks of three steps; `spans`: (begin within the step, length, name) on another thread of rank 0, µs."""
    lines = [Timeline(rank) for rank in range(2)]
    for step in range(3):
        begins = [line.at for line in lines]
        for line in lines:
            for begin, us, name in spans if line.rank == 0 else ():
                line._row(line.at + begin, us, "user_annotation", name, pid=1, tid=AUTOGRAD)
            line.compute(1000)
            line.at += 500
        handles = [line.post(0) for line in lines]
        for line, handle in zip(lines, handles, strict=True):
            line.finish(handle, max(h[0] for h in handles) + 50)
        for line, begin in zip(lines, begins, strict=True):
            line.step(step, begin)
    return write_run(folder, lines, {0: (0, 1)}, {0: "mesh_dp"}, 2)


@pytest.mark.parametrize(("begin", "stalled_us"), [(100, 0), (900, 300), (1050, 400)])
def test_loading_counts_while_the_device_stands_still(tmp_path, begin, stalled_us):
    case = prepared(jobs(tmp_path, [(begin, 400, "enumerate(DataLoader)#__next__")]), grid(dp=2))
    found = read_features(case.run, case.ops, case.steps, 0)
    assert found.loader == pytest.approx(stalled_us * 1000)


def test_pace_is_that_of_each_thread(tmp_path):
    line = Timeline(0)
    for number in range(8):
        for thread, shift in ((MAIN, 0), (AUTOGRAD, 1)):
            line._row(20 * number + shift, 1, "cuda_runtime", "cudaLaunchKernel", pid=1, tid=thread)
    assert launch_pace(write_run(tmp_path, [line], {}, {}, 1), 0) == 20_000


def test_a_host_mostly_held_up_shows_its_pace(tmp_path):
    """Hosts behind a slow rank launch late most of the time; the slow one is not the quickest by that."""
    line, begin = Timeline(0), 0
    for number in range(48):
        begin += 20 if number % 4 == 0 else 500
        line._row(begin, 1, "cuda_runtime", "cudaLaunchKernel", pid=1, tid=MAIN)
    assert launch_pace(write_run(tmp_path, [line], {}, {}, 1), 0) == 20_000
