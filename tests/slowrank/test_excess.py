"""Ranks are compared with those that do the same work; accidents, slack and equal slowness name nobody."""

import numpy as np
import pytest

from tests.slowrank.events import Timeline, write_run
from tests.slowrank.jobs import LAYER_US, TRANSFER_US, grid, job, prepared
from tracekit.analysis.slowrank.analyse import analyse
from tracekit.analysis.slowrank.hypotheses.data_imbalance import dispersion, segments
from tracekit.case.case import build
from tracekit.expected.excess import outliers, rank_excess, typical
from tracekit.thresholds.slowrank import Z_LIMIT

MESH = grid(tp=2, dp=4)
CALLS = 3 * 2


def test_peers_are_the_ranks_of_one_stage(tmp_path):
    mesh = grid(tp=2, pp=2, dp=2)
    case = prepared(job(tmp_path, mesh), mesh)
    assert [case.steps.ranks[i] for g in case.stages for i in g] == [0, 1, 4, 5, 2, 3, 6, 7]


def test_excess_is_what_was_planted_and_significant(tmp_path):
    case = prepared(job(tmp_path, MESH, slow={3: 1.2}), MESH)
    assert case.found.mean[3] == pytest.approx(CALLS * 0.2 * LAYER_US * 1000, rel=0.1)
    assert case.found.z[3] > Z_LIMIT
    assert (np.delete(case.found.z, 3) < Z_LIMIT).all()


def test_typical_is_the_median_of_the_others(tmp_path):
    case = prepared(job(tmp_path, MESH, slow={3: 1.2}, jitter=0), MESH)
    target = typical(case.steps.own, case.met.peers)
    assert target == pytest.approx(np.full_like(target, CALLS * LAYER_US * 1000), rel=1e-3)


def test_segments_hold_the_work_before_each_operation(tmp_path):
    case = prepared(job(tmp_path, MESH, slow={3: 1.2}, jitter=0, steps=2), MESH)
    parts = segments(case)
    assert parts.shape == (8, 2 * CALLS)
    assert parts[0, 1:] == pytest.approx(LAYER_US * 1000)
    assert parts[3, 1:] == pytest.approx(1.2 * LAYER_US * 1000)


def test_steps_left_out_belong_to_no_segment(tmp_path):
    """The first operation of step 4 has its own work before it, and not that of steps 2 and 3."""
    ops = prepared(job(tmp_path, MESH, jitter=0), MESH).ops
    run = job(tmp_path, MESH, jitter=0)
    parts = segments(build(run, ops, MESH, [(0, 2), (4, 5)]))
    assert parts[:, 2 * CALLS] == pytest.approx(np.full(8, LAYER_US * 1000))


def test_one_accident_is_no_slow_rank(tmp_path):
    """A single kernel that takes twice a step's time, in one of many steps, costs far more than 2 % of the mean."""
    finding = analyse(job(tmp_path, MESH, accident=(3, 2, 2 * CALLS * LAYER_US), steps=8))
    assert finding.verdict == "healthy"


def test_an_intermittent_rank_is_named_with_its_steps(tmp_path):
    finding = analyse(job(tmp_path, MESH, slow={3: 1.6}, slow_steps={1, 3, 5}, steps=6))
    assert finding.verdict == "slow_rank"
    assert [(s.rank, s.steps) for s in finding.suspects] == [(3, (1, 3, 5))]


@pytest.mark.parametrize(("factor", "verdict"), [(1.1, "slow_rank"), (1.05, "slow_rank"), (1.01, "healthy")])
def test_two_percent_of_the_step_divide_slow_from_healthy(tmp_path, factor, verdict):
    assert analyse(job(tmp_path, MESH, slow={6: factor}, jitter=0.002)).verdict == verdict


def test_a_single_step_is_judged_by_who_came_last(tmp_path):
    finding = analyse(job(tmp_path, grid(dp=4), slow={2: 1.3}, steps=1, layers=12))
    assert finding.verdict == "slow_rank"
    assert finding.suspects[0].rank == 2
    case = prepared(job(tmp_path, grid(dp=4), slow={2: 1.3}, steps=1, layers=12), grid(dp=4))
    found = rank_excess(case, case.steps.own, case.met.peers)
    assert found.limit < Z_LIMIT
    assert int(np.argmax(found.z)) == 2


def test_a_single_healthy_step_names_nobody(tmp_path):
    assert analyse(job(tmp_path, grid(dp=4), steps=1, layers=12)).verdict == "healthy"


def test_a_lasting_difference_is_not_dispersion(tmp_path):
    mesh = grid(dp=4)
    (tmp_path / "a").mkdir()
    case = prepared(job(tmp_path / "a", mesh, slow={1: 1.5}, layers=20, jitter=0.01), mesh)
    assert dispersion(case).ratio < 1.4


def test_work_dealt_anew_each_step_is_dispersion(tmp_path):
    """Attention takes as long as the documents dealt to a rank in a step; products take the same everywhere."""
    mesh, rng = grid(dp=4), np.random.default_rng(3)
    lines = [Timeline(r) for r in range(4)]
    for step in range(8):
        begins, share = [line.at for line in lines], rng.uniform(0.5, 1.5, 4)
        for _ in range(20):
            posts = []
            for line, documents in zip(lines, share, strict=True):
                line.compute(500, "gemm")
                line.compute(500 * documents, "flash_attention_fwd")
                posts.append(line.post(0))
            end = max(p[0] for p in posts) + TRANSFER_US
            for line, post in zip(lines, posts, strict=True):
                line.finish(post, end)
        for line, begin in zip(lines, begins, strict=True):
            line.step(step, begin)
    run = write_run(tmp_path, lines, {0: (0, 1, 2, 3)}, {0: "mesh_dp"}, 4)
    case = prepared(run, mesh)
    assert dispersion(case).ratio > 1.4
    finding = analyse(run)
    assert (finding.verdict, finding.cause, finding.suspects) == ("imbalance", "data_imbalance", ())


@pytest.mark.parametrize(("idle", "late"), [((3,), ()), ((), (0, 1, 2))])
def test_a_rank_without_work_delays_no_others(idle, late):
    """Rank 3 has nothing to do in two steps of eight; or the other three stall in these."""
    own = 18e6 + 1e5 * np.random.default_rng(3).normal(size=(4, 8))
    own[list(idle), 6:] = 1e5
    own[list(late), 6:] += 18e6
    over = outliers(own, [np.arange(4)], 19e6)
    assert np.flatnonzero(over.any(axis=1)).tolist() == list(late)
