"""The decision is one list of rules and one of gaps: each is in it once, and says what it looks for."""

import importlib
import inspect
import pkgutil
import sys

import pytest

from tests.slowrank.jobs import grid, job, prepared
from tests.slowrank.known import known
from tracekit.analysis.slowrank import answers
from tracekit.analysis.slowrank.decision import decide
from tracekit.analysis.slowrank.decision.decide import CHALLENGES, RULES
from tracekit.analysis.slowrank.decision.gaps import GAPS, widest_first

ROOMS = tuple(f"tracekit.analysis.slowrank.{room}." for room in ("answers", "decision"))
ASKED = (*RULES, *GAPS)


def signature(function):
    return inspect.signature(function).parameters


def test_each_rule_is_asked_once_and_none_is_forgotten():
    for module in pkgutil.iter_modules(answers.__path__, f"{answers.__name__}."):
        importlib.import_module(module.name)
    written = {
        function
        for name, module in sys.modules.items()
        if name.startswith(ROOMS)
        for called, function in vars(module).items()
        if inspect.isfunction(function)
        and not called.startswith("_")
        and function.__module__ == name
        and list(signature(function)) == ["e"]
    }
    assert len(ASKED) == len(set(ASKED))
    assert set(ASKED) == written - {widest_first}


@pytest.mark.parametrize("asked", [*ASKED, *CHALLENGES], ids=lambda asked: asked.__name__)
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
