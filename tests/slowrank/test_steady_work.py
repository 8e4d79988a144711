"""A rank that is slow beside uneven data: kernels that follow no data are longer on it in every step."""

import numpy as np
import pytest

from tests.slowrank.events import Timeline, write_run
from tests.slowrank.jobs import LAYER_US, TRANSFER_US
from tracekit.analysis.slowrank.analyse import analyse

RANKS, STEPS = 6, 4


def documents(folder, *, factor=1.0, steps=range(STEPS), lone=0):
    """Attention follows documents that differ by half; six more kernels do not. Rank 2 is slower by `factor`.

    In `steps` alone, and where `lone` is given, in the first so many of the six kernels alone.
    """
    lines, random = [Timeline(r) for r in range(RANKS)], np.random.default_rng(3)
    for step in range(STEPS):
        begins = [line.at for line in lines]
        for line in lines:
            slow = factor if line.rank == 2 and step in steps else 1.0
            line.compute(
                4 * LAYER_US * random.uniform(0.6, 1.6) * (1.0 if lone else slow), "flash_fwd_kernel"
            )
            for number in range(6):
                longer = slow if not lone or number < lone else 1.0
                line.compute(LAYER_US / 2 * random.uniform(0.99, 1.01) * longer, f"fixed_{number}")
        handles = [line.post(0) for line in lines]
        end = max(h[0] for h in handles) + TRANSFER_US
        for line, handle, begin in zip(lines, handles, begins, strict=True):
            line.finish(handle, end)
            line.step(step, begin)
    return write_run(folder, lines, {0: tuple(range(RANKS))}, {0: "dp"}, RANKS)


def test_a_slow_rank_does_not_hide_behind_documents(tmp_path):
    finding = analyse(documents(tmp_path, factor=1.2))
    assert finding.verdict == "inconclusive"
    assert [c.rank for c in finding.candidates] == [2]
    assert "20% longer" in finding.reason
    assert finding.candidates[0].cause in {"gpu_compute", "unknown"}


@pytest.mark.parametrize("how", [{}, {"factor": 1.2, "steps": (1,)}, {"factor": 1.2, "lone": 1}])
def test_uneven_documents_alone_are_an_imbalance(tmp_path, how):
    """Nobody is slow; a rank is in one step alone; one kernel of six is longer."""
    finding = analyse(documents(tmp_path, **how))
    assert (finding.verdict, finding.candidates) == ("imbalance", ())
