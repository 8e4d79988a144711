"""The ranks that are quickest together show what is usual, however many others are slow."""

from dataclasses import replace

import numpy as np
import pytest

from tests.slowrank.hosts import host_bound
from tests.slowrank.jobs import grid, job, prepared
from tests.slowrank.turns import delayed
from tracekit.analysis.slowrank.analyse import analyse
from tracekit.analysis.slowrank.hypotheses.candidates import _as_one
from tracekit.analysis.slowrank.hypotheses.suspect_work import late_loaders
from tracekit.expected.equal_work import peers_of_work
from tracekit.steps import features
from tracekit.steps.features import most_loading_ns, within_spans_ns

MESHES = [grid(dp=8), grid(tp=2, dp=4), grid(tp=4, dp=2)]


def calm(tmp_path, mesh):
    (tmp_path / "calm").mkdir()
    return analyse(job(tmp_path / "calm", mesh)).what_if.step_ms


@pytest.mark.quick(2)
@pytest.mark.parametrize("mesh", MESHES, ids=["dp", "tp2", "tp4"])
@pytest.mark.parametrize("slow", [3, 4, 5, 6])
def test_slow_devices_are_named_however_many(tmp_path, mesh, slow):
    usual = calm(tmp_path, mesh)
    found = analyse(job(tmp_path, mesh, slow=dict.fromkeys(range(slow), 1.3)))
    assert (found.verdict, found.cause) == ("slow_rank", "gpu_compute")
    assert sorted(s.rank for s in found.suspects) == list(range(slow))
    assert found.what_if.without_suspects_ms == pytest.approx(usual, rel=0.02)


@pytest.mark.slow
def test_most_of_a_stage_are_no_long_stage(tmp_path):
    found = analyse(job(tmp_path, grid(pp=2, dp=8), slow=dict.fromkeys((1, 3, 5, 7, 9), 1.3)))
    assert (found.verdict, sorted(s.rank for s in found.suspects)) == ("slow_rank", [1, 3, 5, 7, 9])


@pytest.mark.quick(2)
@pytest.mark.parametrize("slow", [2, 5, 6])
def test_slow_hosts_are_named_however_many(tmp_path, slow):
    run, step_ms = host_bound(tmp_path, pace=lambda rank: 3.0 if rank < slow else 1.0)
    found = analyse(run)
    assert (found.verdict, found.cause) == ("slow_rank", "cpu_launch")
    assert {s.rank for s in found.suspects} <= set(range(slow))
    assert found.what_if.without_suspects_ms < 0.5 * step_ms


@pytest.mark.quick(2)
@pytest.mark.parametrize("slow", [3, 5, 6])
def test_late_loaders_are_named_however_many(tmp_path, slow):
    run, _ = delayed(tmp_path, 8, dict.fromkeys(range(6), range(slow)), "loader")
    found = analyse(run)
    assert (found.verdict, found.cause) == ("slow_rank", "dataloader")
    assert sorted(s.rank for s in found.suspects) == list(range(slow))


def test_no_rank_loads_longer_than_its_device_idles(tmp_path):
    run, _ = delayed(tmp_path, 8, dict.fromkeys(range(6), range(3)), "loader")
    case = prepared(run, grid(dp=8))
    most = [most_loading_ns(case.ops, case.steps, rank) for rank in case.steps.ranks]
    loaded = [within_spans_ns(case.run, case.ops, case.steps, rank) for rank in case.steps.ranks]
    assert max(loaded) > 0
    assert all(some <= bound for some, bound in zip(loaded, most, strict=True))


def test_loading_of_longer_computing_devices_is_not_read(tmp_path, monkeypatch):
    mesh = grid(pp=2, dp=4)
    slow = [rank for rank in mesh.coordinates if mesh.stage(rank) == 1]
    case = prepared(job(tmp_path, mesh, slow=dict.fromkeys(slow, 1.5)), mesh)
    monkeypatch.setattr(features, "within_spans_ns", None)
    assert late_loaders(case, case.stages[1].tolist()) == ()


def test_a_slower_rank_beside_most_is_named_first(tmp_path):
    found = analyse(job(tmp_path, grid(dp=8), slow=dict.fromkeys(range(5), 1.2) | {7: 1.5}))
    assert found.verdict == "slow_rank"
    assert found.suspects[0].rank == 7
    assert {s.rank for s in found.suspects} <= {0, 1, 2, 3, 4, 7}


@pytest.mark.quick(2)
@pytest.mark.parametrize(
    ("mesh", "few"), [(MESHES[0], 1), (MESHES[1], 1), (MESHES[2], 3), (grid(dp=4), 1), (MESHES[0], 4)]
)
def test_more_work_than_few_ranks_have_is_an_imbalance(tmp_path, mesh, few):
    """Even work saves the share of the difference that the few ranks can take."""
    quick = range(mesh.world_size - few, mesh.world_size)
    usual = calm(tmp_path, mesh)
    found = analyse(job(tmp_path, mesh, work=dict.fromkeys(quick, 0.8)))
    assert (found.verdict, found.cause, found.candidates) == ("imbalance", "data_imbalance", ())
    assert {s.rank for s in found.suspects} == set(range(mesh.world_size)) - set(quick)
    assert {(s.cause, s.confidence) for s in found.suspects} == {("gpu_compute", 0.999)}
    worked = np.median([row.value for s in found.suspects for row in s.evidence[:1]])
    saved = 0.2 * worked * few / mesh.world_size
    assert usual - found.what_if.without_suspects_ms == pytest.approx(saved, rel=0.15)


