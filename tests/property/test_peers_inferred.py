"""Where no form tells the peers of messages, their common ends do: the same culprit, or it is open; never another."""

from dataclasses import replace

import pytest

from tests.accuracy.score import answer_case, judge
from tests.generator import generate
from tests.generator.forms import PEERLESS
from tests.marks import quick_first

SEEDS = (302, 319, 323, 310, 316, 400)
CASES = [(seed, form) for seed in SEEDS for form in PEERLESS]
PRICE = 0.05  # relative: what inferred peers may cost of a price


@pytest.mark.parametrize(("seed", "form"), quick_first(2, CASES))
@pytest.mark.quick(1)
def test_the_same_culprit_or_an_open_answer(seed, form):
    case = generate(seed, kind="slow_compute", world=8)
    assert case.job.mesh.sizes["pp"] > 1
    told = answer_case(case)
    untold = answer_case(replace(case, capture=replace(case.capture, form=form)))
    assert untold.verdict != "healthy"
    if untold.verdict != "inconclusive":
        assert judge(case.truth, untold) == judge(case.truth, told)
        assert untold.what_if.slowdown == pytest.approx(told.what_if.slowdown, rel=PRICE)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("seed", "form"), quick_first(2, [(600, PEERLESS[0]), (601, PEERLESS[1]), (605, PEERLESS[4])])
)
def test_healthy_jobs_blame_nobody(seed, form):
    case = generate(seed, kind="healthy", world=8)
    untold = answer_case(replace(case, capture=replace(case.capture, form=form)))
    assert not untold.suspects
