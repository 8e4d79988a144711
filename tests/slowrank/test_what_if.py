"""The step model gives the measured step, and the step that other work would give."""

from dataclasses import replace

import numpy as np
import pytest

from tests.generator import generate
from tests.marks import quick_first
from tests.slowrank.jobs import LAYER_US, TRANSFER_US, grid, job, prepared
from tracekit.analysis.slowrank.analyse import analyse
from tracekit.ingest import load
from tracekit.mesh import from_sizes

MESH = grid(dp=4)  # one group: whoever is late delays all at once
CALLS = 3  # layers × axes
STEP_NS = CALLS * (LAYER_US + TRANSFER_US) * 1000


def projected(case, target=None, transfer=None):
    return case.model.step_ns(case.steps.own if target is None else target, transfer)


def test_the_recorded_step_is_told_again(tmp_path):
    case = prepared(job(tmp_path, MESH, slow={3: 1.3}), MESH)
    assert projected(case) == pytest.approx(case.step_ns, rel=0.02)


def test_curing_the_slow_rank_gives_the_healthy_step(tmp_path):
    case = prepared(job(tmp_path, MESH, slow={3: 1.3}, jitter=0), MESH)
    assert projected(case) == pytest.approx(CALLS * (1.3 * LAYER_US + TRANSFER_US) * 1000, rel=0.001)
    cured = case.steps.own.copy()
    cured[3] = cured[0]
    assert projected(case, cured) == pytest.approx(STEP_NS, rel=0.001)


def test_curing_one_of_two_equally_slow_ranks_saves_nothing(tmp_path):
    case = prepared(job(tmp_path, MESH, slow={0: 1.3, 3: 1.3}, jitter=0), MESH)
    cured = case.steps.own.copy()
    cured[3] = cured[1]
    assert projected(case, cured) == pytest.approx(projected(case), rel=0.001)
    cured[0] = cured[1]
    assert projected(case, cured) == pytest.approx(STEP_NS, rel=0.001)


def test_slack_costs_nothing_until_it_is_spent(tmp_path):
    case = prepared(job(tmp_path, MESH, slow={3: 1.3}, jitter=0), MESH)
    other = case.steps.own.copy()
    other[0] *= 1.2  # still quicker than rank 3
    assert projected(case, other) == pytest.approx(projected(case), rel=0.001)
    other[0] = case.steps.own[0] * 1.5
    assert projected(case, other) == pytest.approx(CALLS * (1.5 * LAYER_US + TRANSFER_US) * 1000, rel=0.001)


def test_other_transfers_change_the_step_by_their_sum(tmp_path):
    case = prepared(job(tmp_path, MESH, jitter=0), MESH)
    doubled = 2 * case.model.transfer
    assert projected(case, transfer=doubled) == pytest.approx(STEP_NS + CALLS * TRANSFER_US * 1000, rel=0.001)


def test_an_intermittent_fault_is_a_mean_over_all_steps(tmp_path):
    case = prepared(job(tmp_path, MESH, slow={3: 2.0}, slow_steps={1, 3}, steps=4, jitter=0), MESH)
    assert projected(case) == pytest.approx(STEP_NS + 0.5 * CALLS * LAYER_US * 1000, rel=0.001)


def test_ranks_levelled_part_by_part_are_the_median_rank(tmp_path):
    mesh = grid(tp=3)
    case = prepared(job(tmp_path, mesh, slow={0: 1.4, 1: 1.1}, layers=8, jitter=0), mesh)
    healthy = 8 * (1.1 * LAYER_US + TRANSFER_US) * 1000
    assert case.model.levelled_ns([np.arange(3)]) == pytest.approx(healthy, rel=0.02)


@pytest.mark.parametrize(("seed", "kind"), [(303, "slow_compute"), (307, "pauses"), (308, "healthy")])
@pytest.mark.slow
def test_simulated_meshes_are_told_again(tmp_path, seed, kind):
    case = generate(seed, kind=kind, world=8, steps=4, missing=set(), truncated={}, dp_mode="overlap")
    case.write(tmp_path)
    made = prepared(load([str(tmp_path)]), from_sizes(case.truth.sizes, case.truth.order))
    assert projected(made) == pytest.approx(made.step_ns, rel=0.02)


def test_delays_spreading_across_axes_are_reproduced(tmp_path):
    mesh = grid(tp=2, cp=2, dp=2)
    case = prepared(job(tmp_path, mesh, slow={5: 1.4}), mesh)
    assert projected(case) == pytest.approx(case.step_ns, rel=0.02)


def test_the_slowdown_reported_is_the_planted_one(tmp_path):
    found = analyse(job(tmp_path, MESH, slow={2: 1.5}, jitter=0)).what_if
    assert found.step_ms == pytest.approx(CALLS * (1.5 * LAYER_US + TRANSFER_US) / 1000, rel=0.002)
    assert found.without_suspects_ms == pytest.approx(STEP_NS / 1e6, rel=0.005)
    assert found.slowdown == pytest.approx(found.step_ms / found.without_suspects_ms)


def test_what_is_late_in_one_place_is_cured_there(tmp_path):
    """A cure spread over the step would leave half of the delay in its place."""
    found = analyse(job(tmp_path, MESH, accident=(2, None, LAYER_US), jitter=0))
    assert [s.rank for s in found.suspects] == [2]
    assert found.what_if.step_ms == pytest.approx((STEP_NS + LAYER_US * 1000) / 1e6, rel=0.002)
    assert found.what_if.without_suspects_ms == pytest.approx(STEP_NS / 1e6, rel=0.005)


@pytest.mark.slow
def test_a_pause_of_several_ranks_is_removed_locally(tmp_path):
    case = generate(24, kind="late_data")
    case.write(tmp_path)
    found = analyse(load([str(tmp_path)]))
    assert {s.rank for s in found.suspects} == case.truth.suspects
    assert found.what_if.slowdown - 1 == pytest.approx(case.truth.slowdown - 1, rel=0.1)


@pytest.mark.parametrize(
    ("seed", "kind"), quick_first(1, [(19, "pauses"), (28, "slow_compute"), (37, "launch_bound")])
)
@pytest.mark.slow
def test_the_price_is_the_planted_one(tmp_path, seed, kind):
    """Sends that wait for a late receiver, stages that only messages link, and a host behind its device."""
    case = generate(seed, kind=kind)
    case.write(tmp_path)
    found = analyse(load([str(tmp_path)]))
    assert [s.rank for s in found.suspects] == sorted(case.truth.suspects)
    assert found.what_if.slowdown - 1 == pytest.approx(case.truth.slowdown - 1, rel=0.1)


def test_ranks_with_equally_many_operations_define_the_usual(tmp_path):
    """One step only: nothing but the number of its operations tells that a rank's recording is cut."""
    case = prepared(job(tmp_path, MESH, steps=1, jitter=0), MESH)
    ((columns, lines),) = case.model.runs
    (parts,) = lines[1].parts
    cut = replace(lines[1], parts=(replace(parts, cuts=parts.cuts[:-1], order=parts.order[:-1]),))
    model = replace(case.model, runs=((columns, (lines[0], cut, *lines[2:])),))
    usual = model.usual({row: np.arange(4) for row in range(4)})
    assert set(usual) == {(0, 0), (0, 2), (0, 3)}
