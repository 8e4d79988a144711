"""Stages that are long alike are priced together, and those of one node may be a slow node as well."""

import pytest

from tests.slowrank.jobs import grid, job, prepared
from tracekit.analysis.slowrank.analyse import analyse
from tracekit.analysis.slowrank.answers import imbalance_answers
from tracekit.analysis.slowrank.answers.imbalance_answers import runs_more
from tracekit.analysis.slowrank.hypotheses.long_stage import long_stage

MESH = grid(tp=2, pp=4)
HALF = dict.fromkeys(range(4), 1.3)
"""Ranks of stages 0 and 1."""


@pytest.fixture
def nodes(monkeypatch):
    monkeypatch.setattr(imbalance_answers, "nodes_of", lambda case: {rank: rank // 4 for rank in range(8)})


@pytest.fixture
def quick_ms(tmp_path):
    (tmp_path / "quick").mkdir()
    return analyse(job(tmp_path / "quick", MESH)).what_if.step_ms


def test_stages_long_alike_are_priced_together(tmp_path, quick_ms):
    found = analyse(job(tmp_path, MESH, slow=HALF))
    assert (found.verdict, {s.rank for s in found.suspects}) == ("imbalance", set(HALF))
    assert "stages 0, 1 take 1.30 times as long" in found.reason
    assert found.what_if.without_suspects_ms == pytest.approx(quick_ms, rel=0.01)


@pytest.mark.usefixtures("nodes")
def test_stages_of_one_node_are_a_slow_node(tmp_path, quick_ms):
    found = analyse(job(tmp_path, MESH, slow=HALF))
    assert (found.verdict, found.cause) == ("slow_rank", "gpu_compute")
    assert {s.rank for s in found.suspects} == set(HALF)
    assert "node 0" in found.reason
    assert "or pipeline stages 0, 1 have more work" in found.reason
    assert found.what_if.without_suspects_ms == pytest.approx(quick_ms, rel=0.01)


@pytest.mark.usefixtures("nodes")
def test_stages_of_two_nodes_are_long(tmp_path):
    found = analyse(job(tmp_path, MESH, slow=dict.fromkeys((2, 3, 4, 5), 1.3)))
    assert (found.verdict, {s.rank for s in found.suspects}) == ("imbalance", {2, 3, 4, 5})
    assert "node" not in found.reason


@pytest.mark.usefixtures("nodes")
def test_one_stage_of_a_node_says_both(tmp_path):
    found = analyse(job(tmp_path, grid(tp=4, pp=2), slow=HALF))
    assert (found.verdict, {s.rank for s in found.suspects}) == ("imbalance", set(HALF))
    assert "or node 0 is slow" in found.reason


def test_a_shorter_second_stage_stays_out(tmp_path):
    """The others wait for the longest stage alone, if the next one is long by less than half of it."""
    slow = {0: 1.4, 1: 1.4, 2: 1.1, 3: 1.1}
    assert set(long_stage(prepared(job(tmp_path, MESH, slow=slow), MESH)).rows) == {0, 1}


def test_more_kernels_are_more_work(tmp_path):
    for name in ("more", "slower"):
        (tmp_path / name).mkdir()
    mesh = grid(pp=4)
    assert runs_more(prepared(job(tmp_path / "more", mesh, accident=(1, None, 1000.0)), mesh), (1,))
    assert not runs_more(prepared(job(tmp_path / "slower", mesh, slow={1: 1.3}), mesh), (1,))


def test_single_ranks_of_two_stages_say_both(tmp_path):
    found = analyse(job(tmp_path, grid(pp=6, cp=1), slow={2: 1.3, 4: 1.3}))
    assert (found.verdict, {s.rank for s in found.suspects}) == ("imbalance", {2, 4})
    assert "or ranks 2, 4 are all slow: no other rank does the same work" in found.reason
