"""Operation tables are priced by their dependencies: the culprit alone is named, at what its cure would save."""

import math
import re
from random import Random

import pytest

from tests.ingest.sample import DATA, needs_data
from tests.what_if.tables import ingested, replicas, stages
from tracekit.analysis.slowrank.analyse import analyse
from tracekit.ingest import load
from tracekit.report.slowrank_text import slowrank_text


def test_one_slow_worker_costs_its_excess_over_peers(tmp_path):
    """Recorded 140 ms; the others compute for 60 ms."""
    finding = analyse(ingested(tmp_path, replicas([1, 2, 1, 1])))
    assert finding.verdict == "slow_rank"
    assert [s.rank for s in finding.suspects] == [1]
    assert finding.what_if.slowdown == pytest.approx(140 / 80, rel=0.001)


@pytest.mark.parametrize("stage", [0, 1, 2])
@pytest.mark.parametrize("kind", ["scatter", "gather"])
@pytest.mark.quick(2)
def test_a_slow_collective_of_any_stage_is_priced(tmp_path, kind, stage):
    """5 ms become 50 ms of the 141 ms that the step takes else."""
    finding = analyse(ingested(tmp_path, stages(**{kind: {stage: 10}})))
    assert (finding.verdict, finding.cause) == ("slow_link", "network")
    assert [s.rank for s in finding.suspects] == [2 * stage, 2 * stage + 1]
    assert finding.what_if.slowdown == pytest.approx(186 / 141, rel=0.005)


def dealt(step, dp, batch):
    """Factors between 0.7 and 1.3 that no two steps share."""
    return 1 + 0.3 * math.sin(7.0 * step + 3.0 * dp + 2.0 * batch**2)


def test_uneven_micro_batches_are_nobodys_fault(tmp_path):
    finding = analyse(ingested(tmp_path, stages(steps=6, dp=4, need=dealt)))
    assert (finding.verdict, finding.cause, finding.suspects) == ("imbalance", "data_imbalance", ())
    assert finding.what_if.slowdown > 1.04


def test_a_slow_worker_among_uneven_micro_batches(tmp_path):
    finding = analyse(ingested(tmp_path, stages(steps=6, dp=4, need=dealt, slow={(1, 2): 1.8})))
    assert (finding.verdict, [s.rank for s in finding.suspects]) == ("slow_rank", [9])


def test_a_first_step_that_is_long_for_all(tmp_path):
    rows = stages(dp=4, slow={(1, 2): 1.3}, need=lambda step, *_: 1 if step else 10)
    finding = analyse(ingested(tmp_path, rows))
    assert (finding.verdict, [s.rank for s in finding.suspects]) == ("slow_rank", [9])
    assert finding.what_if.slowdown == pytest.approx(
        (4 * 21 + 13 * 1.3 * 120) / (4 * 21 + 13 * 120), rel=0.002
    )


def test_a_stage_that_may_cost_the_threshold_is_open(tmp_path):
    """Doing as much as the others would save 2.5 % of the step, giving its work to them 1.7 %."""
    rows = stages(
        dp=4, slow={(d, 1): 1.03 for d in range(4)}, need=lambda step, d, k: 1 + 1e-4 * ((step + d + k) % 3)
    )
    finding = analyse(ingested(tmp_path, rows))
    assert (finding.verdict, finding.suspects) == ("inconclusive", ())
    assert {c.coords["pp"] for c in finding.candidates} == {1}
    assert finding.reason.startswith("pipeline stage 1 works")


def test_a_loss_that_nothing_explains_is_open(tmp_path):
    """Each rank is long in computations of its own, and nobody more than the others."""
    rows = stages(steps=6, dp=4)
    for n, r in enumerate(rows):
        r["duration"] *= 1.5 if r["optype"].endswith("compute") and n * 7919 % 5 == 0 else 1
    finding = analyse(ingested(tmp_path, rows))
    assert finding.verdict != "healthy"


def test_operations_that_vary_by_themselves_are_open(tmp_path):
    """No rank, link or micro-batch explains which computation is long."""
    lots = Random(0)
    rows = stages(dp=4, pp=1, steps=10, need=lambda *_: lots.uniform(0.4, 1.6))
    finding = analyse(ingested(tmp_path, rows), explain=True)
    assert finding.verdict == "inconclusive"
    assert "table is unexplained" in finding.explanation.rule


def test_a_rank_that_lies_idle_is_not_blamed(tmp_path):
    finding = analyse(ingested(tmp_path, replicas([1, 1, 1, 1], gap=0.001)))
    assert finding.suspects == ()


@pytest.mark.slow
@needs_data
@pytest.mark.realdata
def test_the_published_slow_worker_alone_is_named():
    finding = analyse(load([str(DATA / "ops" / "trace-AR.parquet")]))
    assert (finding.verdict, [s.rank for s in finding.suspects]) == ("slow_rank", [0])
    assert finding.what_if.slowdown == pytest.approx(2.024, rel=0.01)


@needs_data
@pytest.mark.realdata
def test_the_published_long_stage_costs_everybody():
    finding = analyse(load([str(DATA / "ops" / "trace-ST.parquet")]))
    assert (finding.verdict, {s.coords["pp"] for s in finding.suspects}) == ("imbalance", {3})
    assert finding.what_if.slowdown == pytest.approx(1.179, rel=0.01)


def test_the_factor_with_the_greatest_share_is_named(tmp_path):
    """The last stage computes 1.6 times as long; uneven micro-batches and a slow all-gather cost less."""
    slow = {(d, 2): 1.6 for d in range(4)}
    finding = analyse(ingested(tmp_path, stages(steps=6, dp=4, need=dealt, slow=slow, gather={0: 10})))
    assert (finding.verdict, finding.cause) == ("imbalance", "stage_imbalance")
    assert {s.coords["pp"] for s in finding.suspects} == {2}
    share = int(
        re.search(r"that stage alone saves .* (\d+)% of what typical work on all ranks", finding.reason)[1]
    )
    assert 50 < share < 95
    saved = finding.what_if.step_ms - finding.what_if.without_suspects_ms
    assert finding.suspects[0].lost_ms_per_step == pytest.approx(share / 100 * saved, rel=0.02)
    assert "even micro-batches alone" in finding.reason
    assert f"costs {finding.suspects[0].lost_ms_per_step:.1f} ms of" in slowrank_text(finding)
    assert "with typical work on all ranks" in slowrank_text(finding)
