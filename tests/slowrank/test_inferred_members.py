"""A collective of an inferred group that lasts longer than any transfer may wait for somebody outside."""

from dataclasses import replace

import numpy as np
import pytest

from tests.slowrank.jobs import grid, job, prepared
from tracekit.analysis.slowrank.expected.like_transfers import beyond_inferred_group
from tracekit.analysis.slowrank.hypotheses.slow_link import slow_link

MESH = grid(tp=4, dp=4)


def _case(folder, factor, *, inferred):
    """A job with one slow tensor group; `inferred`: as if nothing but common ends had told the groups."""
    case = prepared(job(folder, MESH, link={MESH.line(0, ["tp"]): factor}), MESH)
    if not inferred:
        return case
    told = {
        rank: replace(ops, inferred=np.ones(len(ops.op), bool)) for rank, ops in case.ops.per_rank.items()
    }
    return replace(case, ops=replace(case.ops, per_rank=told))


def _guessed(case):
    slow = slow_link(case)
    numbers = np.flatnonzero(np.isin(case.ops.channel[case.waits.first_row], slow.channels)).tolist()
    assert beyond_inferred_group(case, numbers) == slow.guessed
    return slow.guessed


@pytest.mark.parametrize(("factor", "guessed"), [(60.0, True), (10.0, False)])
@pytest.mark.parametrize("inferred", [True, False])
def test_no_network_takes_as_long(tmp_path, factor, guessed, inferred):
    assert _guessed(_case(tmp_path, factor, inferred=inferred)) == (guessed and inferred)
