"""Hangs of jobs in which groups of two and lone pipelines leave few witnesses, some dumps missing."""

import pickle

import pytest

import tracekit
from tests.marks import quick_first
from tests.simulate.case import setup_of, written
from tracekit.plain_pickle import loads_plain


def hang_of(folder, mesh, fault, missing=(), ring=None, micro_batches=4):
    """The answer about a simulated job that hangs, without the dumps of `missing`; each holds the last `ring` calls."""
    setup, config = setup_of(mesh, fault, steps=2, merge=False, micro_batches=micro_batches)
    written(folder, setup, config, flight_recorder=True)
    for path in (folder / "fr").iterdir() if ring else ():
        dump = loads_plain(path.read_bytes())
        path.write_bytes(pickle.dumps({**dump, "entries": dump["entries"][-ring:]}, protocol=2))
    left = [folder / "fr" / f"rank_{rank}" for rank in range(setup.grid.world) if rank not in missing]
    return tracekit.hang(tracekit.load_dumps([str(path) for path in left]))


def named(found):
    return found.verdict, {c.rank: c.kind for c in found.culprits}


@pytest.mark.parametrize(
    ("mesh", "fault", "pair"),
    quick_first(
        2,
        [
            ({"pp": 2, "dp": 2}, "skip_collective:rank=2,axis=dp", (0, 2)),
            ({"tp": 2, "pp": 2}, "skip_collective:rank=0,axis=tp,steps=1", (0, 1)),
            ({"cp": 2, "pp": 2}, "skip_collective:rank=1,axis=cp", (0, 1)),
        ],
    ),
)
def test_another_stage_is_no_witness(tmp_path, mesh, fault, pair):
    """The group of the other stage makes other calls under the same numbers."""
    found = hang_of(tmp_path, mesh, fault)
    assert (named(found), found.candidates) == (("inconclusive", {}), pair)
    assert found.to_decide


@pytest.mark.parametrize(
    ("fault", "rank", "missing"),
    quick_first(1, [("stop:rank=3,axis=pp,steps=1", 3, 2), ("host_stall:rank=0,axis=pp", 0, 1)]),
)
def test_an_idle_rank_beside_a_missing_dump(tmp_path, fault, rank, missing):
    """A rank with nothing outstanding waits for no rank, so that the rank without a dump did not stop it."""
    found = hang_of(tmp_path, {"pp": 4}, fault, missing=[missing])
    assert named(found) == ("hang", {rank: "host_stalled"})


def test_a_send_waits_for_a_missing_rank(tmp_path):
    found = hang_of(tmp_path, {"pp": 4}, "skip_collective:rank=2,axis=pp,op=recv", missing=[2])
    assert named(found) == ("hang", {2: "missing_dump"})
    assert "recv" in found.reason


def test_an_ended_rank_is_not_stopped(tmp_path):
    """The last messages of a job end on one rank first, which exchanged none with the rank without a dump."""
    found = hang_of(tmp_path, {"pp": 3}, "skip_collective:rank=0,axis=pp,op=recv,steps=1", missing=[0])
    assert named(found) == ("hang", {0: "missing_dump"})


def test_an_idle_rank_that_may_have_ended_is_open(tmp_path):
    """The only waiting rank waits for the one without a dump; the idle one may have ended its program."""
    found = hang_of(tmp_path, {"pp": 3}, "host_stall:rank=0,axis=pp,op=recv,steps=1", missing=[1])
    assert (named(found), found.candidates) == (("inconclusive", {}), (0, 1))


@pytest.mark.parametrize(
    ("mesh", "answer", "candidates"),
    [({"pp": 2}, ("inconclusive", {}), (0, 1)), ({"tp": 2, "pp": 2}, ("hang", {0: "host_stalled"}), ())],
)
def test_crossed_messages_are_judged_by_a_replica(tmp_path, mesh, answer, candidates):
    """A receive is left out, so that both ranks of the pair wait in a send first."""
    found = hang_of(tmp_path, mesh, "skip_collective:rank=0,axis=pp,op=recv")
    assert (named(found), found.candidates) == (answer, candidates)


def test_a_ring_that_begins_late_shows_no_usual_call(tmp_path):
    """The first call of the ring is the only one of its version, and what the group called before it is lost."""
    found = hang_of(tmp_path, {"dp": 2}, "skip_collective:rank=0,axis=dp,steps=1", ring=60, micro_batches=2)
    assert 1 not in named(found)[1]


def test_a_first_call_shows_the_rank_without_it(tmp_path):
    """The group has called the second one only behind the first."""
    found = hang_of(tmp_path, {"pp": 2, "dp": 2}, "skip_collective:rank=0,axis=dp,steps=1")
    assert named(found) == ("hang", {0: "host_stalled"})


@pytest.mark.parametrize("ring", quick_first(1, [20, 60]))
def test_a_message_that_the_ring_lost_may_be_outstanding(tmp_path, ring):
    """A receive was posted before the calls that the ring holds, and no later one from that rank is in it."""
    found = hang_of(tmp_path, {"tp": 2, "pp": 2}, "host_stall:rank=2,axis=pp,op=recv", ring=ring)
    assert named(found) == ("hang", {2: "host_stalled"})
