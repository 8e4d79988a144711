"""Messages whose peer nothing tells are counted, with the time that compute stood still for them."""

import numpy as np
import pyarrow.parquet as pq
import pytest

from tests.slowrank.jobs import grid, job, prepared
from tests.tables.rows import bare, events
from tests.what_if.tables import unnamed
from tracekit.analysis.slowrank.analyse import analyse
from tracekit.analysis.slowrank.gaps.evidence_gaps import least_ns, most_ns


def test_messages_without_a_peer_are_counted(tmp_path):
    run = job(tmp_path, grid(tp=2), steps=4)
    for record in run.ranks:
        path = run.folder / record.table
        rows = pq.read_table(path).to_pylist()
        end = max(r["ts"] + r["dur"] for r in rows if r["cat"] == "kernel") / 1000
        pq.write_table(events([*rows, bare(end - 5.0, 400.0, 1)]), path)
    found = {q.kind: q for q in analyse(run).quality}
    assert found["messages_without_peer"].count == 2
    assert "ms, waiting or not" in found["messages_without_peer"].detail


def test_a_price_of_unmatched_waits_has_no_low_end(tmp_path, monkeypatch):
    """Without any group, all of the slow rank's excess may have been waited for, or nothing, if no stage tells."""
    mesh = grid(tp=2, dp=4)
    run = unnamed(unnamed(job(tmp_path, mesh, slow={1: 1.3}, jitter=0), "dp"), "tp")
    assert least_ns(prepared(run, mesh), np.array([1])) == pytest.approx(1.8e6, rel=0.1)
    monkeypatch.setattr("tracekit.case.case.mates", lambda m: np.full(len(m.ops.start), -1))
    case = prepared(run, mesh)
    assert least_ns(case, np.array([1])) == pytest.approx(0, abs=1e4)
    assert most_ns(case, np.array([1])) > 1e6


def test_a_price_of_matched_waits_is_narrow(tmp_path):
    mesh = grid(tp=2, dp=4)
    (suspect,) = analyse(job(tmp_path, mesh, slow={1: 1.3}, jitter=0)).suspects
    assert suspect.lost_ms_low == pytest.approx(suspect.lost_ms_per_step, rel=0.02)


def test_the_high_end_cures_a_pause_in_its_place(tmp_path):
    """Spread over the step, the pause would stay before the first collective, for which everybody waits."""
    mesh = grid(tp=2, dp=4)
    case = prepared(unnamed(job(tmp_path, mesh, accident=(1, None, 2000.0), jitter=0), "tp"), mesh)
    assert most_ns(case, np.array([1])) == pytest.approx(2e6, rel=0.02)
