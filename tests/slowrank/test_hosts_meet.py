"""Hosts that wait for other hosts outside the kernels leave a job open: no kernel shows the last of them."""

from pathlib import Path

import pytest

from tests.reports.phases import hosts_meet
from tests.reports.slow import into
from tracekit.analysis.slowrank.analyse import analyse
from tracekit.findings import SlowRankFinding
from tracekit.ingest import load

LATE, LATE_MS = 5, 12.0


def asked(folder: Path, late_ms: float, missing: int | None = None) -> SlowRankFinding:
    into(hosts_meet(late_ms), 8)(folder)
    if missing is not None:
        (trace,) = (folder / "traces").glob(f"*rank*{missing}*")
        trace.unlink()
    return analyse(load(folder))


def test_the_last_host_is_a_candidate(tmp_path):
    found = asked(tmp_path, LATE_MS)
    assert found.verdict == "inconclusive"
    (late,) = found.candidates
    assert late.rank == LATE
    assert late.lost_ms_high == pytest.approx(LATE_MS, rel=0.05)


def test_hosts_that_meet_on_time_are_healthy(tmp_path):
    assert asked(tmp_path, 0.0).verdict == "healthy"


def test_hosts_that_wait_for_an_unrecorded_one_are_innocent(tmp_path):
    found = asked(tmp_path, LATE_MS, missing=LATE)
    assert found.verdict == "inconclusive"
    assert {c.rank for c in found.candidates} <= {LATE}
