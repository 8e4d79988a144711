"""Where collectives name no group, or messages no peer, the interval of a price still holds the truth."""

import pytest

from tests.localise.case import make, save
from tracekit.analysis.slowrank.analyse import analyse
from tracekit.ingest import load


@pytest.mark.parametrize("seed", [9100239, pytest.param(9300262, marks=pytest.mark.slow)])
def test_an_interval_allows_for_unmatched_waits(tmp_path, seed):
    """59 % of the exposed communication of the first is not matched; the likely model of the second misses 24 ms."""
    case = make(seed)
    save(case, tmp_path)
    found = analyse(load([str(tmp_path)]), explain=True)
    assert found.coverage.matched < 1
    first, working = found.suspects[0], found.explanation.considered[0]
    lost = found.what_if.step_ms * (1 - 1 / case.slowdown)
    assert [first.rank] == list(case.culprits)
    assert first.lost_ms_low <= lost <= first.lost_ms_high
    assert (working.low_ms, working.high_ms) == pytest.approx((first.lost_ms_low, first.lost_ms_high))
