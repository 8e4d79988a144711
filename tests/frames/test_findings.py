"""Findings as tables: the rows of the answer, the same columns where there are none, and nothing that a name can do."""

import dataclasses
import importlib.util
import re

import pytest

import tracekit
from tests.breakdown.runs import made, pair
from tracekit.findings import HangFinding, RankCoverage
from tracekit.findings.shared import Tabular
from tracekit.thresholds.report import CELL_CHARACTERS, NOTEBOOK_ROWS

HOSTILE = "<img src=x onerror=alert(1)>\x1b[2J"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return made(tmp_path_factory.mktemp("run"), pair())


@pytest.fixture(scope="module")
def breakdown(run):
    return run.breakdown()


def is_answer(kind):
    """Whether a class of findings is a whole answer."""
    return dataclasses.is_dataclass(kind) and {"ranks", "quality"} <= {
        f.name for f in dataclasses.fields(kind)
    }


class Named(Tabular):
    """A table of names."""

    def __init__(self, names):
        self.names = names

    def columns(self):
        return {"name": "string", "times": "double"}

    def rows(self):
        return [(name, None) for name in self.names]

    def headline(self):
        return HOSTILE


def test_every_finding_is_a_table():
    answers = [
        kind for kind in map(vars(tracekit.findings).get, tracekit.findings.__all__) if is_answer(kind)
    ]
    assert len(answers) == 4
    assert [kind for kind in [*answers, tracekit.PlacesFinding] if not issubclass(kind, Tabular)] == []


def test_parts_of_rows_add_up(breakdown):
    table = breakdown.to_arrow().to_pylist()
    assert len(table) == len(breakdown.cells)
    for row in table:
        parts = [ns for name, ns in row.items() if name.endswith("_ns") and name != "step_ns"]
        assert sum(parts) == row["step_ns"]
    assert {(row["rank"], row["tp"], row["pp"]) for row in table} == {(0, 0, 0), (1, 1, 0)}


def test_empty_answers_keep_their_columns(run):
    healthy = dataclasses.replace(run.slowrank(), suspects=(), candidates=())
    table = healthy.to_arrow()
    assert table.num_rows == 0
    assert table.schema.names[:4] == ["rank", "host", "tp", "cp"]
    assert str(table.schema.field("lost_ms_low").type) == "double"


def test_candidates_are_no_suspects(run):
    finding = run.slowrank()
    (suspect, *_) = finding.suspects or finding.candidates
    both = dataclasses.replace(finding, suspects=(suspect,), candidates=(suspect,))
    assert both.to_arrow()["role"].to_pylist() == ["suspect", "candidate"]


def test_hang_without_mesh_is_a_table():
    none = HangFinding(RankCoverage(2, 2), None, "none", "nobody waits", (), None, ())
    assert none.to_arrow().num_rows == 0
    assert "none: nobody waits" in none._repr_html_()


def test_names_stay_text_in_notebooks():
    shown = Named([HOSTILE, "x" * 10 * CELL_CHARACTERS])._repr_html_()
    assert set(re.findall(r"<\w+", shown)) == {"<div", "<p", "<table", "<tr", "<th", "<td"}
    assert "\x1b" not in shown
    assert len(shown) < 3 * CELL_CHARACTERS
    assert "None" not in shown


def test_notebooks_show_a_screen():
    shown = Named(["a"] * (NOTEBOOK_ROWS + 3))._repr_html_()
    assert shown.count("<td>a</td>") == NOTEBOOK_ROWS
    assert "… 3 more rows" in shown


def test_operations_are_those_of_the_run(run):
    table = run.operations()
    rows = [row for row in table.to_pylist() if row["rank"] == 0 and row["step"] == 1]
    assert [(row["axis"], row["op"], row["end_ns"] - row["start_ns"]) for row in rows] == [
        ("tp", "all_reduce", 200_000), ("tp", "all_reduce", 50_000),
    ]  # fmt: skip
    assert [(row["exposed_ns"], row["wait_ns"]) for row in rows] == [(200_000, 150_000), (50_000, 0)]
    first, second = ([row["instance"] for row in table.to_pylist() if row["rank"] == rank] for rank in (0, 1))
    assert first == second


def test_methods_are_the_functions(run, breakdown):
    assert breakdown == tracekit.breakdown(run)
    assert run.slowrank(steps=[(1, 3)]) == tracekit.slowrank(run, steps=[(1, 3)])
    assert run.whatif(["rank=1"]) == tracekit.whatif(run, ["rank=1"])


@pytest.mark.skipif(importlib.util.find_spec("pandas") is None, reason="needs pandas")
def test_pandas_has_the_same_rows(breakdown):
    frame = breakdown.to_pandas()
    table = breakdown.to_arrow().drop_columns(["host"])  # known of no rank here: None or NaN, as pandas likes
    assert frame.drop(columns="host").to_dict("list") == table.to_pydict()
