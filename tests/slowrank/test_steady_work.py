"""A rank that is slow beside uneven data: kernels that follow no data are longer on it in every step."""

import numpy as np
import pytest

from tests.slowrank.events import Timeline, write_run
from tests.slowrank.jobs import LAYER_US, TRANSFER_US
from tracekit.analysis.slowrank.analyse import analyse

RANKS, STEPS = 6, 4


def documents(folder, *, factor=1.0, steps=range(STEPS), lone=0, count=STEPS):
    """Attention follows documents that differ by half; six more kernels do not. Rank 2 is slower by `factor`.

    In `steps` alone, and where `lone` is given, in the first so many of the six kernels alone.
    """
    lines, random = [Timeline(r) for r in range(RANKS)], np.random.default_rng(3)
    for step in range(count):
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
@pytest.mark.quick(1)
def test_uneven_documents_alone_are_an_imbalance(tmp_path, how):
    """Nobody is slow; a rank is in one step alone; one kernel of six is longer."""
    finding = analyse(documents(tmp_path, **how))
    assert (finding.verdict, finding.candidates) == ("imbalance", ())


def experts(folder, *, tokens, factor=1.0, exchanged=True):
    """A job whose experts got `tokens` (by rank, 1 is an even share) in every step; rank 2 is slower by `factor`."""
    lines, random = [Timeline(r) for r in range(RANKS)], np.random.default_rng(5)
    for step in range(STEPS):
        begins = [line.at for line in lines]
        for op in ("all_to_all" if exchanged else "all_reduce", "all_reduce"):
            for line in lines:
                slow = factor if line.rank == 2 else 1.0
                for number in range(6):
                    line.compute(LAYER_US / 2 * random.uniform(0.998, 1.002) * slow, f"fixed_{number}")
                if op == "all_reduce":
                    line.compute(3 * LAYER_US * tokens[line.rank] * slow, "expert_gemm")
            handles = [line.post(0, op) for line in lines]
            end = max(h[0] for h in handles) + TRANSFER_US
            for line, handle in zip(lines, handles, strict=True):
                line.finish(handle, end)
        for line, begin in zip(lines, begins, strict=True):
            line.step(step, begin)
    return write_run(folder, lines, {0: tuple(range(RANKS))}, {0: "dp"}, RANKS)


UNEVEN = (0.75, 1.1, 1.22, 0.9, 0.95, 1.05)


@pytest.mark.parametrize(
    ("how", "verdict"),
    [
        ({"tokens": UNEVEN}, "imbalance"),
        ({"tokens": UNEVEN, "factor": 1.1}, "slow_rank"),
        ({"tokens": UNEVEN, "exchanged": False}, "slow_rank"),
        ({"tokens": (1.0, 1.1, 1.3, 0.9, 0.95, 1.05)}, "slow_rank"),
    ],
)
@pytest.mark.quick(1)
def test_experts_with_more_tokens_are_no_slow_ranks(tmp_path, how, verdict):
    """One has more tokens; it is slow besides; no tokens are exchanged; no other rank is as far from the usual."""
    finding = analyse(experts(tmp_path, **how))
    assert finding.verdict == verdict
    assert [s.rank for s in finding.suspects][:1] == ([] if verdict == "imbalance" else [2])
