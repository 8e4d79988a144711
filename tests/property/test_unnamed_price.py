"""Where collectives name no group, or messages no peer, the interval of a price still holds the truth."""

import pytest

from tests.localise.case import make, save
from tracekit.analysis.slowrank.analyse import analyse
from tracekit.ingest import load


def test_an_interval_allows_for_unmatched_waits(tmp_path):
    """59 % of the exposed communication is not matched."""
    case = make(9100239)
    save(case, tmp_path)
    found = analyse(load([str(tmp_path)]), explain=True)
    assert found.coverage.matched < 1
    first, working = found.suspects[0], found.explanation.considered[0]
    lost = found.what_if.step_ms * (1 - 1 / case.slowdown)
    assert [first.rank] == list(case.culprits)
    assert first.lost_ms_low <= lost <= first.lost_ms_high
    assert (working.low_ms, working.high_ms) == pytest.approx((first.lost_ms_low, first.lost_ms_high))
