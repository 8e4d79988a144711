"""Samples without their records of calls are what stock torch leaves of Gloo: the culprit stays, or it is open."""

import json
from pathlib import Path
from random import Random

import pytest

from tests.marks import quick_first
from tests.property.reach import asked, read
from tests.property.taken_away import TAKEN

SAMPLES = Path(__file__).parents[2] / "sample_traces"


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", quick_first(1, ("demo_slow_tp", "slow_compute", "healthy", "data_imbalance"))
)
def test_stock_gloo_names_nobody_else(name):
    sample = SAMPLES / name
    expected = json.loads((sample / "expected.json").read_text())
    verdict, named = asked(TAKEN["records of calls"](read(sample / "trace"), Random(1)))
    assert verdict in {expected["verdict"], "inconclusive"}
    assert verdict == "imbalance" or set(named) <= {
        s["rank"] for s in expected["suspects"]
    }  # a stage is no culprit
