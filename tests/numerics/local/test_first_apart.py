"""A first difference of more than roundings is no rounding, however right each piece of the run is by itself."""

import pytest

from tests.reports.asked import ask
from tests.reports.experts import Experts
from tests.reports.trained import run
from tests.reports.wrong import COMPARE


@pytest.mark.slow
def test_tokens_dropped_otherwise_are_no_rounding(tmp_path):
    """Each of three ranks drops the tokens beyond the room of its own batch; one process has room for all."""
    run(Experts(room=4), 3, tmp_path / "run")
    run(Experts(room=24), 1, tmp_path / "baseline")
    found = ask((*COMPARE, "--model", "tests/reports/experts.py:built_small"), tmp_path)
    assert found.verdict == "undecided"
    assert "routed.out in step 0 differs from the baseline's by 0." in found.text
    assert "nothing before it differs" in found.text
