"""Answers as metrics: the same figures as in JSON, names that a scraper takes, and hosts that stay inert."""

import dataclasses

import pytest

import tracekit
from tracekit.report.prometheus import hang_metrics, slowrank_metrics

parser = pytest.importorskip("prometheus_client.parser", reason="needs the extra prometheus")


def samples(text):
    """Values by name and labels, as a scraper reads them."""
    families = parser.text_string_to_metric_families(text)
    return {(s.name, *sorted(s.labels.items())): s.value for family in families for s in family.samples}


@pytest.fixture(scope="module")
def slow(ingested):
    return tracekit.slowrank(tracekit.load(ingested("demo_slow_tp")))


def test_figures_equal_the_finding(slow):
    found = samples(slowrank_metrics(slow))
    (suspect,) = slow.suspects
    lost = {dict(key[1:])["bound"]: v for key, v in found.items() if "suspect_lost" in key[0]}
    assert lost["mean"] == suspect.lost_ms_per_step * 1e-3
    assert lost["low"] == suspect.lost_ms_low * 1e-3
    assert found[("tracekit_slowrank_verdict", ("verdict", "slow_rank"))] == 1
    assert sum(v for key, v in found.items() if key[0] == "tracekit_slowrank_verdict") == 1
    assert found[("tracekit_slowrank_ranks", ("state", "read"))] == 8
    assert found[("tracekit_slowrank_matched_ratio", ("axis", "all"))] == slow.coverage.matched


def test_unknown_bounds_have_no_line(slow):
    open_ended = dataclasses.replace(slow.suspects[0], lost_ms_high=None)
    found = samples(slowrank_metrics(dataclasses.replace(slow, suspects=(open_ended,))))
    assert {dict(key[1:])["bound"] for key in found if "suspect_lost" in key[0]} == {"mean", "low"}


def test_host_of_a_stranger_ends_no_line(slow):
    host = 'a"} 7\ntracekit_slowrank_verdict{verdict="healthy"} 1\n\x1b[2J'
    suspect = dataclasses.replace(slow.suspects[0], host=host)
    text = slowrank_metrics(dataclasses.replace(slow, suspects=(suspect,)))
    assert "\x1b" not in text
    assert samples(text)[("tracekit_slowrank_verdict", ("verdict", "healthy"))] == 0


def test_hang_names_its_culprit():
    found = samples(hang_metrics(tracekit.hang(tracekit.load_dumps("sample_traces/hang_host_stall"))))
    culprits = [dict(key[1:])["rank"] for key in found if key[0] == "tracekit_hang_culprit"]
    assert culprits == ["6"]
    assert found[("tracekit_hang_victims",)] == 15
