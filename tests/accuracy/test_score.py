"""Marking follows the contract's meanings."""

from dataclasses import replace

import pytest

from tests.accuracy.score import Mark, judge, rates, table
from tests.generator import generate
from tracekit.findings import MeshFinding, RankCoverage, SlowRankFinding, StepsFinding, Suspect, WhatIf


def finding(verdict: str, *ranks: int) -> SlowRankFinding:
    return SlowRankFinding(
        ranks=RankCoverage(8, 8),
        mesh=MeshFinding(("dp",), {"dp": 8}, "process_groups"),
        steps=StepsFinding((1,), 10.0),
        verdict=verdict,
        cause=None,
        reason="",
        path=(),
        suspects=tuple(Suspect(r, None, {}, 1.0, 0.9, (1,), "unknown") for r in ranks),
        what_if=WhatIf(10.0, 9.0, 1.1),
    )


@pytest.fixture(scope="module")
def truths():
    return {
        kind: generate(1, kind=kind, world=8).truth for kind in ("slow_compute", "doc_imbalance", "healthy")
    }


def test_slow_rank_counts_only_with_the_planted_rank_first(truths):
    truth = replace(truths["slow_compute"], suspects=frozenset({5}))
    assert judge(truth, finding("slow_rank", 5, 2)) == "right"
    assert judge(truth, finding("slow_rank", 2, 5)) == "wrong_rank"
    assert judge(truth, finding("slow_link", 5)) == "wrong_verdict"
    assert judge(truth, finding("imbalance")) == "wrong_verdict"
    assert judge(truth, finding("healthy")) == "missed"
    assert judge(truth, finding("inconclusive")) == "inconclusive"


def test_an_imbalance_that_moves_names_nobody(truths):
    assert judge(truths["doc_imbalance"], finding("imbalance")) == "right"
    assert judge(truths["doc_imbalance"], finding("imbalance", 3)) == "wrong_rank"


def test_any_accusation_of_a_healthy_job_is_false_alarm(truths):
    assert judge(truths["healthy"], finding("healthy")) == "right"
    assert judge(truths["healthy"], finding("slow_rank", 1)) == "false_alarm"
    assert judge(truths["healthy"], finding("imbalance")) == "false_alarm"


def test_rates_count_only_faults_that_cost_a_tenth():
    def marked(kind: str, outcome: str, slowdown: float) -> Mark:
        return Mark(
            1, kind, "", outcome, cause_right=True, world=8, slowdown=slowdown, seconds=0, truth="", answer="",
            what_if=1.15,
        )  # fmt: skip

    marks = [
        marked("slow_compute", "right", 1.2),
        marked("slow_compute", "wrong_rank", 1.3),
        marked("slow_compute", "missed", 1.05),
        marked("healthy", "right", 1.0),
        marked("healthy_slack", "false_alarm", 1.0),
    ]
    found = rates(marks)
    assert (found["faulty"], found["top1"], found["blamed_innocents"]) == (2, 0.5, 1)
    assert found["false_alarms"] == 0.5
    assert found["price_error_median"] == pytest.approx(0.25)
    assert "wrong rank" in table(marks)
