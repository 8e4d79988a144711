"""A device that is slow throughout one of few recorded steps is named; what fills no step is not."""

import pytest

from tests.slowrank.events import Timeline, write_run
from tests.slowrank.jobs import grid, job, prepared
from tests.slowrank.test_by_compute import jitter
from tracekit.analysis.slowrank.analyse import analyse

MESH = grid(tp=2, dp=4)


@pytest.mark.parametrize("steps", [2, 3])
@pytest.mark.quick(1)
def test_a_device_slow_throughout_a_step_is_named(tmp_path, steps):
    found = analyse(job(tmp_path, MESH, slow={5: 1.3}, slow_steps={1}, steps=steps, layers=6))
    assert (found.verdict, found.cause) == ("slow_rank", "gpu_compute")
    assert [(s.rank, s.steps) for s in found.suspects] == [(5, (1,))]
    assert found.suspects[0].lost_ms_per_step == pytest.approx(12 * 0.3 / steps, rel=0.1)
    assert f"the only such step of {steps} recorded" in found.reason


@pytest.mark.parametrize("slow", [1.3, 1.0])
def test_gaps_hide_no_device_slow_throughout_a_step(tmp_path, slow):
    """Hosts that stop by chance make own times vary by more than the device is slow; its kernels do not."""
    run = job(tmp_path, MESH, slow={5: slow}, slow_steps={1}, idle=jitter, steps=3, layers=6)
    found = analyse(run)
    case = prepared(run, MESH)
    assert case.found.throughout == ({5} if slow > 1 else set())
    assert {s.rank for s in found.suspects} == case.found.throughout


def reduced_once(folder, *, slow=(), factor=1.0, ranks=8):
    """One step of ten kernels and one all-reduce; the kernels of `slow` take `factor` times as long."""
    lines = [Timeline(rank) for rank in range(ranks)]
    for line in lines:
        for kernel in range(10):
            noise = 1 + 0.002 * ((line.rank * 7 + kernel * 3) % 11 / 5 - 1)
            line.compute(1000 * noise * (factor if line.rank in slow else 1))
    handles = {line.rank: line.post(0) for line in lines}
    end = max(line.at for line in lines) + 50
    for line in lines:
        line.finish(handles[line.rank], end)
        line.step(0, 0)
    return write_run(folder, lines, {0: tuple(range(ranks))}, {0: "mesh_dp"}, ranks)


def test_a_device_slow_throughout_the_only_step_is_named(tmp_path):
    found = analyse(reduced_once(tmp_path, slow={3}, factor=1.1))
    assert (found.verdict, [s.rank for s in found.suspects]) == ("slow_rank", [3])
    assert found.suspects[0].lost_ms_per_step == pytest.approx(1.0, rel=0.1)


def test_one_long_kernel_leaves_it_open(tmp_path):
    found = analyse(job(tmp_path, MESH, accident=(5, 1, 4000.0), steps=3, layers=6))
    assert (found.verdict, [c.rank for c in found.candidates]) == ("inconclusive", [5])


def test_a_long_batch_is_no_slow_device(tmp_path):
    """Both ranks that work on the same data are longer, in the same step."""
    both = dict.fromkeys(MESH.line(5, ["tp"]), 1.3)
    case = prepared(job(tmp_path, MESH, slow=both, slow_steps={1}, steps=3, layers=6), MESH)
    assert not case.found.throughout
    assert analyse(case.run).suspects == ()
