"""Ranks that load data for others stand still by design: their peers in that are the ranks that load."""

import numpy as np
import pytest

from tests.slowrank.jobs import grid, job, prepared
from tracekit.analysis.slowrank import suspects
from tracekit.analysis.slowrank.analyse import analyse
from tracekit.expected.like_with_like import noise_of
from tracekit.step_graph.statistics import MAD_TO_SIGMA

MESH = grid(tp=4, pp=4)
LOADS = tuple(r for r in MESH.coordinates if MESH.coords(r)["tp"] == 0)


def loading(longer=0.0, ranks=LOADS):
    """Every rank of `ranks` loads for 400 µs in each step, and the first of them for `longer` more."""
    return lambda rank, step: (400 + (longer if rank == ranks[0] else 0)) * (rank in ranks)


@pytest.mark.parametrize("share", [0.01, 0.05, 0.4])
@pytest.mark.parametrize("mesh", [MESH, grid(tp=2, dp=3), grid(tp=2, dp=2)])
@pytest.mark.quick(1)
def test_one_loading_rank_a_group_is_design(tmp_path, mesh, share):
    """No rank of the role is slow, however long all of them take; what that costs is known."""
    busy = 3 * (1000 + 50) * sum(mesh.sizes[axis] > 1 for axis in mesh.order)
    longer = busy * share / (1 - share)
    found = analyse(job(tmp_path, mesh, idle=lambda r, step: longer * (mesh.coords(r)["tp"] == 0)))
    assert (found.verdict, found.suspects) == ("imbalance" if share > 0.02 else "healthy", ())
    if share > 0.02:
        cost = found.what_if.step_ms - found.what_if.without_suspects_ms
        assert cost == pytest.approx(longer / 1000, rel=0.1)
        assert "all ranks with tensor index 0" in found.reason


@pytest.mark.parametrize("mesh", [MESH, grid(tp=4, dp=4)])
@pytest.mark.quick(1)
def test_only_the_longest_loader_is_named(tmp_path, mesh):
    ranks = tuple(r for r in mesh.coordinates if mesh.coords(r)["tp"] == 0)
    found = analyse(job(tmp_path, mesh, idle=loading(500, ranks)))
    assert (found.verdict, [s.rank for s in found.suspects]) == ("slow_rank", [0])
    assert found.suspects[0].cause == "host_stall"
    assert found.suspects[0].lost_ms_per_step == pytest.approx(0.5, rel=0.1)


@pytest.mark.quick(1)
@pytest.mark.parametrize("slow", [0, 1])
def test_a_slow_device_beside_loading_is_named(tmp_path, slow):
    """In a stage of two ranks the one that loads would hide the other."""
    mesh = grid(tp=2, pp=4)
    ranks = tuple(r for r in mesh.coordinates if mesh.coords(r)["tp"] == 0)
    found = analyse(job(tmp_path, mesh, slow={slow: 1.1}, idle=loading(0, ranks)))
    assert [(s.rank, s.cause) for s in found.suspects] == [(slow, "gpu_compute")]


def test_one_rank_shows_no_role(tmp_path):
    case = prepared(job(tmp_path, MESH, idle=loading(0, (0,))), MESH)
    assert not len(case.met.of_role)
    assert [s.rank for s in analyse(case.run).suspects] == [0]


PARTS = [
    (grid(tp=2, dp=4), (2, 4, 6)),
    (grid(tp=2, pp=2, dp=2), (2, 4, 6)),
    (grid(tp=4, dp=2), (4,)),
]
"""A mesh, and the ranks without a trace: rank 0 is left of the role."""


@pytest.mark.quick(1)
@pytest.mark.parametrize(("mesh", "lost"), PARTS)
def test_one_recorded_rank_may_have_a_role(tmp_path, mesh, lost):
    ranks = tuple(r for r in mesh.coordinates if mesh.coords(r)["tp"] == 0)
    found = analyse(job(tmp_path, mesh, idle=loading(0, ranks), lost=lost))
    assert (found.verdict, [c.rank for c in found.candidates]) == ("inconclusive", [0])
    mates = [r for r in lost if mesh.coords(r)["pp"] == 0]
    assert "as a rank that loads data for its group" in found.reason
    assert list(found.to_record) == mates


