"""Transfers that last longer in most groups than in a few are waits for somebody outside of them."""

from dataclasses import replace

import numpy as np
import pytest

from tests.slowrank.jobs import TRANSFER_US, grid, job, prepared
from tracekit.analysis.slowrank.decision.no_culprit import nearly_costly, usually_slow_ns

MESH = grid(tp=2, dp=4)
PAIRS = [(0, 1), (2, 3), (4, 5), (6, 7)]
LAYERS = 3


@pytest.mark.parametrize(
    ("slow", "usual"), [(PAIRS[1:], True), (PAIRS[:1], False), ((), False), (PAIRS, False)]
)
def test_most_groups_wait_for_somebody_else(tmp_path, slow, usual):
    case = prepared(job(tmp_path, MESH, link=dict.fromkeys(slow, 10.0), jitter=0), MESH)
    told = usually_slow_ns(case)
    assert told == pytest.approx(9 * TRANSFER_US * 1000 * LAYERS if usual else 0.0, rel=0.05)


def test_a_significant_rank_is_no_slack_then(tmp_path):
    case = prepared(job(tmp_path, MESH, link=dict.fromkeys(PAIRS[1:], 10.0), jitter=0), MESH)
    mean, z = np.zeros(8), np.zeros(8)
    mean[0], z[0] = 0.2 * case.step_ns, 100.0
    case = replace(case, found=replace(case.found, mean=mean, z=z))
    near = nearly_costly(case)
    assert near is not None
    assert "transfers of most groups" in near.why
    assert "names its members" in near.decide
