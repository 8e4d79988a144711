"""What a host needs for a step is what it works, not what it stands still for its device or for others."""

import numpy as np
import pytest

from tests.slowrank.hosts import KERNELS, LOADING_US, PACE_US, ROUNDS, host_bound
from tracekit.analysis.slowrank.analyse import opened

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
