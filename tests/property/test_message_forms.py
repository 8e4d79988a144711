"""Whichever torch wrote the messages, the same job has the same verdict, culprit and price."""

from dataclasses import replace
from functools import cache

import pytest

from tests.accuracy.score import answer_case, judge
from tests.generator import Case, generate
from tests.generator.forms import FORMS
from tests.generator.mesh import Mesh
from tests.marks import quick_first, quick_nth

PIPES = (
    Mesh(("tp", "cp", "pp", "dp"), {"tp": 1, "cp": 1, "pp": 4, "dp": 2}),
    Mesh(("tp", "cp", "pp", "dp"), {"tp": 2, "cp": 1, "pp": 4, "dp": 1}),
)
CASES = ((2, "slow_compute", "blocking"), (1, "healthy", "blocking"), (5, "launch_bound", "async"))
PRICE = 0.05  # relative: what forms may differ by


@cache
def job(seed: int, kind: str, p2p: str) -> Case:
    """A small pipeline with all files whole."""
    mesh = PIPES[seed % 2]
    return generate(seed, kind=kind, mesh=mesh, p2p=p2p, steps=4, missing=set(), truncated={})


@cache
def answered(seed: int, kind: str, p2p: str, form: str):
    """The answer to the job written in `form`."""
    case = job(seed, kind, p2p)
    return answer_case(replace(case, capture=replace(case.capture, form=form)))


@pytest.mark.parametrize(
    "form", quick_nth(8, [f for f, form in FORMS.items() if f != "plain" and form.keys is None])
)
@pytest.mark.parametrize(("seed", "kind", "p2p"), quick_first(1, CASES))
@pytest.mark.quick(1)
def test_a_form_changes_no_answer(seed, kind, p2p, form):
    case = seed, kind, p2p
    plain, told = answered(*case, "plain"), answered(*case, form)
    assert judge(job(*case).truth, plain) == "right"
    assert (told.verdict, [s.rank for s in told.suspects]) == (
        plain.verdict,
        [s.rank for s in plain.suspects],
    )
    assert told.what_if.slowdown == pytest.approx(plain.what_if.slowdown, rel=PRICE)
