"""The factors of a rank's time add up to it, and do not depend on how ranks are numbered."""

from dataclasses import replace

import numpy as np
import pytest

from tests.generator import generate
from tests.marks import quick_nth
from tests.shapes.case import make, save
from tests.shapes.draw import drawn_case
from tests.shapes.fault import Fault, Part
from tests.shapes.fsdp import Sharded
from tests.slowrank.jobs import grid, job
from tracekit.case.opened import opened
from tracekit.ingest import load
from tracekit.step_graph.statistics import usual_of_others

MESH = grid(tp=2, dp=10)
LOADS = frozenset(rank for rank in MESH.coordinates if MESH.coords(rank)["tp"] == 0)
JOBS = {
    "slow rank": {"slow": {5: 1.3}},
    "slow in one step": {"slow": {5: 1.4}, "slow_steps": {2}},
    "noisy": {"jitter": 0.1, "slow": {5: 1.1}},
    "role": {"idle": lambda rank, step: 400.0 * (rank in LOADS)},
    "role and a longer loader": {"idle": lambda rank, step: (400.0 + 500 * (rank == 4)) * (rank in LOADS)},
    "slow device beside a role": {"slow": {4: 1.2}, "idle": lambda rank, step: 300.0 * (rank in LOADS)},
    "gaps by chance": {"slow": {5: 1.05}, "idle": lambda rank, step: 97.0 * ((rank * 7 + step * 5) % 11)},
    "accident": {"accident": (3, 1, 4000.0)},
    "lost": {"slow": {5: 1.3}, "lost": {2, 9}},
}
DRAWN = [
    (11, "slow_compute"),
    (12, "launch_bound"),
    (13, "doc_imbalance"),
    (14, "healthy"),
    (15, "late_data"),
    (16, "slow_host"),
]


def factors(case):
    """The parts of each rank's own time beyond its peers', ranks × steps each, ns; the last one is the rest."""
    met = case.met
    return (met.tokens.beyond, met.beside, met.role, met.chance, case.found.value)


def adds_up(case):
    """The factors and the typical time of the peers without their factors are the own time."""
    own = case.steps.own
    parts = factors(case)
    usual = usual_of_others(own - sum(parts[:-1]), case.met.peers.groups, case.met.peers.usual)
    known = np.isfinite(own) & np.isfinite(usual) & np.isfinite(parts[-1])
    assert known.any()
    np.testing.assert_allclose(sum(parts)[known] + usual[known], own[known], rtol=1e-12, atol=1e-3)


@pytest.mark.quick(2)
@pytest.mark.parametrize("name", quick_nth(3, sorted(JOBS)))
def test_factors_add_up_to_the_own_time(tmp_path, name):
    adds_up(opened(job(tmp_path, MESH, **JOBS[name]), None, None, None, None)[0])


@pytest.mark.slow
@pytest.mark.parametrize(("seed", "kind"), DRAWN)
def test_factors_of_drawn_jobs_add_up(tmp_path, seed, kind):
    generate(seed, kind=kind, truncated={}).write(tmp_path)
    adds_up(opened(load([str(tmp_path)]), None, None, None, None)[0])


@pytest.mark.slow
def test_replicas_whose_kernels_overlap_have_the_same_factors(tmp_path):
    """More ranks than are read: communication that waits for rank 5 lengthens the kernels of the others."""
    fault = Fault("slow_gpu", (Part("gpu", (5,), 1.2),))
    shape = Sharded(layers=4, unit=200.0, parameters=2 * 10**7, activations=4096 * 1024)
    every = tuple(range(16))
    drawn = replace(drawn_case(2105), shape=shape, world=16, recorded=every, fault=fault, contention=1.15)
    save(make(drawn), tmp_path)
    same_factors(load([str(tmp_path)]), dict(enumerate(np.random.default_rng(5).permutation(16).tolist())))


def renumbered(run, new):
    """The run with rank `new[rank]` in the place of each rank."""
    records = sorted((replace(r, rank=new[r.rank]) for r in run.ranks), key=lambda r: r.rank)
    groups = tuple(replace(g, ranks=tuple(sorted(new[r] for r in g.ranks))) for g in run.groups)
    return replace(run, ranks=tuple(records), groups=groups)


@pytest.mark.quick(2)
@pytest.mark.parametrize("name", quick_nth(3, sorted(JOBS)))
def test_replicas_in_another_order_have_the_same_factors(tmp_path, name):
    run = job(tmp_path, MESH, **JOBS[name])
    turn = np.random.default_rng(5).permutation(MESH.sizes["dp"])
    at = {tuple(MESH.coords(rank).items()): rank for rank in MESH.coordinates}
    new = {
        rank: at[tuple({**MESH.coords(rank), "dp": int(turn[MESH.coords(rank)["dp"]])}.items())]
        for rank in MESH.coordinates
    }
    same_factors(run, new)


def same_factors(run, new):
    """Each rank has the factors and the significance that it has under the number `new`."""
    case, other = (opened(r, None, None, None, None)[0] for r in (run, renumbered(run, new)))
    rows = [other.steps.row(new[rank]) for rank in case.steps.ranks]
    for mine, theirs in zip(factors(case), factors(other), strict=True):
        np.testing.assert_allclose(theirs[rows], mine, rtol=1e-9, atol=1e-3)
    np.testing.assert_allclose(other.found.z[rows], case.found.z, rtol=1e-6, atol=1e-6)
