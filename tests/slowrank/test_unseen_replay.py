"""Ranks without a trace are replayed as typical peers: if that gives the recorded waits, a recorded rank is named."""

import pytest

from tests.slowrank.jobs import grid, job, prepared
from tracekit.analysis.slowrank.analyse import analyse
from tracekit.analysis.slowrank.unrecorded.unrecorded import waited_for_unseen, with_typical_unseen

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
    without, beside = (waited_for_unseen(c, c.steps.own) for c in (case, told))
    assert beside.awaited < 0.1 * without.awaited


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


@pytest.mark.parametrize(("slow", "named"), [(0, [0]), (5, [])])
def test_few_recorded_ranks_show_a_slow_one(tmp_path, slow, named):
    """Three ranks of eight: copies of them are most of the job."""
    finding = analyse(job(tmp_path, grid(tp=2, dp=4), slow={slow: 1.3}, lost={1, 3, 4, 5, 7}, steps=3))
    assert [s.rank for s in finding.suspects] == named
    assert finding.verdict != "healthy"


@pytest.mark.parametrize("lost", [{6, 7}, {4, 5, 6, 7}])
def test_copies_have_no_slow_link(tmp_path, lost):
    """Calls of ranks 0 and 1 take 0.4 ms, those of the other tensor groups 50 µs; some of these left no trace."""
    finding = analyse(job(tmp_path, grid(tp=2, dp=4), link={(0, 1): 8.0}, lost=lost, layers=6))
    assert (finding.verdict, [s.rank for s in finding.suspects]) == ("slow_link", [0, 1])
    assert finding.what_if.slowdown == pytest.approx(1.164, abs=0.002)


@pytest.mark.parametrize(("pace", "replayed"), [(1.0, True), (1.005, True), (1.03, False)])
def test_copies_must_give_complete_waits(tmp_path, pace, replayed):
    """Ranks 4 and 5 left no trace, and rank 5 costs 1.4 %: after data groups that wait for it tensor groups wait less.

    The recorded ranks alone give the waits of complete tensor groups; with a typical copy of rank 5 these come early.
    """
    mesh = grid(tp=2, dp=4)
    case = prepared(job(tmp_path, mesh, slow={5: pace}, lost={4, 5}, steps=3, jitter=0), mesh)
    assert (with_typical_unseen(case) is not None) == replayed
