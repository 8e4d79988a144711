"""The mesh from process groups alone, as launchers make them and in every numbering of ranks."""

from math import prod

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.mesh.uses import AXIS_KINDS, STYLES, grid, groups, members, relabelled, same_lines
from tracekit.axes import AXES
from tracekit.errors import MeshError
from tracekit.inference.mesh.group_contradictions import contradiction
from tracekit.mesh import GroupUse, infer

ORDERS = (("tp", "cp", "pp", "dp"), ("tp", "cp", "dp", "pp"))
QUICK = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
SIZES = st.fixed_dictionaries({d: st.sampled_from([1, 2, 2, 3, 4]) for d in AXES}).filter(
    lambda s: 4 <= prod(s.values()) <= 48 and sum(n > 1 for n in s.values()) >= 2
)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize(
    "sizes",
    [
        {"tp": 2, "cp": 2, "pp": 2, "dp": 2},
        {"tp": 4, "pp": 3, "dp": 2},
        {"cp": 2, "dp": 4},
        {"tp": 8, "dp": 2},
        {"pp": 4, "dp": 4},
    ],
)
def test_named_groups_give_the_mesh_in_either_order(style, order, sizes):
    truth = grid(order, **sizes)
    found = infer(groups(truth, style=style), range(truth.world_size))
    assert found.mesh.sizes == truth.sizes
    assert [d for d in found.mesh.order if truth.sizes[d] > 1] == [d for d in order if truth.sizes[d] > 1]
    assert all(found.mesh.coords(r) == truth.coords(r) for r in range(truth.world_size))
    assert not found.flat
    assert found.notes == ()


@pytest.mark.parametrize("style", STYLES)
def test_groups_along_several_axes_are_unions_not_axes(style):
    truth = grid(tp=2, cp=2, pp=2, dp=2)
    kinds = [*AXIS_KINDS, "dp_cp", "tp_cp", "mp"]
    found = infer(groups(truth, kinds, style), range(16))
    assert found.mesh.sizes == truth.sizes
    assert same_lines(found.mesh, truth)


@pytest.mark.parametrize("style", STYLES)
def test_dp_is_what_a_union_has_beyond_cp(style):
    truth = grid(tp=2, cp=2, dp=4)
    found = infer(groups(truth, ["tp", "cp", "dp_cp"], style), range(16))
    assert found.mesh.sizes == truth.sizes
    assert same_lines(found.mesh, truth)


