"""Members of a group are told by leaving together; where nobody waited for anybody, nothing is told."""

from dataclasses import replace

import numpy as np
import pytest

from tracekit.inference.groups.common_ends import ClockErrors, Together, choose, choose_in_step, clusters
from tracekit.inference.groups.stream_sequences import StreamClass

US = 1_000.0
OPS = 40
TENSOR = [(0, 1), (2, 3), (4, 5), (6, 7)]
DATA = [(0, 2, 4, 6), (1, 3, 5, 7)]
WHOLE = [tuple(range(8))]


def recorded(groups, *, jitter, size=-1, drift=50e-6, seed=0):
    """A class of eight ranks whose `groups` run collectives; arrivals vary by `jitter` ns, clocks differ."""
    rng = np.random.default_rng(seed)
    starts, ends = np.zeros((8, OPS)), np.zeros((8, OPS))
    for group in groups:
        when = np.arange(OPS) * 1e6 + rng.normal(0, jitter, (len(group), OPS))
        leave = when.max(axis=0) + 100 * US
        for row, rank in enumerate(group):
            rate = 1 + drift * rng.uniform(-1, 1)
            begin, end = when[row] * rate, (leave + rng.exponential(2 * US, OPS)) * rate
            starts[rank], ends[rank] = begin - end[0], end - end[0]
    return StreamClass(dict.fromkeys(range(8), 20), tuple(range(8)), starts, ends, size)


@pytest.mark.parametrize("groups", [TENSOR, DATA, WHOLE], ids=["tensor", "data", "whole"])
@pytest.mark.parametrize("seed", range(3))
def test_common_ends_tell_the_groups(groups, seed):
    together = Together(recorded(groups, jitter=200 * US, seed=seed))
    assert sorted(clusters(together)) == sorted(groups)
    ways = [TENSOR, DATA, WHOLE]
    assert choose(together, ways) == ways.index(groups)


def test_ranks_that_never_wait_prove_no_group():
    together = Together(recorded(TENSOR, jitter=0.5 * US))
    assert clusters(together) == []
    assert choose(together, [TENSOR, DATA, WHOLE]) is None


def test_groups_in_step_are_left_open():
    """Two groups whose last ranks always arrive together may be one or two: neither is claimed."""
    alone = recorded([(0, 1)], jitter=200 * US)
    starts, ends = alone.starts.copy(), alone.ends.copy()
    for rank in range(2, 8):
        starts[rank], ends[rank] = starts[rank % 2], ends[rank % 2]
    together = Together(StreamClass(alone.streams, alone.kept, starts, ends, -1))
    assert choose(together, [TENSOR, DATA, WHOLE]) is None
    assert clusters(together) == []


def test_unequal_parts_are_no_groups():
    together = Together(recorded([(0, 1, 2), (3, 4, 5, 6, 7)], jitter=200 * US))
    assert clusters(together) == []


@pytest.mark.parametrize("apart_us", [0, 6_800])
def test_ranks_in_lockstep_apart_are_no_group(apart_us):
    """Stages end one after the other in every step; the ranks of the right groups have no clock in common."""
    ends = np.arange(OPS) * 1e6 + np.array([0, apart_us])[:, None] * US
    streams = StreamClass(
        {0: 20, 1: 20}, (0, 1), ends - 300 * US, ends, 2, aligned=True, kinds=("all_reduce",)
    )
    stages, replicas = [(0, 1), (2, 3)], [(0, 2), (1, 3)]
    assert choose(Together(streams), [stages, replicas]) == (None if apart_us else 0)


def test_a_clock_is_off_by_its_doubt_at_most():
    """A slope is the clock's; a constant far beyond the doubt is not."""
    when = np.arange(20) * 50e6
    errors = ClockErrors(when, 60 * US, drifts=True)
    drifting = 40 * US + 2e-5 * (when - when.mean())
    assert np.abs(errors.taken_out(drifting[None, :])).max() < US
    assert np.abs(errors.taken_out(drifting[None, :] + 6_800 * US)).min() > 6_500 * US


