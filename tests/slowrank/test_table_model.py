"""Operation tables are priced by their dependencies: the culprit alone is named, at what its cure would save."""

import pytest

from tests.ingest.sample import DATA, needs_data
from tests.what_if.tables import ingested, replicas
from tracekit.analysis.slowrank.analyse import analyse
from tracekit.ingest import load


def test_one_slow_worker_costs_its_excess_over_ideal(tmp_path):
    """Recorded 140 ms; ideal compute on the slow rank is the mean, 75 ms, beside 60 ms on the others."""
    finding = analyse(ingested(tmp_path, replicas([1, 2, 1, 1])))
    assert finding.verdict == "slow_rank"
    assert [s.rank for s in finding.suspects] == [1]
    assert finding.what_if.slowdown == pytest.approx(140 / 95, rel=0.001)


def test_a_rank_that_lies_idle_is_not_blamed(tmp_path):
    finding = analyse(ingested(tmp_path, replicas([1, 1, 1, 1], gap=0.001)))
    assert finding.suspects == ()


@pytest.mark.slow
@needs_data
@pytest.mark.realdata
def test_the_published_slow_worker_alone_is_named():
    finding = analyse(load([str(DATA / "ops" / "trace-AR.parquet")]))
    assert (finding.verdict, [s.rank for s in finding.suspects]) == ("slow_rank", [0])
    assert finding.what_if.slowdown == pytest.approx(1.973, rel=0.01)


@needs_data
@pytest.mark.realdata
def test_the_published_long_stage_costs_everybody():
    finding = analyse(load([str(DATA / "ops" / "trace-ST.parquet")]))
    assert (finding.verdict, {s.coords["pp"] for s in finding.suspects}) == ("imbalance", {3})
    assert finding.what_if.slowdown == pytest.approx(1.179, rel=0.01)
