"""Real hangs of the trainer leave every channel; any subset of these names the planted rank or stays open.

One such run is asked by default in tests.hang.test_real_hangs, which makes it anyway.
"""

import pytest

from tests.evidence.real_channels import RUNS, recorded
from tests.ranks.patience import patience

OPEN = [("wrong_size", "tp", 3, "tp=2,pp=2")]
"""Of two ranks that differ, and have no peers on their stage, nothing shows which is wrong."""


@pytest.mark.slow
@pytest.mark.parametrize("run", RUNS, ids=lambda run: "-".join(map(str, run)))
def test_any_subset_of_real_channels(ranks, tmp_path, run):
    outcomes = recorded(ranks, tmp_path / "run", run, patience(2)).outcomes()
    assert outcomes["wrong"] == 0
    assert outcomes["right"] > 0 or run[0] == "skip_collective" or run in OPEN