def test_shards_beside_replicas_are_data_parallel():
    """Shards that hold the context parallel ranks leave an axis of data beside the one that is called replicas."""
    truth = grid(tp=2, cp=2, dp=4)
    uses = groups(truth, ["tp", "cp"])
    shards = [tuple(r for r in range(16) if r % 2 == t and r // 8 == k) for t in (0, 1) for k in (0, 1)]
    uses += [GroupUse(ranks, ("mesh_dp_shard",), collectives=8) for ranks in shards]
    uses += [GroupUse((r, r + 8), ("mesh_dp_replicate",), collectives=8) for r in range(8)]
    found = infer(uses, range(16))
    assert found.mesh.sizes == truth.sizes
    assert same_lines(found.mesh, truth)


def test_the_group_of_everybody_is_no_axis():
    truth = grid(tp=2, dp=4)
    world = GroupUse(tuple(range(8)), ("default_pg",), collectives=9)
    assert infer([*groups(truth), world], range(8)).mesh.sizes == truth.sizes


def test_groups_of_no_axis_are_ignored_with_a_word():
    truth = grid(tp=2, pp=2, dp=4)
    extra = [
        GroupUse((0, 1, 4, 5), ("EXPERT_MODEL_PARALLEL_GROUP",), 12),
        GroupUse((1, 2, 6, 7), ("EXPERT_MODEL_PARALLEL_GROUP",), 12),
        *(GroupUse(g, ("EMBEDDING_GROUP",), 1) for g in members(truth, ["pp"])[:3]),
    ]
    found = infer([*groups(truth, style="megatron"), *extra], range(16))
    assert found.mesh.sizes == truth.sizes
    assert same_lines(found.mesh, truth)
    (note,) = found.notes
    assert "ignored" in note
    assert "EXPERT_MODEL_PARALLEL_GROUP" in note


@pytest.mark.parametrize(
    ("dense", "experts"),
    [
        ({"tp": 4, "dp": 4}, {"tp": 2, "cp": 4, "dp": 2}),
        ({"tp": 2, "dp": 6, "pp": 2}, {"tp": 1, "cp": 6, "dp": 2, "pp": 2}),
        ({"tp": 2, "cp": 2, "dp": 6, "pp": 2}, {"tp": 4, "cp": 3, "dp": 2, "pp": 2}),
    ],
)
def test_undescribed_groups_of_experts_add_no_axis(dense, experts):
    """Experts part the ranks of a stage into groups of other sizes: a second mesh of the same ranks."""
    order = ("tp", "cp", "dp", "pp")
    truth, second = grid(order, **dense), grid(order, **experts)
    uses = groups(truth, ["tp", "cp", "dp_cp", "pp"] if "cp" in dense else ["tp", "dp", "pp"], "megatron")
    described = {use.ranks for use in uses}
    uses += [u for u in groups(second, ["tp", "cp", "dp"], None) if u.ranks not in described]
    found = infer(uses, range(truth.world_size))
    assert found.mesh.sizes == truth.sizes
    assert same_lines(found.mesh, truth)
    assert contradiction(found.mesh, uses, inferred=True) is None
    stranger = GroupUse((0, 3, 5), collectives=3, ops=frozenset({"all_reduce"}))
    assert contradiction(found.mesh, [*uses, stranger], inferred=True) == stranger


def test_shards_over_context_ranks_are_data():
    """Hybrid sharding without names: parameters are sharded over cp and half of dp, gradients reduced over the rest."""
    truth = grid(tp=2, cp=2, pp=2, dp=8)
    both = {"collectives": 6, "ops": frozenset({"all_gather", "reduce_scatter"}), "exposed": 0.2}
    whole = members(truth, ("cp", "dp"))
    shards = [tuple(r for r in m if r // 32 == half) for m in whole for half in (0, 1)]
    replicas = [(r, r + 32) for r in range(32)]
    uses = [*groups(truth, ["tp", "cp"], None), *(GroupUse(ranks, **both) for ranks in shards)]
    uses += [GroupUse(ranks, collectives=2, ops=frozenset({"all_reduce"})) for ranks in replicas]
    programs = {rank: (("all_gather", 10 + truth.stage(rank)),) for rank in truth.coordinates}
    found = infer(uses, range(64), programs=programs)
    assert found.mesh.sizes == truth.sizes
    assert contradiction(found.mesh, uses, inferred=True) is None


@pytest.mark.parametrize("beside", [False, True])
def test_a_silent_axis_with_other_programs_is_piped(beside):
    """Some ranks broadcast beside compute, so that programs differ along tp as well; shards have no group alone."""
    truth = grid(tp=2, cp=2, pp=2, dp=4)
    shards = [
        GroupUse(ranks, collectives=6, ops=frozenset({"all_gather"}))
        for ranks in members(truth, ("cp", "dp"))
    ]
    uses = [*groups(truth, ["tp", "cp"], None), *shards]
    programs = {
        r: (("all_gather", 10 + truth.stage(r) + (5 if beside and r % 2 else 0)),) for r in truth.coordinates
    }
    found = infer(uses, range(32), programs=programs)
    assert found.mesh.sizes == truth.sizes
    assert same_lines(found.mesh, truth)


@pytest.mark.parametrize("calls", [16, 400])
def test_an_axis_has_a_name_of_its_description(calls):
    """Messages without a peer, as those inside tensor parallelism, make no pipeline of an axis that is another one."""
    truth = grid(tp=4, dp=2)
    habits = {"collectives": calls, "ops": frozenset({"all_gather", "reduce_scatter"}), "exposed": 0.9}
    copies = [
        GroupUse(m, ("DATA_PARALLEL_GROUP_WITH_CP",), alternation=1.0, **habits)
        for m in members(truth, ("dp",))
    ]
    uses = [*groups(truth, ["tp"], "megatron"), *copies]
    found = infer(uses, range(8), programs=dict.fromkeys(range(8), (("message", 96),)))
    assert found.mesh.sizes == truth.sizes


def test_an_axis_without_groups_is_the_remaining_factor():
    truth = grid(tp=2, pp=2, dp=2)
    found = infer(groups(truth, ["tp", "pp"]), range(8))
    assert found.mesh.sizes == truth.sizes
    assert same_lines(found.mesh, truth)
    assert any("without groups of its own" in n for n in found.notes)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(
    "sizes",
    [
        {"tp": 2, "cp": 2, "pp": 2, "dp": 2},
        {"tp": 4, "dp": 2},
        {"tp": 2, "pp": 2, "dp": 3},
        {"cp": 2, "pp": 2, "dp": 2},
    ],
)
def test_anonymous_groups_are_named_by_what_they_do(order, sizes):
    truth = grid(order, **sizes)
    found = infer(groups(truth, style=None), range(truth.world_size))
    assert found.mesh.sizes == truth.sizes
    assert same_lines(found.mesh, truth)
    assert any("named by their use and position" in n for n in found.notes)


def test_order_names_the_axes_that_nothing_describes():
    truth = grid(("pp", "tp", "cp", "dp"), pp=2, tp=2, cp=2, dp=2)
    idle = [GroupUse(u.ranks) for u in groups(truth, style=None)]
    found = infer(idle, range(16), ("pp", "tp", "cp", "dp"))
    assert found.mesh.sizes == truth.sizes
    assert found.mesh.order == ("pp", "tp", "cp", "dp")
    assert same_lines(found.mesh, truth)


def test_a_pipeline_of_messages_is_the_pp_axis():
    truth = grid(tp=2, pp=4)
    chains = [GroupUse(g, (), 0, 1, frozenset({"p2p"})) for g in members(truth, ["pp"])]
    found = infer([*groups(truth, ["tp"]), *chains], range(8))
    assert found.mesh.sizes == {"tp": 2, "cp": 1, "pp": 4, "dp": 1}
    assert same_lines(found.mesh, truth)


def test_chains_known_in_parts_name_the_pipeline():
    """Messages of the recorded ranks show parts of two pipelines of four: they are no groups of two or three."""
    truth = grid(("pp", "dp"), pp=4, dp=2)
    named = [GroupUse(g, (), 5, ops=frozenset({"all_reduce"})) for g in members(truth, ["dp"])]
    parts = [GroupUse(c, (), 0, 9, frozenset({"p2p"}), partial=True) for c in ((2, 3), (5, 6, 7))]
    found = infer([*named, *parts], range(8))
    assert found.mesh.sizes == {"tp": 1, "cp": 1, "pp": 4, "dp": 2}
    assert same_lines(found.mesh, truth)


def test_groups_that_send_tokens_to_experts_are_data_parallel():
    truth = grid(("pp", "dp"), pp=4, dp=2)
    busy = {"collectives": 400, "ops": frozenset({"all_to_all", "all_gather"}), "exposed": 1.0}
    uses = [GroupUse(g, (), **busy) for g in members(truth, ["dp"])]
    chains = [GroupUse(g, (), 0, 9, frozenset({"p2p"})) for g in members(truth, ["pp"])]
    assert infer([*uses, *chains], range(8)).mesh.sizes == {"tp": 1, "cp": 1, "pp": 4, "dp": 2}


@pytest.mark.parametrize(
    ("descs", "dim"),
    [
        (("mesh_tp",), "tp"),
        (("PIPELINE_MODEL_PARALLEL_GROUP",), "pp"),
        (("default_pg", "mesh_cp"), "cp"),
        (("mesh_dp_shard",), "dp"),
    ],
)
def test_a_description_names_the_axis_of_the_world(descs, dim):
    found = infer([GroupUse(tuple(range(4)), descs, 10)], range(4))
    assert found.mesh.sizes == dict.fromkeys(AXES, 1) | {dim: 4}
    assert not found.flat


@pytest.mark.parametrize(
    ("inner", "everybody", "rest"),
    [
        ("CONTEXT_PARALLEL_GROUP", "DATA_PARALLEL_GROUP_WITH_CP", "dp"),
        ("TENSOR_MODEL_PARALLEL_GROUP", "MODEL_PARALLEL_GROUP", "pp"),
    ],
)
def test_a_group_of_everybody_leaves_one_name(inner, everybody, rest):
    """Messages to unknown peers, as all-to-alls without arguments seem to be, do not make the other axis a pipeline."""
    pairs = [GroupUse((r, r + 1), (inner,), 10) for r in range(0, 8, 2)]
    world = GroupUse(tuple(range(8)), ("default_pg", everybody), 5)
    sizes = infer([*pairs, world], range(8), programs=dict.fromkeys(range(8), ("send_recv", 4))).mesh.sizes
    assert sizes[rest] == 4
    assert sorted(sizes.values()) == [1, 1, 2, 4]


@pytest.mark.parametrize("uses", [[], [GroupUse((0, 1, 2, 3), ("default_pg",), 10)]])
def test_an_undivided_world_is_flat_and_says_so(uses):
    found = infer(uses, range(4))
    assert found.flat
    assert found.mesh.sizes == {"tp": 1, "cp": 1, "pp": 1, "dp": 4}
    assert any("taken as one data-parallel group" in n for n in found.notes)


def test_groups_that_contradict_each_other_ask_for_the_flag():
    """Each pair of axes fits, but tp and dp of one half are twisted: the cp index of a rank is no longer defined."""
    pairs = {
        "mesh_tp": [(0, 1), (2, 3), (4, 5), (6, 7)],
        "mesh_cp": [(0, 2), (1, 3), (4, 6), (5, 7)],
        "mesh_dp": [(0, 4), (1, 5), (2, 7), (3, 6)],
    }
    uses = [GroupUse(g, (desc,), 5) for desc, mine in pairs.items() for g in mine]
    with pytest.raises(MeshError, match="contradict each other"):
        infer(uses, range(8))


@pytest.mark.parametrize("lost", range(4))
def test_a_partial_family_is_completed_by_its_pattern(lost):
    truth = grid(tp=2, pp=2, dp=2)
    uses = [u for u in groups(truth) if u.ranks != truth.line(2 * lost, ["tp"])]
    found = infer(uses, range(8))
    assert found.mesh.sizes == truth.sizes
    assert same_lines(found.mesh, truth)


@pytest.mark.parametrize("lost", range(16))
def test_groups_of_a_lost_rank_are_not_needed(lost):
    """The files of the other ranks list their own groups only, so groups of a lost rank's peers still stand there."""
    truth = grid(("tp", "cp", "dp", "pp"), tp=2, cp=2, pp=2, dp=2)
    uses = [u for u in groups(truth) if set(u.ranks) != {lost}]
    hidden = truth.line(lost, ["tp"])
    found = infer([u for u in uses if u.ranks != hidden], range(16))
    assert found.mesh.sizes == truth.sizes
    assert same_lines(found.mesh, truth)


@QUICK
@given(SIZES, st.sampled_from(ORDERS), st.sampled_from(sorted(STYLES)), st.randoms(use_true_random=False))
def test_any_numbering_of_ranks_gives_the_same_mesh(sizes, order, style, random):
    truth = grid(order, **sizes)
    labels = list(range(truth.world_size))
    random.shuffle(labels)
    uses = relabelled(groups(truth, style=style), labels)
    random.shuffle(uses)
    found = infer(uses, range(truth.world_size))
    assert found.mesh.sizes == truth.sizes
    for r in range(truth.world_size):
        for d in AXES:
            assert found.mesh.line(labels[r], [d]) == tuple(sorted(labels[o] for o in truth.line(r, [d])))


@QUICK
@given(SIZES, st.sampled_from(ORDERS), st.randoms(use_true_random=False))
def test_the_order_of_groups_does_not_matter(sizes, order, random):
    truth = grid(order, **sizes)
    uses = groups(truth, style=None)
    before = infer(uses, range(truth.world_size))
    random.shuffle(uses)
    after = infer(uses, range(truth.world_size))
    assert (after.mesh, after.notes) == (before.mesh, before.notes)
