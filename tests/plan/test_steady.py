"""Long steps are measured by short ones, and no figure differs from the whole step's."""

import numpy as np
import pytest

from reftrain.cost.memory import MemoryModel
from reftrain.plan import projection
from reftrain.plan.steady import figures
from tests.plan.test_bounds import H100, job

SLOW = H100.with_constant("network.gb_s", 0.5).with_constant("efficiency.overlap", 0.3)
JOBS = [
    job("1f1b", 2, 1, 67, 2),
    job("flexible", 3, 2, 100, 1, dp=512),
    job("flexible", 2, 4, 41, 2),
    job("flexible", 1, 1, 37, 3, dp=64),
    job("afab", 2, 4, 40, 2),
]


@pytest.mark.quick(3)
@pytest.mark.parametrize("machine", [H100, SLOW], ids=["quick links", "slow links"])
@pytest.mark.parametrize(
    "one", JOBS, ids=lambda j: f"{j.schedule}-{j.mesh.pp}-{j.micro_batches}-{j.mesh.zero}"
)
def test_rounds_left_out_change_no_figure(one, machine, monkeypatch):
    short = projection.project(one, machine)
    monkeypatch.setattr(projection, "figures", lambda job, measure, _: np.array(measure(job)))
    whole = projection.project(one, machine)
    assert short.step_s == pytest.approx(whole.step_s, rel=1e-12)
    assert short.bubble == pytest.approx(whole.bubble, rel=1e-9)
    assert short.exposed == pytest.approx(whole.exposed, rel=1e-9, abs=1e-12)
    assert short.network_bytes == pytest.approx(whole.network_bytes)
    assert figures(one, lambda some: [MemoryModel(some).peak()]) == pytest.approx(MemoryModel(one).peak())


def test_a_long_step_is_never_laid_out():
    seen = []
    long = job("flexible", 4, 2, 4000, 1)
    figures(long, lambda some: [seen.append(some.micro_batches) or 2.0 * some.micro_batches])
    assert max(seen) <= 32