def test_a_slow_rank_with_less_work_is_named(tmp_path):
    """Its work takes as long as the others' larger work."""
    found = analyse(
        job(tmp_path, grid(pp=2, dp=8), work=dict.fromkeys(range(4), 0.8), slow={2: 1.25, 9: 1.3})
    )
    assert (found.verdict, found.suspects[0].rank) == ("slow_rank", 9)
    assert {s.rank for s in found.suspects} <= {2, 9}


@pytest.mark.quick(2)
@pytest.mark.parametrize(("quick", "factor"), [(range(1, 2), 0.8), (range(3), 0.8), (range(4), 0.7)])
@pytest.mark.parametrize("made", ["slow", "work"])
def test_without_sizes_of_kernels_both_readings_are_open(tmp_path, quick, factor, made):
    run = job(tmp_path, grid(dp=8), **{made: dict.fromkeys(quick, factor)}, grids=False)
    found = analyse(run)
    assert (found.verdict, found.suspects) == ("inconclusive", ())
    assert "less to do, or all the others are slow" in found.reason
    assert {c.rank for c in found.candidates} <= set(range(8)) - set(quick)
    assert "grids" in found.to_decide


def test_slow_ranks_of_two_stages_stay_open_without_sizes(tmp_path):
    """Half of one stage and three ranks of the other are late together: none of them costs anything alone."""
    found = analyse(job(tmp_path, grid(pp=2, dp=8), slow=dict.fromkeys(range(7), 1.2), grids=False))
    assert (found.verdict, {c.rank for c in found.candidates}) == ("inconclusive", {0, 2, 4, 6})


@pytest.mark.parametrize(("late", "apart"), [(1.5, False), (-0.5, True)])
def test_late_ranks_that_compute_faster_are_not_quick(tmp_path, late, apart):
    """Two ranks compute 1 ms less beside less communication; own times vary too much for two levels."""
    case = prepared(job(tmp_path, MESHES[0]), MESHES[0])
    turns = np.random.default_rng(7).normal(0, 1e6, case.steps.own.shape)
    quick = np.arange(8)[:, None] < 2
    own = 40e6 + turns - turns.mean(axis=1, keepdims=True) + np.where(quick, late * 1e6, 0.0)
    case = replace(case, steps=replace(case.steps, own=own))
    vars(case)["computed"] = 30e6 + 1e3 * turns / 1e6 - np.where(quick, 1e6, 0.0)
    found = peers_of_work(case, lambda _: "", of_table=False)
    assert [of.rows.tolist() for of in found.quick] == ([[0, 1]] if apart else [])


@pytest.mark.parametrize("grids", [True, False])
def test_the_quick_rank_of_a_stage_is_not_named(tmp_path, grids):
    """Without sizes of kernels other stages show that three of four take longer for the same kernels."""
    found = analyse(job(tmp_path, grid(pp=2, dp=4), slow=dict.fromkeys((1, 3, 5), 1.3), grids=grids))
    assert (found.verdict, {s.rank for s in found.suspects}) == (
        "slow_rank" if grids else "imbalance",
        {1, 3, 5},
    )


@pytest.mark.parametrize("world", [4, 8])
def test_all_but_one_are_named_for_the_same_kernels(tmp_path, world):
    found = analyse(job(tmp_path, grid(dp=world), slow={2: 0.8}))
    assert (found.verdict, found.cause) == ("slow_rank", "gpu_compute")
    assert {s.rank for s in found.suspects} == set(range(world)) - {2}


@pytest.mark.quick(4)
@pytest.mark.parametrize("mesh", [*MESHES, grid(pp=2, dp=8)], ids=["dp", "tp2", "tp4", "pp"])
@pytest.mark.parametrize("seed", range(3))
def test_devices_that_differ_by_chance_are_healthy(tmp_path, mesh, seed):
    ranks = len(mesh.coordinates)
    speed = 1.0 + 0.01 * np.random.default_rng(seed).normal(size=ranks)
    found = analyse(job(tmp_path, mesh, slow=dict(enumerate(speed.tolist()))))
    assert found.verdict == "healthy"


@pytest.mark.parametrize(
    ("excess", "as_one"), [([9, 8, -9, -8], True), ([9, 8, 0, 0], True), ([9, 8, 0, 5], False)]
)
def test_half_of_a_stage_is_slow_as_one(tmp_path, excess, as_one):
    """The price of all counts where no other rank is nearly as slow, although the quick half falls short by as much."""
    mesh = grid(tp=2, dp=2)
    case = prepared(job(tmp_path, mesh, steps=2), mesh)
    case = replace(case, found=replace(case.found, mean=np.array(excess, float)))
    assert _as_one(case, np.array([0, 1])) == as_one
