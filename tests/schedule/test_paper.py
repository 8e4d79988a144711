"""The papers' figures by exact times: what is exact, what deviates, and by the formula derived for it."""

from fractions import Fraction
from pathlib import Path

import pytest

from reftrain.papers.schedule_formulas import PUBLISHED
from reftrain.schedule.costs import Costs
from reftrain.schedule.generators import make_schedule
from reftrain.schedule.timing import time_schedule
from studies import schedules as paper
from tests.marks import quick_first

SIZES = [(p, multiple * p) for p in (4, 8) for multiple in (1, 2, 4)] + [(16, 16), (16, 32), (32, 32)]
EXACT = {"gpipe", "1f1b", "chimera halving"}


@pytest.mark.parametrize(("p", "m"), quick_first(4, SIZES))
def test_chimeras_table(p, m):
    for scheme in PUBLISHED:
        row = paper.row(scheme, p, m)
        assert row.weights[0] == row.weights[1], row
        assert row.activations[0] == row.activations[1], row
        assert row.ours == row.derived, row
        if row.scheme in EXACT or (row.scheme.startswith("chimera") and m == p):
            assert row.ours == row.paper, row
        if row.scheme.startswith("pipedream"):
            assert row.ours < Fraction(1, 100), row
        if row.scheme == "gems":
            assert 0 < row.points < (2.6 if (p, m) == (4, 4) else 2), row


def test_forward_doubling_without_a_second_unit_is_exact():
    doubling = next(s for s in PUBLISHED if s.concatenation == "doubling")
    for p in (4, 8, 16):
        row = paper.row(doubling, p, 2 * p)
        assert row.ours == row.paper == Fraction(p - 2, 5 * p - 2)


def test_direct_concatenation_is_seamless_in_equal_slots():
    for p in (4, 8):
        for m in (p, 2 * p, 4 * p):
            timing = time_schedule(make_schedule("chimera", p, 1, m, 1), Costs(b=Fraction(1)))
            assert timing.bubble_ratio == Fraction(p - 2, 2 * m + p - 2)


def test_more_pipelines():
    rows = list(paper.pipelines_rows())
    assert len(rows) == 2 + 3 + 4 + 5
    for row in rows:
        assert row.ours == row.paper, row
        assert row.weights[0] == row.weights[1], row
        assert row.activations[0] == row.activations[1], row
    assert [row.ours for row in rows if row.scheme == f"chimera, {row.stages} pipelines"] == [0] * 4


@pytest.mark.slow
def test_llama_bubbles():
    rows = list(paper.llama_rows())
    for row in rows:
        assert row.ours == row.paper, row
    assert [round(float(100 * row.ours), 1) for row in rows[:2]] == [11.7, 5.9]


def test_gpipe_and_1f1b_bubbles_ignore_the_cost_ratio():
    for name in ("gpipe", "1f1b"):
        for costs in (Costs(), Costs(b=Fraction(1)), Costs(f=Fraction(1, 3), b=Fraction(17, 7))):
            assert time_schedule(make_schedule(name, 5, 1, 7, 1), costs).bubble_ratio == Fraction(4, 11)


def test_zb_h1_bubble_and_memory():
    """Idle (p-1)·(f + i - w), and never more in flight than 1F1B's first rank."""
    for p, costs, idle in ((4, Costs(), 3), (6, Costs(), 5), (4, Costs(w=Fraction(1, 2)), 6)):
        timing = time_schedule(make_schedule("zb_h1", p, 1, 3 * p, 1), costs)
        assert {timing.makespan - timing.busy(rank) for rank in range(p)} == {idle}


def test_the_documented_tables_are_the_commands():
    """docs/schedules.md holds what the command prints; here for p = 4 and Llama 3."""
    documented = (
        (Path(__file__).parents[2] / "docs" / "schedules.md").read_text(encoding="utf-8").splitlines()
    )
    rows = (
        paper.row(s, 4, m * 4) for m in (1, 2, 4) for s in PUBLISHED if m > 1 or s.concatenation == "direct"
    )
    for line in (*paper.table(rows), *paper.llama_table()):
        assert line in documented, line
