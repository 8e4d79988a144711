"""A collective of an inferred group that lasts longer than any transfer waits for somebody outside, and is no link."""

from dataclasses import replace

import numpy as np
import pytest

from tests.slowrank.jobs import grid, job, prepared
from tracekit.analysis.slowrank.inferred_members import beyond_inferred_group
from tracekit.analysis.slowrank.slow_link import slow_link

MESH = grid(tp=4, dp=4)


@pytest.mark.parametrize(("factor", "guessed"), [(60.0, True), (10.0, False)])
@pytest.mark.parametrize("inferred", [True, False])
def test_no_network_takes_as_long(tmp_path, factor, guessed, inferred):
    case = prepared(job(tmp_path, MESH, link={MESH.line(0, ["tp"]): factor}), MESH)
    if inferred:
        told = {
            rank: replace(ops, inferred=np.ones(len(ops.op), bool)) for rank, ops in case.ops.per_rank.items()
        }
        case = replace(case, ops=replace(case.ops, per_rank=told))
    slow = slow_link(case)
    assert slow is not None
    assert slow.guessed == (guessed and inferred)
    numbers = np.flatnonzero(np.isin(case.ops.channel[case.waits.first_row], slow.channels)).tolist()
    assert beyond_inferred_group(case, numbers) == (guessed and inferred)
