"""Ranks without a trace post and wait as the recorded ranks that they are assumed to work like."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np

from tests.slowrank.jobs import grid, job, prepared
from tracekit.matching.channels import Channel
from tracekit.step_graph.rank_timeline import NEED, POST, RankTimeline
from tracekit.step_graph.unseen_delays import longer_ns
from tracekit.step_graph.unseen_ranks import _Draft, _like, _named


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


def test_channels_of_inferred_messages_count_apart():
    """Messages with inferred peers are a channel of their own; the channels beside them keep their numbers."""
    ends = [(2, 6, True), (2, 6, False), (1, 5, False)]
    inferred, named, unseen = _named(tuple(Channel(n, e[:2], True, 0, e[2]) for n, e in enumerate(ends)))
    assert named[2] == unseen[2] != inferred[2]


def test_copies_start_after_the_same_operations():
    """Instance 7 starts when 3 ends; ranks without a trace run them as 9 and 8."""
    draft = _Draft.__new__(_Draft)
    draft.run = SimpleNamespace(ops=SimpleNamespace(rank=np.array([5, 5])))
    draft.base = SimpleNamespace(caused=np.array([[7], [3]]), instance=np.array([3, 7]))
    draft.instance, draft.made = [3, 7, 8, 9], {(4, 0): 2, (4, 1): 3}
    assert draft._caused().T.tolist() == [[7, 3], [9, 8]]


def test_an_unseen_rank_works_like_its_replica(tmp_path):
    """Other replicas have other data, even where their excess is the smallest."""
    mesh = grid(tp=2, dp=2)
    case = prepared(job(tmp_path, mesh, lost={0}, steps=3), mesh)
    (mate,) = set(mesh.line(0, ["tp"])) - {0}
    excess = np.array([1e6 if rank == mate else 0.0 for rank in case.steps.ranks])
    assert _like(case, replace(case.found, mean=excess), {}, 0) == case.steps.row(mate)


def test_copies_join_the_group_they_are_in():
    """Two shards of four ranks: a mesh that is offset by half a shard would make three. A message is shifted."""
    mesh, groups = grid(dp=8), [(0, 1, 2, 3), (4, 5, 6, 7), (2, 3), (1, 2)]
    draft = _Draft.__new__(_Draft)
    channels = tuple(Channel(n, members, n == 3, n) for n, members in enumerate(groups))
    draft.run = SimpleNamespace(
        mesh=mesh, ops=SimpleNamespace(channels=channels), shape_of=lambda channel: "dp"
    )
    draft.named, draft.moved, draft.rank_at = (
        _named(channels),
        {},
        {c: r for r, c in mesh.coordinates.items()},
    )
    draft.groups = draft._groups()
    assert [draft._moved(0, 1, rank)[0] for rank in (3, 6)] == [groups[0], groups[1]]
    assert draft._moved(3, 1, 3)[0] == (3, 4)
