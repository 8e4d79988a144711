"""The clocks of two islands differ alike for all pairs between them, also for a pair of which nothing tells."""

import numpy as np
import pytest

from tracekit.inference.peers.clock_difference import clock_differences
from tracekit.inference.peers.open_messages import OpenKernels

TOLERANCE = 2_000
AHEAD = 7_000_000_000
"""By how much the clock of the second island is ahead, ns."""


def ends(seed, steps=6, count=8):
    """Ends of kernels of several steps that follow no period, ns, and the step of each."""
    drawn = np.random.default_rng(seed)
    step = np.repeat(np.arange(steps), count)
    return np.sort(drawn.integers(0, 10_000_000, (steps, count)), axis=1).reshape(
        -1
    ) + step * 20_000_000, step


def kernels(rank, island, end, step, ahead=0):
    none = np.zeros(len(end), np.int64)
    return OpenKernels(
        rank,
        island,
        island,
        np.arange(len(end)),
        end + ahead - 5_000,
        end + ahead,
        step,
        none,
        none,
        none - 1,
    )


def islands(seeds, rate=0.0):
    """(kernels by rank, pairs): rank n of the first island sends to 10 + n; each pair has its seeds' ends."""
    found = {}
    for n, (mine, theirs) in enumerate(seeds):
        end, step = ends(mine)
        found[n] = kernels(n, 0, end, step)
        end, step = ends(theirs)
        found[10 + n] = kernels(10 + n, 10, end, step, AHEAD + np.rint(rate * end).astype(np.int64))
    return found, [(n, 10 + n) for n in range(len(seeds))]


@pytest.mark.parametrize("rate", [0.0, 5e-5])
def test_other_pairs_tell_the_clock_of_a_silent_one(rate):
    by_rank, pairs = islands([(1, 1), (2, 2), (3, 3), (4, 40)], rate)
    assert (3, 13) not in clock_differences(by_rank, pairs[3:], TOLERANCE)  # nothing of its own ends together
    found = clock_differences(by_rank, pairs, TOLERANCE)
    assert set(found) == set(pairs)
    for (_, second), shift in found.items():
        true = ends(4)[0] if second != 13 else ends(40)[0]
        assert np.abs(shift + AHEAD).max() <= TOLERANCE + rate * (true.max() + 1)


def test_no_pair_is_told_by_others_that_disagree():
    by_rank, pairs = islands([(1, 1), (2, 2), (4, 40)])
    end, step = ends(2)
    by_rank[11] = kernels(11, 10, end, step, AHEAD + 50_000_000)
    found = clock_differences(by_rank, pairs, TOLERANCE)
    assert (2, 12) not in found
    assert int(np.median(found[0, 10])) == pytest.approx(-AHEAD, abs=TOLERANCE)
    assert int(np.median(found[1, 11])) == pytest.approx(-AHEAD - 50_000_000, abs=TOLERANCE)


def test_order_of_pairs_changes_nothing():
    by_rank, pairs = islands([(1, 1), (2, 2), (3, 3), (4, 40)], 5e-5)
    one, other = (clock_differences(by_rank, p, TOLERANCE) for p in (pairs, pairs[::-1]))
    assert list(one) == list(other)
    assert all((one[p] == other[p]).all() for p in one)
