"""The decision is one list: each rule stands in it once, says what it looks for, and the last one always answers."""

import inspect

import pytest

from tests.slowrank.jobs import grid, job, prepared
from tests.slowrank.known import known
from tracekit.analysis.slowrank.decision import culprits, decide, no_culprit
from tracekit.analysis.slowrank.decision.decide import CHALLENGES, RULES


def test_each_rule_is_asked_once_and_none_is_forgotten():
    written = {
        function
        for module in (culprits, no_culprit)
        for name, function in inspect.getmembers(module, inspect.isfunction)
        if function.__module__ == module.__name__ and not name.startswith("_")
    }
    assert len(RULES) == len(set(RULES))
    assert set(RULES) == written


@pytest.mark.parametrize("asked", [*RULES, *CHALLENGES], ids=lambda asked: asked.__name__)
def test_each_rule_says_what_it_looks_for(asked):
    assert (asked.__doc__ or "").split("\n")[0].endswith((".", ":"))


def test_the_last_rule_always_answers(tmp_path):
    mesh = grid(tp=2, dp=4)
    case = prepared(job(tmp_path, mesh, slow={5: 1.4}), mesh)
    assert RULES[-1](known(case)).verdict == "healthy"


def test_an_answer_names_the_rule_that_gave_it(tmp_path):
    mesh = grid(tp=2, dp=4)
    case = prepared(job(tmp_path, mesh, slow={5: 1.4}), mesh)
    assert decide.concluded(case)[1].rules == ("slow_ranks_are_dearest",)


def test_the_decision_fits_on_a_screen():
    lines = sum(
        len(inspect.getsource(f).splitlines()) for f in (decide.concluded, decide.decide, decide.first_of)
    )
    assert lines <= 60
