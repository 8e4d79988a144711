"""A host that pauses in every step shows in the time without compute, though uneven data makes any rank the longest."""

import numpy as np
import pytest

from tests.slowrank.jobs import grid, job, prepared
from tracekit.analysis.slowrank.analyse import analyse
from tracekit.analysis.slowrank.suspects import explain_rank

MESH, STEPS = grid(dp=8), 4
FACTOR = np.random.default_rng(7).uniform(0.6, 1.6, (8, STEPS))


def uneven(rank, step):
    """Compute of each rank in each step, as documents of unlike lengths make it."""
    return float(FACTOR[rank, step])


def pausing(late):
    """Each rank idles for 20 µs, rank 6 for `late` µs longer."""
    return lambda rank, step: 20.0 + late * (rank == 6)


def test_uneven_data_does_not_hide_a_host_that_pauses(tmp_path):
    (tmp_path / "slow").mkdir()
    (tmp_path / "quick").mkdir()
    run = job(tmp_path / "slow", MESH, slower=uneven, idle=pausing(600.0), steps=STEPS)
    case = prepared(run, MESH)
    assert (case.met.by_idle, case.met.by_compute) == ((case.steps.row(6),), ())
    assert case.found.mean[case.steps.row(6)] == pytest.approx(0.6e6, rel=0.02)
    slow = analyse(run)
    quick = analyse(job(tmp_path / "quick", MESH, slower=uneven, idle=pausing(0.0), steps=STEPS))
    assert quick.suspects == ()
    assert (slow.verdict, [s.rank for s in slow.suspects]) == ("slow_rank", [6])
    assert slow.suspects[0].cause in {"host_stall", "dataloader", "cpu_launch"}
    gained = slow.what_if.step_ms - quick.what_if.step_ms
    assert slow.suspects[0].lost_ms_low <= gained <= slow.suspects[0].lost_ms_high


def test_less_work_is_no_pause(tmp_path):
    """A host that launches at one pace idles its device for longer where kernels are shorter, in every step."""
    run = job(tmp_path, MESH, slow={6: 0.8}, idle=lambda rank, step: 20.0 + 600.0 * (rank == 6), steps=STEPS)
    assert prepared(run, MESH).met.by_idle == ()
    assert analyse(run).suspects == ()


def test_pauses_beside_less_work_have_their_cause(tmp_path):
    """The documents of the rank that pauses are shorter by chance, so that it works less than its peers."""
    run = job(
        tmp_path,
        MESH,
        slower=lambda r, s: uneven(r, s) * (0.7 if r == 6 else 1.0),
        idle=pausing(600.0),
        steps=STEPS,
    )
    case = prepared(run, MESH)
    row = case.steps.row(6)
    assert case.met.by_idle == (row,)
    assert explain_rank(case, row, (row,)).cause == "host_stall"
