"""Ranks of several programs, as encoders beside a language model, are compared only with ranks of their own."""

import pytest

from tests.marks import quick_first
from tests.slowrank.programs import DATA, ENCODERS, GROUPS, WORLD, Beside, beside
from tracekit import diff, load
from tracekit.analysis.slowrank.analyse import analyse, illustrated
from tracekit.report.slowrank_json import mesh_document


def asked(folder, body, groups=GROUPS, lost=()):
    return analyse(load([str(beside(folder, body, groups, lost))]))


def test_each_program_has_its_own_mesh(tmp_path):
    found = asked(tmp_path, Beside())
    assert found.verdict == "healthy"
    assert found.mesh.written() == "2 programs: ranks 0-3 (dp=4) and ranks 4-11 (tp=4,dp=2)"
    assert [p["ranks"] for p in mesh_document(found.mesh)["programs"]] == [[0, 1, 2, 3], [*range(4, 12)]]


@pytest.mark.parametrize(("layers", "slow"), quick_first(1, [(6, 6), (30, 2)]))
def test_slow_rank_in_a_program_has_its_price(tmp_path, layers, slow):
    found = asked(tmp_path / "slow", Beside(layers, slow={slow}))
    usual = asked(tmp_path / "usual", Beside(layers))
    (suspect,) = found.suspects
    truth = found.steps.median_ms - usual.steps.median_ms
    assert suspect.rank == slow
    assert suspect.lost_ms_low <= truth <= suspect.lost_ms_high
    assert [level.dim for level in found.path] == (["dp"] if slow in ENCODERS else ["dp", "tp"])


@pytest.mark.parametrize("layers", quick_first(1, [6, 30]))
def test_equal_layouts_with_other_work_are_no_peers(tmp_path, layers):
    found = asked(tmp_path, Beside(layers), {DATA: [ENCODERS, range(4, 8)]})
    assert (found.verdict, found.suspects) == ("healthy", ())


def test_descriptions_shared_by_programs_are_one_job(tmp_path):
    assert load([str(beside(tmp_path, Beside(1)))]).world_size == WORLD


@pytest.mark.parametrize(("layers", "verdict"), [(30, "inconclusive"), (6, "healthy")])
def test_encoder_without_a_peer_is_open_where_others_wait(tmp_path, layers, verdict):
    """Nothing shows whether it is slow; where the language model sets the pace, it costs nothing in any case."""
    found = asked(tmp_path, Beside(layers, slow=(0,), encoders=(0,)), {DATA: [range(1, 8)]})
    assert (found.verdict, [c.rank for c in found.candidates]) == (verdict, [0] * (verdict != "healthy"))


def test_program_without_traces_leaves_the_rank_open(tmp_path):
    found = asked(tmp_path, Beside(slow={6}), lost=ENCODERS)
    assert (found.verdict, [c.rank for c in found.candidates]) == ("inconclusive", [6])
    assert "ranks 0-3" in found.reason


def test_ranks_of_programs_keep_apart_in_comparisons(tmp_path):
    """Places along the axes of its own program are those of a rank of another program as well."""
    run = load([str(beside(tmp_path, Beside(slow={6})))])
    assert "all 12 recorded places are compared" in diff(run, run).notes
    _, picture = illustrated(run)
    shown = {level.axis: level.indices for level in picture.levels}
    assert shown["dp"] == (0, 1)
    assert set(picture.timeline.ranks) == {*range(4, 12)}
