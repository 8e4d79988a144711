"""The table of causes agrees with the contract, the analysis and the documentation."""

from importlib import import_module
from pathlib import Path
from typing import get_args

import pytest

from tests.contract.test_slowrank import CAUSES as CONTRACT
from tracekit.analysis.slowrank.hypotheses.excess_parts import ALWAYS
from tracekit.cause_entry import Comparison, Order, Quantity, causes_by_share
from tracekit.causes import CAUSES
from tracekit.findings import Cause
from tracekit.steps.features import Features

METHOD = Path(__file__).parents[2] / "docs" / "method.md"


def documented():
    """The table of docs/method.md, one line a cause."""
    lines = ["| cause | what decides it | what to do |", "|---|---|---|"]
    for entry in CAUSES.values():
        signs = "; or ".join(sign.says for sign in entry.signs) or "no sign holds"
        on_cpu = f"; on a CPU: {entry.next_on_cpu}" if entry.next_on_cpu else ""
        lines.append(f"| `{entry.name}`: {entry.meaning} | {signs} | {entry.next_step}{on_cpu} |")
    return "\n".join(lines) + "\n"


def test_table_type_and_contract_name_the_same_causes():
    assert set(CAUSES) == set(get_args(Cause)) == CONTRACT


def test_the_documentation_shows_the_table():
    assert documented() in METHOD.read_text(encoding="utf-8"), documented()


def test_a_cpu_gets_no_advice_about_ecc():
    assert "ECC" in CAUSES["gpu_compute"].step_on(gpu=True)
    assert not any("ECC" in entry.step_on(gpu=False) for entry in CAUSES.values())


def test_every_cause_has_advice_and_known_ones_have_signs():
    for entry in CAUSES.values():
        assert entry.next_step
        assert bool(entry.signs) == (entry.name != "unknown")


@pytest.mark.parametrize("entry", CAUSES.values(), ids=lambda e: e.name)
def test_signs_name_a_test_or_an_existing_function(entry):
    for sign in entry.signs:
        assert (sign.order == Order.VERDICT) == isinstance(sign.decides, str)
        if isinstance(sign.decides, str):
            module, function = sign.decides.split(":")
            assert callable(getattr(import_module(f"tracekit.{module}"), function))


def test_evidence_rows_show_measured_quantities():
    measured = set(Features.__dataclass_fields__) | {"longest_gap", "short", "quickest", "typical"}
    assert set(get_args(Quantity)) <= measured
    rows = [row for entry in CAUSES.values() for sign in entry.signs for row in sign.rows]
    assert {row.quantity for row in (*ALWAYS, *rows)} <= {*get_args(Quantity), None}


@pytest.mark.parametrize(
    ("compute", "pauses", "chance", "sure"),
    [
        (0.8, 0.2, 0.0, True),
        (0.79, 0.21, 0.0, False),
        (0.7, 0.2, 0.2, True),
        (0.7, 0.1, 0.1, False),
        (0.55, 0.1, 0.4, True),
        (0.55, 0.2, 0.4, False),  # 15 % are beyond chance, less than pauses may be
        (0.45, 0.1, 0.5, False),
        (1.0, 0.0, 1.0, False),  # all of it may be chance
    ],
)
def test_a_named_cause_exceeds_others_beyond_chance(compute, pauses, chance, sure):
    found = causes_by_share({"gpu_compute": compute, "host_stall": pauses}, "gpu_compute", chance)
    assert [share.sure for share in found if share.name == "gpu_compute"] == [sure]
    assert not any(share.sure for share in causes_by_share({"host_stall": 1.0}, "gpu_compute"))


@pytest.mark.parametrize("in_gaps", [0.1, 0.24, 0.26, 0.5])
def test_stops_outside_operators_are_pauses_as_well(in_gaps):
    peers = dict.fromkeys(get_args(Quantity), 0.0) | {
        "own": 900.0,
        "busy": 750.0,
        "gap": 150.0,
        "typical": 750.0,
    }
    mine = peers | {"own": 1100.0, "busy": 950.0 - 200 * in_gaps, "gap": 150.0 + 200 * in_gaps}
    stopped = Comparison(on_gpu=False, mine=mine, peers=peers, gaps=200 * in_gaps, pauses=200 * in_gaps)
    assert CAUSES["host_stall"].share(stopped.parts) == pytest.approx(1.0)
