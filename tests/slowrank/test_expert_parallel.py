"""Experts are an axis of their own: found by groups, named in the path, and blamed for tokens, not ranks."""

import random

import pytest

from tests.slowrank.experts import MEGATRON, TORCHTITAN, Experts
from tests.slowrank.jobs import grid, prepared
from tracekit.analysis.breakdown.analyse import analyse as broken_down
from tracekit.analysis.places import places
from tracekit.analysis.questions.answer import answer as asked
from tracekit.analysis.slowrank.analyse import analyse
from tracekit.analysis.slowrank.decision.decide import first_of
from tracekit.analysis.slowrank.decision.no_culprit import experts_get_uneven_tokens
from tracekit.analysis.slowrank.evidence import Evidence
from tracekit.errors import UsageError
from tracekit.mesh.parts import given_parts
from tracekit.report.slowrank_json import slowrank_document

SHAPES = {
    "dp 4": (2, {"tp": 2, "dp": 4}),
    "whole dp": (4, {"tp": 2, "dp": 4}),
    "pipeline": (2, {"tp": 2, "dp": 4, "pp": 2}),
    "over cp": (4, {"tp": 2, "dp": 2, "cp": 2}),
}
NONE = dict.fromkeys(MEGATRON, "undefined")


def mesh(ep, **sizes):
    return given_parts(grid(**sizes), {"ep": ep}, ())


def shuffled(world, seed):
    """Another number for each rank."""
    called = list(range(world))
    random.Random(seed).shuffle(called)
    return called


def liked(job, tokens=1.5):
    """More tokens for the first ranks of all groups of experts."""
    return {rank: tokens for rank in job.coordinates if job.coords(rank)["ep"] == 0}


@pytest.mark.quick(2)
@pytest.mark.parametrize(
    ("shape", "names"),
    [("dp 4", TORCHTITAN), ("whole dp", MEGATRON), ("pipeline", MEGATRON), ("over cp", TORCHTITAN)],
    ids=SHAPES,
)
def test_slow_rank_is_named_with_experts_in_its_path(tmp_path, shape, names):
    ep, sizes = SHAPES[shape]
    job = mesh(ep, **sizes)
    found = analyse(Experts(job, slow={5: 1.2}, names=names).write(tmp_path))
    assert (found.verdict, found.cause) == ("slow_rank", "gpu_compute")
    assert [s.rank for s in found.suspects] == [5]
    assert found.mesh.parts == {"ep": ep}
    lag = {level.dim: level.lag_ms for level in found.path}
    assert list(lag) == [
        axis for axis in ("dp", "ep", "pp", "cp", "tp") if axis == "ep" or sizes.get(axis, 1) > 1
    ]
    assert lag["ep"] > 3
    assert found.suspects[0].coords["ep"] == job.coords(5)["ep"]


@pytest.mark.quick(1)
@pytest.mark.parametrize("shape", ["dp 4", "pipeline"])
def test_healthy_experts_are_healthy(tmp_path, shape):
    ep, sizes = SHAPES[shape]
    assert analyse(Experts(mesh(ep, **sizes)).write(tmp_path)).verdict == "healthy"


@pytest.mark.quick(1)
@pytest.mark.parametrize("shape", ["dp 4", "whole dp", "pipeline"])
def test_liked_experts_are_no_slow_ranks(tmp_path, shape):
    ep, sizes = SHAPES[shape]
    job = mesh(ep, **sizes)
    found = analyse(Experts(job, liked=liked(job)).write(tmp_path))
    assert (found.verdict, found.cause, found.suspects) == ("imbalance", "data_imbalance", ())


@pytest.mark.parametrize(
    ("missed", "rule"), [(0.5, "experts_get_uneven_tokens"), (2.0, "replay_contradicts")]
)
def test_tokens_explain_no_wrong_matches(tmp_path, missed, rule):
    """The replay misses the recorded waits by less or by more than uneven tokens cost."""
    job = mesh(2, tp=2, dp=4)
    case = prepared(Experts(job, liked=liked(job)).write(tmp_path), job)
    vars(case)["pinned_residual_ns"] = missed * Evidence(case).tokens
    assert first_of(Evidence(case)).rules == (rule,)


@pytest.mark.parametrize(("waited", "verdict"), [(0.5, "imbalance"), (2.0, "inconclusive")])
def test_tokens_explain_no_waits_for_an_unrecorded_rank(tmp_path, monkeypatch, waited, verdict):
    """A recorded rank waits for it alone, for less or for more than uneven tokens cost."""
    job = mesh(2, tp=2, dp=4)
    case = prepared(Experts(job, liked=liked(job)).write(tmp_path), job)
    late = {5: waited * Evidence(case).tokens}
    monkeypatch.setattr("tracekit.analysis.slowrank.decision.no_culprit.late_alone", lambda *_: late)
    found = experts_get_uneven_tokens(Evidence(case))
    assert (found.verdict, [c.rank for c in found.candidates]) == (verdict, [5] if waited > 1 else [])


