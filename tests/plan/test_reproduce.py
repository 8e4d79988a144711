"""`reftrain reproduce`: every figure says why it differs, and the pages show what the command computes."""

import re
import sys

import pytest
from tracekit_cli.reftrain import main

from reftrain.cost.hardware import load_hardware
from reftrain.papers.figure import Line
from reftrain.papers.registry import FIGURES, MISSING
from tests.house.source import ROOT

SLOW = ("documents", "chimera-bert", "chimera-gpt", "chimera-asynchronous", "meshes")
SHOWN = ("encoder",)
"""Figures that a page shows whole, so that the tests of pages compute them each time."""
UNEXPLAINED = 0.1
"""A larger deviation is beyond the error that the projection is held to."""


def lines_of(name: str) -> list[Line]:
    return list(FIGURES[name].lines(load_hardware(FIGURES[name].machine)))


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name in SLOW + SHOWN else ()) for name in FIGURES]
)
def test_what_deviates_says_why(name):
    lines = lines_of(name)
    assert lines
    for line in lines:
        if line.deviation is not None and abs(line.deviation) > UNEXPLAINED:
            assert line.why, line


def test_a_bound_that_holds_is_no_deviation():
    assert Line("", "", 2.0, 3.0, bound="≥").deviation == 0.0
    assert Line("", "", 2.0, 1.0, bound="≥").deviation == -0.5
    assert Line("", "", None, 1.0).deviation is None
    assert Line("", "", 0.0, 1.0).deviation is None


def test_one_reading_gives_both_figures_of_balance():
    found = {line.what: line.ours for line in lines_of("figure10")}
    assert found["fullest rank, balanced less even"] == pytest.approx(-5.0, abs=0.3)
    assert found["TFLOP/s, balanced over even"] == pytest.approx(6.5, abs=0.3)
    assert found["fullest rank with dp 4, m = 12"] == pytest.approx(-2.6, abs=0.1)


@pytest.mark.parametrize("name", ["figure99", MISSING[0].name])
def test_an_unknown_figure_lists_the_known(name, monkeypatch, capfd):
    monkeypatch.setattr(sys, "argv", ["reftrain", "reproduce", name])
    with pytest.raises(SystemExit) as ended:
        main()
    said = capfd.readouterr().err
    assert ended.value.code == 2
    assert "choose runs, figure9" in said
    assert said.count("\n") == 1


@pytest.mark.slow
@pytest.mark.parametrize("name", SLOW)
def test_tables_of_slow_figures_are_the_commands(name):
    page = (ROOT / "docs" / "planning.md").read_text()
    shown = set(re.findall(r"\| ([0-9.]+) \| ([0-9.]+) \| [+−]", page))
    for line in lines_of(name):
        if line.published is not None:
            assert (f"{line.published:g}", f"{line.ours:.4g}") in shown, line