@pytest.mark.quick(1)
@pytest.mark.parametrize(("mesh", "lost"), PARTS)
def test_waits_show_that_one_rank_loads_alone(tmp_path, mesh, lost):
    """Ranks of the other tensor groups do not wait for the one without a trace."""
    found = analyse(job(tmp_path, mesh, idle=loading(0, (0,)), lost=lost))
    assert (found.verdict, [s.rank for s in found.suspects]) == ("slow_rank", [0])


@pytest.mark.parametrize("loads", [(0, 4), (0,)])
def test_without_another_group_the_role_stays_open(tmp_path, loads):
    found = analyse(job(tmp_path, grid(tp=4, dp=2), idle=loading(0, loads), lost=(4, 5, 6, 7)))
    assert (found.verdict, [c.rank for c in found.candidates]) == ("inconclusive", [0])


def test_a_host_that_launches_slowly_has_no_role(tmp_path, monkeypatch):
    """Ranks that load pause at a few places; a host that launches slowly is late throughout."""
    monkeypatch.setattr(suspects, "pace_beside", lambda *_: (30.0, 10.0))
    found = analyse(job(tmp_path, grid(tp=4, dp=2), idle=loading(0, (0, 4)), lost=(4, 5, 6, 7)))
    assert (found.verdict, [s.rank for s in found.suspects]) == ("slow_rank", [0])


def test_a_slow_device_has_no_role(tmp_path):
    mesh, lost = PARTS[0]
    found = analyse(job(tmp_path, mesh, slow={0: 1.3}, lost=lost))
    assert [(s.rank, s.cause) for s in found.suspects] == [(0, "gpu_compute")]


def test_a_slow_device_goes_before_costly_loading(tmp_path):
    found = analyse(
        job(tmp_path, MESH, slow={1: 1.3}, idle=lambda rank, step: 1500.0 * (rank in LOADS), steps=4)
    )
    assert [(s.rank, s.cause) for s in found.suspects] == [(1, "gpu_compute")]
    assert any("load data for the others" in note for note in found.notes)


def test_both_ends_of_a_pipeline_load_by_design(tmp_path):
    """Neither of the two stages costs anything alone, and together they are no slow node."""
    mesh = grid(cp=2, pp=4)
    ends = {r for r in mesh.coordinates if mesh.coords(r)["pp"] in {0, 3}}
    found = analyse(job(tmp_path, mesh, idle=lambda rank, step: 400.0 * (rank in ends)))
    assert (found.verdict, found.suspects) == ("healthy", ())


def test_jitter_of_loading_ranks_is_their_own(tmp_path):
    """The others are quiet: against their noise alone every rank that loads would be apart."""
    mesh = grid(tp=4, dp=4)
    turns = (0, 160, 40, 200, 80, 120, 20)
    run = job(
        tmp_path, mesh, jitter=0.0005, steps=3,
        idle=lambda rank, step: (400.0 + turns[(rank + 3 * step) % 7]) * (rank % 4 == 0),
    )  # fmt: skip
    case = prepared(run, mesh)
    rows = case.met.of_role
    noise = noise_of(case.found.value[rows])
    assert noise > 5 * case.found.sigma
    most = np.abs(case.found.mean[rows] / (noise / np.sqrt(3)))
    assert (np.abs(case.found.z[rows]) <= most + 1e-9).all()


def test_noise_counts_no_row_its_own_level():
    value = np.array([[1.0, 2.0, 4.0], [0.0, 0.0, 3.0], [np.nan, 7.0, np.nan]])
    assert noise_of(value) == pytest.approx(MAD_TO_SIGMA * 1.5)
    assert noise_of(value[:, :1]) == 0.0
