"""The table of causes agrees with the contract, the analysis and the documentation."""

from importlib import import_module
from pathlib import Path
from typing import get_args

import pytest

from tests.contract.test_slowrank import CAUSES as CONTRACT
from tracekit.cause_entry import Order, Quantity
from tracekit.causes import ALWAYS, CAUSES
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
