"""Ends that do not meet tell recordings apart only where the traces name the groups."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from tests.slowrank.jobs import grid, job
from tracekit.errors import InputError
from tracekit.inference.groups.other_recordings import named_by_traces, strangers
from tracekit.inference.peers.lost_arguments import named_after
from tracekit.matching.match import match
from tracekit.rank_events.operations import read_rank


@pytest.mark.parametrize("named", [True, False])
def test_inferred_groups_tell_no_recordings_apart(tmp_path, named):
    """Two ranks end elsewhere: their groups are wrong, or another job ran them; only named groups tell the latter."""
    run = job(tmp_path, grid(dp=4))
    ranks = [read_rank(run, r.rank) for r in run.ranks]
    told = [r if named else replace(r, group=np.full_like(r.group, -1)) for r in ranks]
    ops = match(ranks, run.groups)
    late = np.random.default_rng(1).integers(0, 900_000, int((ops.rank == 0).sum()))
    ends = ops.end.copy()
    for rank in (2, 3):
        ends[ops.of(rank)] += np.cumsum(late)
    ops = replace(ops, end=ends)
    if named:
        with pytest.raises(InputError, match="1: ranks 0, 1; 2: ranks 2, 3"):
            strangers(ops, named_by_traces(told))
    else:
        assert strangers(ops, named_by_traces(told)) == ()


@pytest.mark.parametrize("jitter_us", [0, 300])
def test_devices_of_one_job_leave_together(tmp_path, jitter_us):
    """Ends of a second run of the job, whose steps are alike, miss by 0.3 ms; those of one run by nothing."""
    run = job(tmp_path, grid(dp=6), steps=10, jitter=0.1)
    ranks = [read_rank(run, r.rank) for r in run.ranks]
    ops = match(ranks, run.groups)
    ends = ops.end.copy()
    ends[ops.of(2)] += np.random.default_rng(1).integers(0, 1000 * jitter_us + 1, int((ops.rank == 2).sum()))
    found = strangers(replace(ops, end=ends), named_by_traces(ranks))
    assert found == ((2,) if jitter_us else ())


@pytest.mark.parametrize(
    "other",
    [
        lambda t: t * 1000,
        lambda t: t // 1000,
        lambda t: np.where(t > np.quantile(t, 0.3), t - 3_600_000_000_000, t),
    ],
    ids=["nanoseconds", "milliseconds", "a jump by an hour"],
)
def test_a_clock_that_counts_otherwise_is_set_apart(tmp_path, other):
    """Also where a group of all ranks communicates too rarely to show it: its few ends fit any clock."""
    run = job(tmp_path, grid(tp=2, dp=4), combined=[("tp", "dp")], steps=3, layers=4)
    ranks = [read_rank(run, r.rank) for r in run.ranks]
    few = [_with_one_in_a_step(rank, run.groups, size=8) for rank in ranks]
    ops = match(few, run.groups)
    start, end = ops.start.copy(), ops.end.copy()
    for times in (start, end):
        times[ops.of(3)] = other(times[ops.of(3)])
    assert strangers(replace(ops, start=start, end=end), named_by_traces(few)) == (3,)


@pytest.mark.parametrize(("rate", "strange"), [(9e-5, False), (0.0, True)])
def test_few_ends_may_drift(tmp_path, rate, strange):
    """A clock that drifts by 90 µs a step is the same job's; one that jumps is not."""
    run = job(tmp_path, grid(tp=4, dp=3), steps=5, layers=2, jitter=0.1)
    ranks = [_with_one_in_a_step(read_rank(run, r.rank), run.groups, size=3) for r in run.ranks]
    ops = match(ranks, run.groups)
    start, end = ops.start.copy(), ops.end.copy()
    for rank in ops.ranks:
        later = 1_000_000_000 * ops.step[ops.of(rank)].astype(np.int64)
        start[ops.of(rank)] += later
        end[ops.of(rank)] += later
    for rank in range(8, 12):
        mine = ops.of(rank)
        jump = np.array([0, 700_000, -400_000, 900_000, -200_000])[ops.step[mine]] if strange else 0
        for times in (start, end):
            times[mine] += np.rint(rate * (times[mine] - times[0])).astype(np.int64) + jump
    found = strangers(replace(ops, start=start, end=end), named_by_traces(ranks))
    assert found == ((8, 9, 10, 11) if strange else ())


def _with_one_in_a_step(rank, groups, size):
    """`rank` with only the first operation of each step in groups of `size`; the others name no group."""
    large = {g.group for g in groups if len(g.ranks) == size}
    mine = np.isin(rank.group, sorted(large))
    first = np.zeros(len(mine), bool)
    first[np.flatnonzero(mine)[np.unique(rank.step[mine], return_index=True)[1]]] = True
    return replace(rank, group=np.where(mine & ~first, -1, rank.group).astype(rank.group.dtype))


def test_divided_operations_keep_their_names():
    """A kernel of three messages, whose arguments were lost, becomes three operations with one start."""
    before = SimpleNamespace(rank=4, start=np.array([10, 20, 30]))
    after = SimpleNamespace(rank=4, start=np.array([10, 20, 20, 20, 30]))
    named = {4: np.array([True, False, True])}
    assert named_after(named, [before], [after])[4].tolist() == [True, False, False, False, True]
    assert named_after(named, [before], [before])[4] is named[4]