def test_price_of_liked_experts_is_an_even_share(tmp_path):
    """Half of a group gets half as many tokens more: all of them would get a quarter more if they were dealt evenly."""
    job = mesh(2, tp=2, dp=4)
    (tmp_path / "even").mkdir()
    uneven = analyse(Experts(job, liked=liked(job)).write(tmp_path)).what_if
    even = analyse(Experts(job, liked=dict.fromkeys(job.coordinates, 1.25)).write(tmp_path / "even")).what_if
    assert uneven.step_ms > 1.05 * even.step_ms
    assert uneven.without_suspects_ms == pytest.approx(even.step_ms, rel=0.02)


@pytest.mark.quick(1)
@pytest.mark.parametrize("seed", range(2))
def test_numbering_of_ranks_changes_no_answer(tmp_path, seed):
    ep, sizes = SHAPES["pipeline"]
    job = mesh(ep, **sizes)
    called = shuffled(job.world_size, seed)
    found = analyse(Experts(job, slow={5: 1.2}, called=called).write(tmp_path))
    assert [s.rank for s in found.suspects] == [called[5]]
    assert found.mesh.parts == {"ep": ep}
    assert not [note for note in found.notes if "ignored" in note]


def test_one_group_of_two_kinds_shows_tokens_apart(tmp_path):
    """Experts over all replicas share members with the data-parallel group; all-to-alls are theirs."""
    run = Experts(mesh(4, tp=2, dp=4), slow={5: 1.2}).write(tmp_path)
    assert {spent.axis for spent in broken_down(run).total.exposed} == {"tp", "dp", "ep"}
    assert asked(run, ["axis=ep"]).mesh.parts == {"ep": 4}
    (groups,) = (g for g in places(run).groups if g.axes == ("dp",))
    assert groups.descs == (MEGATRON["dp"], MEGATRON["ep"])


def test_groups_of_experts_are_listed_behind_axes(tmp_path):
    found = places(Experts(mesh(2, tp=2, dp=4)).write(tmp_path))
    kinds = [(*g.axes, g.size) for g in found.groups]
    assert (kinds[:2], sorted(kinds[2:])) == ([("tp", 2), ("dp", 4)], [("edp", 2), ("ep", 2)])
    assert found.headline() == "tp=2, cp=1, pp=1, dp=4; ep=2 inside dp"
    assert found.to_arrow().column("ep").to_pylist() == [0, 0, 1, 1] * 2


def test_slow_link_of_experts_is_their_group(tmp_path):
    job = mesh(2, tp=2, dp=4)
    found = analyse(Experts(job, link={job.line(5, ["ep"]): 8.0}).write(tmp_path))
    assert found.verdict == "slow_link"
    assert {s.rank for s in found.suspects} == set(job.line(5, ["ep"]))


def test_uneven_tokens_tell_experts_that_nothing_names(tmp_path):
    found = analyse(Experts(mesh(2, tp=2, dp=4), slow={5: 1.2}, names=NONE).write(tmp_path))
    assert found.mesh.sizes == {"tp": 2, "cp": 1, "pp": 1, "dp": 4}
    assert found.mesh.parts == {"ep": 2}
    assert [s.rank for s in found.suspects] == [5]


def test_user_gives_experts_that_nothing_names(tmp_path):
    job = mesh(2, tp=2, dp=4)
    run = Experts(job, slow={5: 1.2}, names=NONE, even=True).write(tmp_path)
    found = analyse(run, {"tp": 2, "cp": 1, "dp": 4, "pp": 1, "ep": 2})
    assert [level.dim for level in found.path] == ["dp", "ep", "tp"]
    assert slowrank_document(found)["mesh"]["parts"] == {"ep": 2}


@pytest.mark.parametrize(("ep", "told"), [(4, "have 2 ranks"), (3, "have 2 ranks")])
def test_experts_of_another_size_are_refused(tmp_path, ep, told):
    run = Experts(mesh(2, tp=2, dp=4)).write(tmp_path)
    with pytest.raises(UsageError, match=told):
        analyse(run, {"tp": 2, "dp": 4, "ep": ep})


def test_a_job_without_experts_has_no_such_axis(tmp_path):
    found = analyse(
        Experts(mesh(2, tp=2, dp=4), names=MEGATRON | {"ep": "DATA_PARALLEL_GROUP"}, even=True).write(
            tmp_path
        )
    )
    assert found.mesh.parts == {}
    assert "parts" not in slowrank_document(found)["mesh"]
