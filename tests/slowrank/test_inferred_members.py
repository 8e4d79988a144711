"""A collective of an inferred group that lasts longer than any transfer may wait for somebody outside."""

from dataclasses import replace

import numpy as np
import pytest

from tests.slowrank.jobs import grid, job, prepared
from tracekit.analysis.slowrank.hypotheses.slow_link import slow_link
from tracekit.expected.like_transfers import beyond_inferred_group

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


def _in_step(case, rank, like):
    """`case` in which `rank` leaves every operation when `like` does, as a replica in step."""
    end = case.ops.end.copy()
    end[case.ops.of(rank)] = end[case.ops.of(like)]
    clocks = case.clocks
    origin = clocks.origin | {rank: clocks.origin[like]}
    offset = clocks.offset | {rank: clocks.offset[like]}
    rate = clocks.rate | {rank: clocks.rate[like]}
    clocks = replace(clocks, origin=origin, offset=offset, rate=rate)
    return replace(case, ops=replace(case.ops, end=end), clocks=clocks)


def _guessed(case):
    slow = slow_link(case)
    numbers = np.flatnonzero(np.isin(case.ops.channel[case.waits.first_row], slow.channels)).tolist()
    assert beyond_inferred_group(case, numbers) == slow.guessed
    return slow.guessed


@pytest.mark.parametrize(("factor", "guessed"), [(60.0, True), (10.0, False)])
@pytest.mark.parametrize("inferred", [True, False])
def test_no_network_takes_as_long(tmp_path, factor, guessed, inferred):
    case = _in_step(_case(tmp_path, factor, inferred=inferred), rank=5, like=1)
    assert _guessed(case) == (guessed and inferred)


def test_members_who_leave_alone_wait_for_nobody(tmp_path):
    assert not _guessed(_case(tmp_path, 60.0, inferred=True))


@pytest.mark.parametrize("rank", [4, 15])
@pytest.mark.parametrize(
    ("change", "guessed"),
    [
        ({"exact": -1}, False),
        ({"exact": -1, "doubt": 1e6}, True),
        ({"island": -1, "exact": -1}, True),
    ],
)
def test_a_clock_of_its_own_may_hide_another_member(tmp_path, rank, change, guessed):
    case = _case(tmp_path, 60.0, inferred=True)
    clocks = replace(
        case.clocks, **{name: getattr(case.clocks, name) | {rank: value} for name, value in change.items()}
    )
    assert _guessed(replace(case, clocks=clocks)) == guessed
