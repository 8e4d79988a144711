"""Cells of the confusion matrix are answered with their cause, and their tables count what they should."""

import pytest

from tests.causes.cell import COSTS, HEALTHY, KINDS, PAIRS, Cell, judged, row_of
from tests.causes.report import confusion, inside, named, pairs, summary
from tests.marks import quick_first

SLOW = {
    "kinds": ("slow_compute",),
    "severity": 0.1,
    "ranks": [3],
    "verdict": "slow_rank",
    "cause": "gpu_compute",
    "suspects": [[3, "gpu_compute", 10.0, 9.0, 11.0]],
    "step_ms": 110.0,
    "gains_ms": [10.5],
    "promised_ms": 10.0,
}
RAIL = {"kinds": ("slow_rail",), "verdict": "slow_link", "cause": "network"}


@pytest.mark.parametrize(
    ("changes", "worth"),
    [
        ({}, "right"),
        ({"suspects": [[4, "gpu_compute", 10.0, 9.0, 11.0]]}, "wrong rank"),
        ({"cause": "host_stall"}, "wrong cause"),
        ({"cause": "unknown"}, "open"),
        ({"verdict": "inconclusive", "cause": None, "suspects": []}, "open"),
        ({"verdict": "healthy", "cause": None, "suspects": []}, "missed"),
        ({"verdict": "imbalance", "cause": "stage_imbalance", "kinds": ("long_stage",)}, "right"),
        ({"kinds": ("pauses", "slow_compute"), "ranks": [1, 3]}, "right"),
        ({"kinds": ("pauses", "slow_compute"), "ranks": [3, 1]}, "wrong rank"),
        (RAIL | {"suspects": [[1, "network", 9.0, 8.0, 10.0], [5, "network", 9.0, 8.0, 10.0]]}, "right"),
        (RAIL | {"suspects": [[2, "network", 9.0, 8.0, 10.0]]}, "wrong rank"),
        (RAIL | {"kinds": ("slow_switch",), "suspects": [[2, "network", 9.0, 8.0, 10.0]]}, "right"),
        ({"kinds": (), "ranks": []}, "false alarm"),
        ({"kinds": (), "ranks": [], "verdict": "healthy", "cause": None}, "right"),
    ],
)
def test_each_answer_has_its_worth(changes, worth):
    assert judged({**SLOW, **changes}) == worth


def test_tables_count_wrong_ranks_and_unnamed_faults():
    wrong = {**SLOW, "suspects": [[4, "gpu_compute", 10.0, 9.0, 11.0]], "worth": "wrong rank"}
    two = {
        **SLOW,
        "kinds": ("slow_compute", "pauses"),
        "ranks": [3, 1],
        "gains_ms": [10.5, 6.0],
        "worth": "right",
    }
    rows = [{**SLOW, "worth": "right"}, wrong, two]
    first = next(line for line in confusion(rows).splitlines() if "slow_compute" in line)
    assert first.split(" | ")[2] == "2"
    assert first.endswith(" 1 |")
    assert named(two) == [True, False]
    assert pairs(rows).endswith("| 1 of 2 |")
    assert inside(rows[0]) is True
    assert "one fault: 50.0% right of 2 cells" in summary(rows)


CELLS = [
    *(Cell((kind,), 0.1, 1, layers=2) for kind in ("pauses", "slow_link", "late_data")),
    *(Cell((kind,), 0.1, 0) for kind in KINDS),
    Cell(("slow_compute",), 0.05, 0),
    *(Cell((), 0.0, seed) for seed in range(len(HEALTHY))),
]


@pytest.mark.quick(2)
@pytest.mark.parametrize("cell", quick_first(3, CELLS))
def test_a_planted_cause_is_named(cell):
    row = row_of(cell)
    assert row["worth"] == "right", row


@pytest.mark.slow
def test_faults_that_hide_each_other_are_both_named():
    row = row_of(Cell(("slow_compute", "slow_link"), 0.2, 1, layers=2))
    assert max(row["gains_ms"]) < COSTS * row["step_ms"]
    assert (row["worth"], named(row)) == ("right", [True, True]), row


@pytest.mark.slow
@pytest.mark.parametrize("kinds", PAIRS)
def test_two_faults_are_named_with_the_first(kinds):
    row = row_of(Cell(kinds, 0.2, 0))
    assert row["worth"] == "right", row
