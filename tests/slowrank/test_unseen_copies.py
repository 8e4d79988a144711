"""Ranks without a trace post and wait as the recorded ranks that they are assumed to work like."""

from types import SimpleNamespace

import numpy as np

from tests.slowrank.jobs import grid, job, prepared
from tracekit.step_graph.rank_timeline import NEED, POST, RankTimeline
from tracekit.step_graph.unseen_ranks import longer_ns


def test_overlapping_waits_hold_a_rank_up_once():
    """Operation 0 lasts from 10 to 110 ns, operation 1 from 10 to 60; the rank works 10 ns before them."""
    ops = SimpleNamespace(start=np.array([10, 10]), end=np.array([110, 60]), at_start=np.array([10, 10]))
    kinds, reading = np.array([POST, POST, NEED, NEED], np.int8), np.full(4, 10.0)
    events, knots = np.array([0, 1, 1, 0], np.int32), np.array([0.0, 30.0])
    needed, stood = RankTimeline(0, kinds, reading, events, knots, knots, (), 0.0).held(ops)
    assert dict(zip(needed.tolist(), stood.tolist(), strict=True)) == {0: 50.0, 1: 50.0}


def test_waits_as_recorded_equal_those_of_a_whole_replay(tmp_path):
    mesh = grid(tp=2, pp=2, dp=2)
    case = prepared(job(tmp_path, mesh, slow={3: 1.3}, steps=3), mesh)
    assert np.abs(longer_ns(case, case.timeline)).max() < 0.001 * case.step_ns
