"""A slow device shows in its compute, though loaders that jitter make its own time as long as anybody's."""

import pytest

from tests.slowrank.jobs import grid, job, prepared
from tracekit.analysis.slowrank.analyse import analyse

MESH = grid(tp=2, dp=4)
SHUFFLED = (5, 0, 7, 2, 4, 1, 6, 3)


def jitter(rank, step):
    """Each rank waits for its loader for 0.2 to 1.6 ms, in turns."""
    return 200.0 * (1 + SHUFFLED[(rank * 3 + step * 5) % 8])


@pytest.mark.quick(1)
@pytest.mark.parametrize("slow", [{5: 1.1}, {4: 1.1, 5: 1.1}])
def test_a_jittery_loader_hides_no_slow_device(tmp_path, slow):
    for name in ("slow", "quick"):
        (tmp_path / name).mkdir()
    found = analyse(job(tmp_path / "slow", MESH, slow=slow, idle=jitter, steps=4))
    quick = analyse(job(tmp_path / "quick", MESH, idle=jitter, steps=4))
    assert quick.verdict == "healthy"
    assert (found.verdict, {s.rank for s in found.suspects}) == ("slow_rank", set(slow))
    assert {s.cause for s in found.suspects} == {"gpu_compute"}
    assert found.what_if.without_suspects_ms == pytest.approx(quick.what_if.step_ms, rel=0.005)


def test_gaps_of_suspects_count_for_nothing(tmp_path):
    case = prepared(job(tmp_path, MESH, slow={5: 1.1}, idle=jitter, steps=4), MESH)
    row = case.steps.ranks.index(5)
    assert case.met.by_compute == (row,)
    assert case.found.mean[row] == pytest.approx(0.1 * 6 * 1e6, rel=0.05)


def test_shorter_gaps_may_hide_a_slow_device(tmp_path):
    """What its kernels take longer, the device stands still less in every step: nobody waits for it."""
    run = job(
        tmp_path, MESH, slow={5: 1.1}, idle=lambda rank, step: 800.0 - 600.0 * (rank == 5) + rank, steps=4
    )
    case = prepared(run, MESH)
    assert case.met.by_compute == ()
    assert analyse(run).verdict == "healthy"
