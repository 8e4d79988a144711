"""A rank without a trace is a candidate if its delay gives the waits that recorded ranks show."""

from pathlib import Path

import pytest

from tests.slowrank.jobs import grid, job, prepared
from tracekit.analysis.slowrank.analyse import analyse
from tracekit.analysis.slowrank.unrecorded.unrecorded import waited_for_unseen
from tracekit.expected.nodes import nodes_with_unseen
from tracekit.ingest import load
from tracekit.step_graph import unseen_delays
from tracekit.step_graph.unseen_delays import explained_ns
from tracekit.step_graph.unseen_ranks import with_unseen

SAMPLES = Path(__file__).parents[2] / "sample_traces"


def explained(case, likely=None):
    copies = with_unseen(case, case.timeline, case.found, nodes_with_unseen(case))
    return explained_ns(case, copies, case.missing if likely is None else likely)


def test_a_pipeline_passes_on_waits_of_one_rank():
    """Ranks 0 to 3 wait for ranks 4 to 7 of the next stage, which all wait for rank 5; sends may go to a buffer."""
    traces = [str(SAMPLES / "slow_compute" / "trace" / f"rank{rank}.json.gz") for rank in range(5)]
    found = analyse(load(traces, jobs=1))
    assert (found.verdict, [c.rank for c in found.candidates]) == ("inconclusive", [5])
    assert found.to_decide == "add the trace of rank 5"


MESHES = [grid(tp=2, cp=2, dp=2), grid(tp=2, pp=2, dp=2), grid(tp=2, dp=4)]
LOST = [{7}, {2, 7}, {1, 6, 7}, {4, 5, 6}, {3, 5, 6, 7}]


@pytest.mark.parametrize("mesh", MESHES, ids=["cp", "pp", "dp"])
@pytest.mark.parametrize("lost", LOST, ids=str)
@pytest.mark.quick(2)
def test_the_slow_rank_stays_in_the_list(tmp_path, mesh, lost):
    for slow in lost:
        (tmp_path / str(slow)).mkdir()
        case = prepared(job(tmp_path / str(slow), mesh, slow={slow: 1.3}, lost=lost, steps=3), mesh)
        assert slow in waited_for_unseen(case, case.steps.own).ranks


@pytest.mark.parametrize("slow", [2, 7])
def test_delays_of_other_groups_explain_nothing(tmp_path, slow):
    """Ranks 2 and 7 share no group: recorded ranks wait in those of the slow one."""
    mesh = grid(tp=2, cp=2, dp=2)
    case = prepared(job(tmp_path, mesh, slow={slow: 1.3}, lost={2, 7}, steps=3), mesh)
    assert list(explained(case)) == [slow]


def test_a_rank_behind_unrecorded_ones_explains_their_waits(tmp_path):
    """Ranks 4 and 6 share groups with rank 5, which is slow: they pass on a part of its delay each."""
    mesh = grid(tp=2, cp=2, dp=2)
    case = prepared(job(tmp_path, mesh, slow={5: 1.3}, lost={4, 5, 6}, steps=3, jitter=0), mesh)
    found = explained(case)
    assert next(iter(found)) == 5
    assert found[5] == pytest.approx(found[4] + found[6], rel=0.01)


def test_without_common_clock_nothing_is_left_out(tmp_path):
    mesh = grid(tp=2, cp=2, dp=2)
    case = prepared(job(tmp_path, mesh, slow={4: 1.3}, lost={0, 3, 4, 6}, steps=3), mesh)
    assert explained(case) == {}
    assert 4 in waited_for_unseen(case, case.steps.own).ranks


def test_without_a_lasting_order_nothing_is_left_out(tmp_path, monkeypatch):
    mesh = grid(tp=2, dp=2)
    case = prepared(job(tmp_path, mesh, slow={1: 1.3}, lost={1}, steps=3), mesh)
    assert explained(case)
    monkeypatch.setattr(unseen_delays, "levels_of", lambda *_: None)
    assert explained(case) == {}


@pytest.mark.parametrize("slow", [4, 5, 6])
def test_few_ranks_are_replayed_one_by_one(tmp_path, monkeypatch, slow):
    """Behind the first rank the others stay together, and none that may be slow is left out."""
    monkeypatch.setattr(unseen_delays, "PEERS_SAMPLED", 1)
    mesh = grid(tp=2, cp=2, dp=2)
    case = prepared(job(tmp_path, mesh, slow={slow: 1.3}, lost={1, 4, 5, 6}, steps=3), mesh)
    few = explained(case)
    assert set(explained(case, likely=())) < set(few)
    monkeypatch.undo()
    every = explained(case)
    assert next(iter(few)) == next(iter(every)) == slow
    assert set(every) <= set(few)
