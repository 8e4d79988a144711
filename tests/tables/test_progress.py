"""Own time: wall time less the communication that compute stood still for."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tables.rows import comm, gemm, recorded
from tracekit.rank_events.own_time import own_progress


def own(*rows):
    return own_progress(recorded(0, *rows))


def test_communication_between_compute_is_exposed_in_full():
    found = own(gemm(0, 10), comm(10, 30, 0), gemm(40, 10))
    assert found.exposed_ns.tolist() == [30_000]
    assert found.at(np.array([0, 10_000, 25_000, 40_000, 50_000])).tolist() == [
        0,
        10_000,
        10_000,
        10_000,
        20_000,
    ]
    assert (found.at_start.tolist(), found.at_end.tolist()) == ([10_000], [10_000])


def test_communication_that_ends_under_compute_is_hidden():
    found = own(gemm(0, 500), comm(100, 200, 0))
    assert found.exposed_ns.tolist() == [0]
    assert found.at(np.array([500_000])).tolist() == [500_000]


def test_only_the_part_after_compute_stopped_is_exposed():
    found = own(gemm(0, 100), comm(40, 160, 0), gemm(200, 50))
    assert found.exposed_ns.tolist() == [100_000]
    assert found.at(np.array([250_000])).tolist() == [150_000]


def test_a_host_gap_before_the_post_is_own():
    found = own(gemm(0, 100), comm(160, 40, 0), gemm(200, 50))
    assert found.exposed_ns.tolist() == [40_000]
    assert found.at_start.tolist() == [160_000]


def test_overlapping_communication_is_not_counted_twice():
    found = own(gemm(0, 100), comm(90, 110, 0), comm(100, 80, 1), gemm(200, 10))
    assert sorted(found.exposed_ns.tolist()) == [80_000, 100_000]
    assert found.at(np.array([210_000])).tolist() == [110_000]


def test_compute_begun_within_rounding_of_a_waits_end_resumes():
    found = own(gemm(0, 100), comm(100, 400, 0), gemm(499, 100))
    assert found.exposed_ns.tolist() == [399_000]


def test_short_copy_within_drift_of_a_waits_end_resumes():
    """A wait of half a second whose end is 7 µs off: the copy that follows it begins and ends before."""
    found = own(gemm(0, 100), comm(100, 500_000, 0), gemm(500_093, 2), gemm(500_120, 50))
    assert found.exposed_ns.tolist() == [499_993_000]


def test_compute_on_a_device_begun_earlier_did_not_wait():
    """Another wait ended at 490 µs, and this operation 10 µs later: it held nobody up."""
    found = own(gemm(0, 100), comm(100, 400, 0), comm(100, 390, 1), gemm(490, 100))
    assert sorted(found.exposed_ns.tolist()) == [0, 390_000]


def test_a_receive_posted_long_ahead_is_no_wait():
    found = own(gemm(0, 100), comm(100, 40_000, 0), gemm(39_500, 1_000))
    assert found.exposed_ns.tolist() == [0]


SPANS = st.lists(st.tuples(st.booleans(), st.integers(1, 300), st.integers(0, 50)), min_size=1, max_size=12)


@settings(max_examples=100, deadline=None)
@given(SPANS)
def test_own_time_grows_no_faster_than_the_clock(spans):
    rows, at = [], 0
    for is_comm, us, gap in spans:
        rows.append(comm(at, us, 0) if is_comm else gemm(at, us))
        at += gap + (us // 2 if is_comm else us)
    found = own(*rows)
    times = np.arange(0, 1000 * at, 997)
    steps = np.diff(found.at(times))
    assert (steps >= 0).all()
    assert (steps <= 997).all()
    wall = found.at(np.array([1000 * at]))[0] + sum(
        min(int(e), 1000 * at) - min(int(s), 1000 * at) for s, e in zip(*found.exposed, strict=True)
    )
    assert wall == 1000 * at
