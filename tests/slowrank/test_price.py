"""The two ends of a price hold the truth: what the same job takes without the fault."""

import numpy as np
import pytest

from tests.marks import quick_first
from tests.slowrank.jobs import grid, job, prepared
from tracekit.analysis.slowrank.analyse import analyse
from tracekit.analysis.slowrank.gaps.evidence_gaps import bounds_of, most_ns
from tracekit.analysis.slowrank.price import Price, rank_doubt_ns, spread_of_ranks
from tracekit.case.opened import opened

MESH = grid(tp=2, pp=2, dp=4)


def test_the_ends_of_a_price_hold_it():
    assert Price.between(5.0, 3.0, 1.0) == Price(3.0, 3.0, 3.0)
    assert Price.between(-2.0, -1.0, 4.0) == Price(0.0, 0.0, 4.0)  # a cure never costs time
    assert Price.between(-1.0, 3.0, 9.0).widened(1.0) == Price(0.0, 3.0, 10.0)
    assert Price.up_to(4.0, 9.0) == Price(0.0, 4.0, 4.0)
    assert Price(1.0, 2.0, 3.0).without(2.5) == Price(0.0, 0.0, 0.5)


@pytest.mark.parametrize("unequal", quick_first(1, [0.02, 0.005, 0.04]))
def test_an_interval_holds_the_truth_among_unequal_ranks(tmp_path, unequal):
    """Healthy ranks that differ by up to `unequal` leave it open which of them the cured rank is like."""
    usual = {rank: 1.0 + unequal * np.cos(2.0 * rank) for rank in MESH.coordinates}
    steps = []
    for name, slow in (("cured", usual), ("slow", {**usual, 5: 1.3 * usual[5]})):
        (tmp_path / name).mkdir()
        found = analyse(job(tmp_path / name, MESH, slow=slow))
        steps.append(found.what_if.step_ms)
    first = found.suspects[0]
    assert first.rank == 5
    assert first.lost_ms_low < first.lost_ms_per_step
    assert first.lost_ms_low <= steps[1] - steps[0] <= first.lost_ms_high


def test_a_wider_spread_of_ranks_widens_the_doubt(tmp_path):
    doubts = []
    for unequal in (0.0, 0.03):
        folder = tmp_path / f"{unequal}"
        folder.mkdir()
        slow = {rank: 1.0 + unequal * np.cos(2.0 * rank) for rank in MESH.coordinates}
        case, _ = opened(job(folder, MESH, slow=slow | {5: 1.3}), None, None, None, None)
        rows = np.array([case.steps.row(5)])
        assert rank_doubt_ns(case, rows) >= spread_of_ranks(case, rows)
        doubts.append(spread_of_ranks(case, rows))
    assert doubts[0] < doubts[1] / 5


def test_ranks_slow_alike_do_not_widen_the_doubt(tmp_path):
    """A cured rank works like typical peers, not like others of its slow node, although these cost nothing."""
    spreads = []
    for also in ({}, {4: 1.3, 7: 1.25}):
        folder = tmp_path / f"{len(also)}"
        folder.mkdir()
        case, _ = opened(job(folder, MESH, slow={5: 1.3} | also), None, None, None, None)
        spreads.append(spread_of_ranks(case, np.array([case.steps.row(5)])))
    assert spreads[1] < 2 * spreads[0]


def test_ranks_late_together_each_carry_the_whole_price(tmp_path):
    """A tensor group with a late loader: the cure of one rank alone saves nothing."""
    case = prepared(job(tmp_path, MESH, idle=lambda rank, _: 300.0 * (rank in {4, 5})), MESH)
    rows = np.array([case.steps.row(rank) for rank in (4, 5)])
    together = most_ns(case, rows)
    assert together > 2 * most_ns(case, rows[:1])
    assert [p.high for p in bounds_of(case, rows).prices] == pytest.approx([together, together], rel=0.1)
