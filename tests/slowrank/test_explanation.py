"""`--explain`: every hypothesis and gap with its figures, and the rule that chose."""

import json

import pytest
from click.testing import CliRunner
from tracekit_cli.tracekit_commands.slowrank import slowrank

from tests.slowrank.jobs import grid, job
from tracekit.analysis.slowrank.analyse import analyse, illustrated
from tracekit.report.html.slowrank import slowrank_html
from tracekit.report.slowrank_text import slowrank_text

MESH = grid(tp=2, dp=4)


def explained(folder, **faults):
    found = analyse(job(folder, MESH, **faults), explain=True)
    return found, found.explanation


def kinds(explanation, outcome):
    return [(c.kind, c.ranks) for c in explanation.considered if c.outcome == outcome]


def test_a_slow_rank_is_named_by_its_least_price(tmp_path):
    found, working = explained(tmp_path, slow={5: 1.4})
    assert kinds(working, "named") == [("rank", (5,))]
    first = working.considered[0]
    assert first.low_ms >= working.threshold_ms
    assert first.low_ms <= first.likely_ms <= first.high_ms
    assert first.significance > first.limit
    named = found.suspects[0]
    assert first.likely_ms == pytest.approx(named.lost_ms_per_step)
    assert (first.low_ms, first.high_ms) == pytest.approx((named.lost_ms_low, named.lost_ms_high))
    assert f'by the rule "slow ranks are dearest": {found.reason}' in working.rule


def test_health_means_that_nothing_reaches_the_threshold(tmp_path):
    found, working = explained(tmp_path)
    assert found.verdict == "healthy"
    assert working.considered
    assert not [c for c in working.considered if c.high_ms >= working.threshold_ms]
    assert not [g for g in working.gaps if g.could_hide_ms >= working.threshold_ms]


def test_a_slow_link_is_no_slow_rank(tmp_path):
    group = MESH.line(0, ["dp"])
    found, working = explained(tmp_path, link={group: 12.0})
    assert found.verdict == "slow_link"
    assert [kind for kind, _ in kinds(working, "named")] == ["link"]


def test_ranks_without_a_trace_are_a_gap(tmp_path):
    _, working = explained(tmp_path, lost={6})
    remedied = [gap.what for gap in working.gaps if gap.remedy == "add the trace of rank 6"]
    assert any("is not matched on all members" in what for what in remedied)


def test_all_forms_show_the_working(tmp_path):
    found, picture = illustrated(job(tmp_path, MESH, slow={5: 1.4}), explain=True)
    page, text = slowrank_html(found, picture), slowrank_text(found)
    for shown in (page, text):
        assert "rank 5 works longer than its peers" in shown
        assert "the most expensive significant hypothesis is named" in shown
    assert "considered" not in slowrank_text(analyse(job(tmp_path, MESH, slow={5: 1.4})))


def test_the_command_explains_in_json():
    arguments = ["sample_traces/slow_compute", "--explain", "--json", "-", "--quiet"]
    shown = json.loads(CliRunner().invoke(slowrank, arguments, standalone_mode=False).stdout)
    assert shown["explanation"]["considered"][0]["ranks"] == [5]


def test_no_quicker_rank_is_listed_as_longer(tmp_path):
    mesh = grid(tp=2, pp=2, dp=2)
    slow = {rank: 1.3 + 0.02 * (rank % 2) for rank in mesh.coordinates if mesh.coords(rank)["pp"]}
    found = analyse(job(tmp_path, mesh, slow=slow), explain=True)
    assert found.cause == "stage_imbalance"
    assert [c.kind for c in found.explanation.considered if c.outcome == "named"] == ["stage"]
    assert all(c.longer_ms is None or c.longer_ms > 0 for c in found.explanation.considered)
