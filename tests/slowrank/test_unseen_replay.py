"""Ranks without a trace are replayed as typical peers: if that gives the recorded waits, a recorded rank is named."""

import pytest

from tests.slowrank.jobs import grid, job, prepared
from tracekit.analysis.slowrank.analyse import analyse
from tracekit.analysis.slowrank.unrecorded.unrecorded import waited_for_missing
from tracekit.analysis.slowrank.unrecorded.unseen_replay import waited_for_unseen, with_typical_unseen

LOST = {1, 2, 7}


def test_who_explains_the_waits_is_named(tmp_path):
    """Rank 2 waits for rank 3 and left no trace, so that its other groups seemed to wait for it."""
    finding = analyse(job(tmp_path, grid(tp=2, pp=2, dp=2), slow={3: 1.3}, lost=LOST, steps=3))
    assert [s.rank for s in finding.suspects] == [3]


def test_the_price_is_that_of_the_whole_job(tmp_path):
    mesh, slow = grid(tp=2, cp=2, dp=3), {1: 1.3}
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    part = analyse(job(tmp_path / "a", mesh, slow=slow, lost={0, 2, 5, 9}, steps=3))
    whole = analyse(job(tmp_path / "b", mesh, slow=slow, steps=3))
    assert part.what_if.slowdown == pytest.approx(whole.what_if.slowdown, abs=0.005)


@pytest.mark.parametrize("slow", [{2: 1.3}, {2: 1.3, 3: 1.3}, {1: 1.2, 0: 1.1}])
def test_an_unseen_slow_rank_excuses_nobody(tmp_path, slow):
    """Peers of rank 2 wait beyond what a typical one would make them wait, so nobody else is named for it."""
    mesh = grid(tp=2, pp=2, dp=2)
    finding = analyse(job(tmp_path, mesh, slow=slow, lost=LOST, steps=3))
    assert not {s.rank for s in finding.suspects} - set(slow)
    assert finding.verdict != "healthy"


def test_a_replay_that_explains_leaves_no_wait_for_unseen(tmp_path):
    mesh = grid(tp=2, pp=2, dp=2)
    case = prepared(job(tmp_path, mesh, slow={3: 1.3}, lost=LOST, steps=3), mesh)
    told = with_typical_unseen(case)
    assert case.seen is None
    assert told.seen is case.model
    assert waited_for_unseen(told, told.steps.own).known < 0.1 * waited_for_missing(case).known
    assert waited_for_unseen(told, told.steps.own).undecided == waited_for_missing(case).undecided


def test_a_message_takes_each_network_its_own_time(tmp_path):
    """Calls of one size take 50 µs in tensor groups and ten times that in data groups, which all lack a member."""
    mesh = grid(tp=2, dp=4)
    slower = {mesh.line(rank, ["dp"]): 10.0 for rank in mesh.coordinates}
    run = job(
        tmp_path,
        mesh,
        slow={6: 1.1},
        link=slower,
        lost={2, 5},
        sized={"dtype": "Float", "in_nelems": 1 << 20},
    )
    assert prepared(run, mesh).residual_ns < 0.001 * prepared(run, mesh).step_ns
    assert [s.rank for s in analyse(run).suspects] == [6]


def test_few_recorded_ranks_are_replayed_alone(tmp_path):
    mesh = grid(tp=2, dp=4)
    case = prepared(job(tmp_path, mesh, slow={0: 1.3}, lost={1, 3, 4, 5, 7}, steps=3), mesh)
    assert with_typical_unseen(case) is None
