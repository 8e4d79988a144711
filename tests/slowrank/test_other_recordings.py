"""Ends that do not meet tell recordings apart only where the traces name the groups."""

from dataclasses import replace

import numpy as np
import pytest

from tests.slowrank.jobs import grid, job
from tracekit.analysis.slowrank.other_recordings import named_by_traces, strangers
from tracekit.errors import InputError
from tracekit.tables.match import match
from tracekit.tables.operations import read_rank


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
