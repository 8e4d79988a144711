"""Experts as frameworks spread them: an axis that divides the ranks of a pipeline stage."""

import random
from math import prod

import pytest

from tests.mesh.uses import grid, groups, relabelled
from tracekit.errors import MeshError, UsageError
from tracekit.mesh import GroupUse, infer, parse_mesh, parse_order
from tracekit.mesh.group_descriptions import hinted_part, is_copies
from tracekit.mesh.parse import ranks_in, written
from tracekit.mesh.parts import given_parts, with_parts

TOKENS = {"collectives": 200, "ops": frozenset({"all_to_all"}), "exposed": 1.0}


def spread(ep, **sizes):
    """A mesh whose experts are spread over neighbours."""
    return given_parts(grid(**sizes), {"ep": ep}, ())


def expert_uses(truth, ep="EXPERT_MODEL_PARALLEL_GROUP", copies="EXPERT_DATA_PARALLEL_GROUP", **more):
    found = [GroupUse(tuple(sorted(ranks)), (ep,), **TOKENS | more) for ranks in truth.parts["ep"].groups]
    lines = sorted({truth.copies(rank, "ep") for rank in truth.coordinates})
    return found + [
        GroupUse(ranks, (copies,), 2, ops=frozenset({"all_reduce"})) for ranks in lines if len(ranks) > 1
    ]


@pytest.mark.parametrize(
    ("text", "part", "copies"),
    [
        ("EXPERT_MODEL_PARALLEL_GROUP", "ep", False),
        ("mesh_ep", "ep", False),
        ("mesh_dp_shard_in_ep", "ep", False),
        ("ep_size_4", "ep", False),
        ("EXPERT_DATA_PARALLEL_GROUP", None, True),
        ("INTRA_PARTIAL_EXPERT_DATA_PARALLEL_GROUP", None, True),
        ("mesh_efsdp", None, True),
        ("mesh_dp_shard_mod_ep", None, True),
        ("EXPERT_TENSOR_PARALLEL_GROUP", None, False),
        ("EXPERT_TENSOR_AND_MODEL_PARALLEL_GROUP", None, False),
        ("DATA_PARALLEL_GROUP", None, False),
        ("mesh_dp_shard_cp", None, False),
        ("undefined", None, False),
    ],
)
def test_descriptions_tell_experts_from_their_copies(text, part, copies):
    assert hinted_part([text]) == part
    assert is_copies([text]) == copies


@pytest.mark.parametrize(
    ("ep", "sizes"),
    [
        (2, {"tp": 2, "dp": 4}),
        (4, {"tp": 2, "dp": 4}),  # as many as replicas
        (4, {"tp": 2, "pp": 2, "dp": 4}),
        (4, {"tp": 2, "cp": 2, "dp": 4}),  # over context parallel ranks as well
        (8, {"tp": 2, "dp": 4}),  # over tensor ranks as well: experts are not cut
        (4, {"dp": 8}),
    ],
)
@pytest.mark.parametrize("seed", [None, 0, 1])
def test_groups_tell_experts_in_any_numbering(ep, sizes, seed):
    truth = spread(ep, **sizes)
    called = list(range(truth.world_size))
    if seed is not None:
        random.Random(seed).shuffle(called)
    kinds = [axis for axis in ("tp", "cp", "pp", "dp") if sizes.get(axis, 1) > 1]
    uses = [*groups(truth, kinds, "megatron"), *expert_uses(truth)]
    found = infer(relabelled(uses, called), range(truth.world_size))
    assert found.mesh.sizes == truth.sizes
    assert found.mesh.part_sizes == {"ep": ep}
    assert found.notes == ()
    for rank in truth.coordinates:
        for lines in (lambda m, r: m.line(r, ["ep"]), lambda m, r: m.copies(r, "ep")):
            assert set(lines(found.mesh, called[rank])) == {called[r] for r in lines(truth, rank)}


def test_groups_of_experts_have_axes():
    mesh = spread(2, tp=2, pp=2, dp=4)
    assert mesh.dims_of(mesh.line(0, ["ep"])) == ("ep",)
    assert mesh.dims_of(mesh.copies(0, "ep")) == ("edp",)
    assert mesh.dims_of(mesh.line(0, ["tp", "ep"])) == ("tp", "ep")
    assert mesh.dims_of(mesh.line(0, ["dp"])) == ("dp",)
    assert mesh.dims_of((0, 12)) is None
    assert list(mesh.coords(5)) == ["dp", "ep", "pp", "cp", "tp"]
    assert prod(mesh.sizes.values()) == mesh.world_size


def test_groups_of_lost_ranks_are_placed_as_others():
    truth = spread(2, tp=2, dp=4)
    uses = [u for u in expert_uses(truth) if u.ops == TOKENS["ops"]][:3]
    assert with_parts(grid(tp=2, dp=4), uses).part_sizes == {"ep": 2}
    assert set(map(frozenset, with_parts(grid(tp=2, dp=4), uses).parts["ep"].groups)) == set(
        map(frozenset, truth.parts["ep"].groups)
    )


@pytest.mark.parametrize(
    "ranks", [[(0, 2), (2, 4)], [(0, 1, 2), (3, 4)], [(0, 9)]], ids=["overlap", "sizes", "outside"]
)
def test_groups_that_part_no_mesh_are_no_experts(ranks):
    uses = [GroupUse(r, ("mesh_ep",), **TOKENS) for r in ranks]
    assert with_parts(grid(dp=5), uses).parts == {}


def test_experts_stay_within_a_stage():
    uses = [GroupUse((r, r + 2), ("mesh_ep",), **TOKENS) for r in (0, 1)]
    assert with_parts(grid(("dp", "tp", "cp", "pp"), dp=2, pp=2), uses).parts == {}
    assert with_parts(grid(("tp", "cp", "pp", "dp"), dp=2, pp=2), uses).part_sizes == {"ep": 2}


def test_uneven_tokens_tell_experts_without_description():
    truth = spread(2, tp=2, dp=4)
    dealt = expert_uses(truth, "undefined", "undefined", dealt=True)
    assert with_parts(grid(tp=2, dp=4), dealt).part_sizes == {"ep": 2}
    assert with_parts(grid(tp=2, dp=4), expert_uses(truth, "undefined", "undefined")).parts == {}


def test_copies_called_like_their_experts_stay_apart():
    truth = spread(2, tp=2, dp=4)
    found = with_parts(grid(tp=2, dp=4), expert_uses(truth, "ep_size_2", "ep_size_2"))
    assert {frozenset(g) for g in found.parts["ep"].groups} == {
        frozenset(g) for g in truth.parts["ep"].groups
    }


def test_user_writes_experts_beside_their_axis():
    sizes = parse_mesh("tp=2,dp=4,ep=2")
    assert ranks_in(sizes) == 8
    mesh = given_parts(grid(tp=2, dp=4), sizes, ())
    assert written(mesh) == "tp=2,cp=1,pp=1,dp=4,ep=2"
    assert mesh.parts["ep"].groups[0] == (0, 2)


def test_experts_that_divide_no_stage_are_refused():
    with pytest.raises(MeshError, match="ep=3 does not divide the 8 ranks"):
        given_parts(grid(tp=2, dp=4), {"ep": 3}, ())


def test_experts_have_no_place_in_the_order():
    with pytest.raises(UsageError, match="ep divides the ranks of dp"):
        parse_order("tp,ep,dp,pp")