def in_step(groups):
    """Pairs of ranks that come together; all of each of `groups` wait for its last pair."""
    rng = np.random.default_rng(3)
    pair = np.arange(OPS) * 1e6 + rng.normal(0, 200 * US, (4, OPS))
    starts, ends = np.zeros((8, OPS)), np.zeros((8, OPS))
    for group in groups:
        leave = pair[[rank // 2 for rank in group]].max(axis=0) + 100 * US
        for rank in group:
            starts[rank], ends[rank] = pair[rank // 2], leave
    return Together(StreamClass(dict.fromkeys(range(8), 20), tuple(range(8)), starts, ends, -1))


def test_ranks_in_step_leave_the_finest_way():
    """Pairs that another group holds together leave every group together: the group is along the other axis."""
    every = [TENSOR, DATA, WHOLE]
    assert choose(in_step(DATA), every) is None
    assert choose_in_step(in_step(DATA), every) == 1


@pytest.mark.parametrize(("listed", "told"), [([2], 2), ([0, 2], 2), ([1, 2], 1), ([0], 1)])
def test_files_list_one_of_ways_in_step(listed, told):
    """Ends separate no group from one that also holds ranks in step, but files may list only one of them."""
    assert choose_in_step(in_step(DATA), [TENSOR, DATA, WHOLE], listed) == told


def test_ways_that_cross_each_other_stay_open():
    crossed = [(0, 3, 4, 7), (1, 2, 5, 6)]
    assert choose_in_step(in_step(DATA), [DATA, WHOLE, crossed]) is None


def test_ranks_in_step_that_never_wait_prove_nothing():
    together = Together(recorded(DATA, jitter=0.5 * US))
    assert choose_in_step(together, [TENSOR, DATA, WHOLE]) is None


@pytest.mark.parametrize(("kind", "chosen"), [("all_reduce", 1), ("other", None)])
def test_parts_that_wait_for_two_in_step_are_one(kind, chosen):
    """Two pairs come last in step, as the first stages of two replicas do, and two others wait: one group of all.

    Unless it may be messages: then the two may each be awaited by another pair.
    """
    ends = np.tile(np.arange(OPS) * 1e6, (8, 1)) + np.random.default_rng(0).normal(0, 0.1 * US, (8, OPS))
    lasted = np.repeat([25 * US, 26 * US, 22_000 * US, 23_000 * US], 2)[:, None]
    streams = recorded(WHOLE, jitter=0)
    aligned = replace(streams, starts=ends - lasted, ends=ends, aligned=True, kinds=(kind,) * OPS)
    assert choose(Together(aligned), [TENSOR, WHOLE]) == chosen


@pytest.mark.parametrize("late", [0, 1, 3])
def test_parts_that_wait_for_a_late_one_are_none(late):
    """Pairs in step come to a collective of all; the pairs before the late one take far longer than it does."""
    ends = np.tile(np.arange(OPS) * 1e6, (8, 1)) + np.random.default_rng(0).normal(0, 0.4 * US, (8, OPS))
    lasted = np.full((8, OPS), 50 * US)
    lasted[: 2 * late] = 2_000 * US
    lasted[1::2] += 400 * US  # one of each pair waits for the other
    together = Together(StreamClass(dict.fromkeys(range(8), 20), tuple(range(8)), ends - lasted, ends, 2))
    assert together.even(TENSOR) == (late < 3)
    assert choose(together, [TENSOR]) == (0 if late < 3 else None)


@pytest.mark.parametrize(("columns", "told"), [(3, None), (20, 1)])
def test_few_ends_separate_no_clock_of_unknown_rate(columns, told):
    """All ranks leave together; two nodes drift apart by 8 us a step, which three steps do not show to be a drift."""
    rng = np.random.default_rng(2)
    when = np.arange(columns) * 450e6
    drift = 8 * US * np.arange(columns) * (np.arange(8) >= 4)[:, None]
    ends = when + drift + rng.uniform(0, US, (8, columns))
    lasted = 1_000 * US * np.arange(1, 5).repeat(2)[:, None] + rng.uniform(0, US, (8, columns))
    made = StreamClass(
        dict.fromkeys(range(8), 20), tuple(range(8)), ends - lasted, ends, -1, aligned=True,
        kinds=("all_reduce",) * columns, doubt=1e6, drifts=True,
    )  # fmt: skip
    halves = [(0, 2), (1, 3), (4, 6), (5, 7)]
    assert choose_in_step(Together(made), [halves, DATA, WHOLE]) == told
