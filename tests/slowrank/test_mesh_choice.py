"""The mesh is the user's, the groups' or one flat group; contradictions and gaps are refused with the flag to give."""

from collections import Counter
from dataclasses import replace
from math import prod

import pytest

from tests.slowrank.events import Timeline, write_run
from tests.slowrank.jobs import grid, job
from tests.tables.rows import comm, gemm, recv, send
from tracekit.errors import MeshError, UsageError
from tracekit.inference.mesh.group_contradictions import contradiction
from tracekit.inference.mesh.group_uses import carriers, group_uses, holding, world_of
from tracekit.inference.mesh.mesh_choice import choose
from tracekit.matching.match import match
from tracekit.mesh import GroupUse, from_sizes, parse_mesh
from tracekit.mesh.parse import mesh_remedy
from tracekit.rank_events.operations import read_rank
from tracekit.schema import InferredGroup
from tracekit.store import Run

MESH = grid(tp=2, cp=2, dp=2)


def chosen(run, mesh=None, order=None):
    ops = match([read_rank(run, r.rank) for r in run.ranks], run.groups)
    return choose(run, ops, parse_mesh(mesh) if mesh else None, order)


def bare(folder, calls, world=None) -> Run:
    """Ranks without any process group; `calls`: the operations of each rank."""
    lines = []
    for rank, kinds in calls.items():
        line = Timeline(rank)
        for i, op in enumerate(kinds):
            line.compute(100)
            line.finish(line.post(None, op), 200.0 * (i + 1))
        lines.append(line)
    return replace(write_run(folder, lines, {}, {}, world or len(calls)), groups=())


def test_groups_tell_the_mesh(tmp_path):
    found = chosen(job(tmp_path, MESH))
    assert (found.mesh, found.source) == (MESH, "process_groups")


def test_the_flag_overrides_and_says_so(tmp_path):
    found = chosen(job(tmp_path, MESH), "tp=2,cp=2,pp=1,dp=2")
    assert (found.mesh.sizes, found.source) == (MESH.sizes, "flag")


def test_order_stands_above_the_order_written(tmp_path):
    found = chosen(job(tmp_path, MESH), "dp=2,cp=2,tp=2", ("tp", "cp", "dp", "pp"))
    assert found.mesh.order == ("tp", "cp", "dp", "pp")
    assert all(found.mesh.coords(r) == MESH.coords(r) for r in range(8))


def test_a_flag_of_another_size_is_a_usage_error(tmp_path):
    with pytest.raises(UsageError, match=r"has 16 ranks, but the job has 8 ranks.*with product 8"):
        chosen(job(tmp_path, MESH), "tp=2,cp=2,dp=4")


@pytest.mark.parametrize("mesh", ["tp=4,dp=2", "tp=8", "dp=8"])
def test_a_flag_contradicted_by_groups_names_the_group(tmp_path, mesh):
    with pytest.raises(
        UsageError, match=r"--mesh contradicts the traces: process group \[0, \d.*mesh_.*--order"
    ):
        chosen(job(tmp_path, MESH), mesh)


def test_an_order_that_groups_contradict_is_a_usage_error(tmp_path):
    run = job(tmp_path, grid(tp=2, dp=4))
    assert chosen(run, "tp=2,dp=4").source == "flag"
    with pytest.raises(UsageError, match="correct the sizes or the order"):
        chosen(run, "dp=4,tp=2")


def test_a_manifest_counts_where_groups_are_silent(tmp_path):
    run = bare(tmp_path, {r: ["allreduce"] * 3 for r in range(4)})
    hint = {"order": ["tp", "dp"], "sizes": {"tp": 2, "dp": 2}}
    found = chosen(replace(run, mesh_hint=hint))
    assert (found.source, found.mesh.sizes) == ("manifest", {"tp": 2, "cp": 1, "pp": 1, "dp": 2})


def test_a_manifest_of_another_world_does_not_count(tmp_path):
    run = bare(tmp_path, {r: ["allreduce"] * 3 for r in range(4)})
    found = chosen(replace(run, mesh_hint={"order": ["tp", "dp"], "sizes": {"tp": 2, "dp": 8}}))
    assert found.source == "flat_world"


def test_equal_calls_without_groups_make_one_flat_group(tmp_path):
    found = chosen(bare(tmp_path, {r: ["allreduce", "allgather"] for r in range(4)}))
    assert (found.source, found.mesh.sizes) == ("flat_world", {"tp": 1, "cp": 1, "pp": 1, "dp": 4})
    (row,) = found.quality
    assert (row.kind, row.count) == ("flat_world", 4)
    assert "one data-parallel group" in row.detail


def test_missing_groups_and_rank_ask_for_the_flag(tmp_path):
    run = bare(tmp_path, {r: ["allreduce"] for r in (0, 1, 3)}, world=4)
    with pytest.raises(
        MeshError,
        match="rank 2 is missing, so the mesh is unknown; give the mesh of all 4 ranks, as in --mesh",
    ):
        chosen(run)
    assert chosen(run, "dp=4").source == "flag"


def test_no_groups_and_different_calls_ask_for_the_flag(tmp_path):
    with pytest.raises(MeshError, match=r"ranks 0 and 2 call different collectives.*--mesh"):
        chosen(bare(tmp_path, {0: ["allreduce"], 1: ["allreduce"], 2: ["allgather", "allreduce"]}))


def test_no_communication_at_all_cannot_be_compared(tmp_path):
    lines = [Timeline(r) for r in range(2)]
    for line in lines:
        line.compute(100)
    with pytest.raises(MeshError, match=r"no communication.*record whole training steps"):
        chosen(write_run(tmp_path, lines, {}, {}, 2))


def test_files_and_groups_give_the_world_size(tmp_path):
    run = job(tmp_path, MESH, lost={7})
    ops = match([read_rank(run, r.rank) for r in run.ranks], run.groups)
    assert world_of(run, ops) == tuple(range(8))
    assert world_of(replace(run, world_size=None), ops) == tuple(range(8))  # a group lists rank 7
    assert world_of(replace(run, world_size=16), ops) == tuple(range(16))


def test_messages_without_their_own_group_are_a_pipeline(tmp_path):
    """Ranks 0-1 and 2-3 are tp groups; messages go 0 → 2 and 1 → 3."""
    from tests.tables.rows import group, recorded

    ranks = []
    for r in range(4):
        rows = [gemm(0, 50), comm(50, 10, r // 2, seq=1), gemm(60, 50)]
        rows += [send(110, 10, r, r + 2)] if r < 2 else [recv(110, 10, r - 2, r)]
        ranks.append(recorded(r, *rows))
    groups = (group(0, 0, 1), group(1, 2, 3))
    run = replace(job(tmp_path, grid(dp=4)), groups=groups)
    ops = match(ranks, groups)
    chains = [u for u in group_uses(run, ops) if u.p2p]
    assert [u.ranks for u in chains] == [(0, 2), (1, 3)]
    assert choose(run, ops, None, None).mesh.sizes["pp"] == 2


def test_a_group_that_was_inferred_refuses_nothing(tmp_path):
    """Common ends showed a group of 0 and 3, which fits no mesh with the tensor groups that the files name."""
    run = job(tmp_path, grid(tp=2, dp=2))
    doubted = InferredGroup(len(run.groups), (0, 3), (), ())
    ops = match([read_rank(run, r.rank) for r in run.ranks], run.groups)
    found = choose(replace(run, groups=(*run.groups, doubted)), ops, None, None)
    assert found.mesh.sizes == {"tp": 2, "cp": 1, "pp": 1, "dp": 2}


def test_an_unknown_world_is_said(tmp_path):
    run = replace(bare(tmp_path, {r: ["allreduce"] for r in (0, 1, 3)}), world_size=None)
    with pytest.raises(
        MeshError, match=r"do not show how many ranks the job has \(at least 4\): give its whole mesh"
    ):
        chosen(run)


@pytest.mark.parametrize("world", [1, 2, 6, 8, 61, 64, 1024])
def test_the_remedy_has_as_many_ranks_as_the_job(world):
    told = mesh_remedy(world)
    assert f"all {world} ranks" in told
    assert prod(parse_mesh(told.rsplit(" ", 1)[1]).values()) == world


def test_shards_and_replicas_are_parts_of_one_axis():
    """HSDP divides data parallelism twice; either part alone would leave the axis unexplained."""
    mesh = from_sizes({"tp": 2, "cp": 1, "pp": 1, "dp": 8}, ("tp", "cp", "pp", "dp"))
    shards = [GroupUse(tuple(range(at, at + 8, 2)), ("mesh_dp_shard",), 5) for at in (0, 1, 8, 9)]
    replicas = [GroupUse((at, at + 8), ("mesh_dp_replicate",), 5) for at in range(8)]
    assert contradiction(mesh, [*shards, *replicas]) is None
    assert contradiction(mesh, shards) is shards[0]
    unused = [replace(use, collectives=0) for use in replicas]
    assert contradiction(mesh, [*shards, *unused]) is None
    assert contradiction(mesh, unused) is None
    bare = [replace(use, descs=()) for use in (*shards, *replicas)]
    assert contradiction(mesh, bare) is bare[0]
    assert contradiction(mesh, bare, inferred=True) is None
    wider = [GroupUse(tuple(range(at, at + 4)), (), 5) for at in range(0, 16, 4)]
    assert contradiction(mesh, [*shards, *replicas, *wider], inferred=True) is wider[0]
    assert contradiction(mesh, [GroupUse((0, 14), (), 5), GroupUse((0, 99), (), 5)]).ranks == (0, 99)


def test_shards_over_context_and_data_fit_their_axes():
    """FSDP shards over both axes and is called after data parallelism; over tensor parallelism it never does."""
    mesh = from_sizes({"tp": 2, "cp": 2, "pp": 1, "dp": 4}, ("tp", "cp", "pp", "dp"))
    replicas = [GroupUse((at, at + 8), ("mesh_dp_replicate",), 5) for at in range(8)]
    shards = [GroupUse(tuple(range(at, at + 8, 2)), ("mesh_dp_shard",), 5) for at in (0, 1, 8, 9)]
    assert contradiction(mesh, [*shards, *replicas]) is None
    across = [GroupUse((0, 1, 4, 5), ("mesh_dp_shard",), 5), *replicas]
    assert contradiction(mesh, across) is across[0]


def test_a_named_pipeline_carries_its_messages():
    pairs = Counter({(8, 10): 4, (12, 14): 4, (0, 2): 4, (2, 4): 4, (4, 6): 4})
    lines = [(0, 2, 4, 6), (8, 10, 12, 14)]
    assert holding(lines, pairs) == lines
    assert carriers(lines, pairs, holding(lines, pairs)) == {(0, 2, 4, 6): 12, (8, 10, 12, 14): 8}
    assert carriers([], pairs, []) == {(0, 2, 4, 6): 12, (8, 10): 4, (12, 14): 4}


@pytest.mark.parametrize(
    "given", [("dp=2,cp=2,tp=2",), (None, ("dp", "cp", "pp", "tp")), ("tp=8",), ("tp=2",)]
)
def test_a_refusal_says_what_the_groups_say(tmp_path, given):
    with pytest.raises(UsageError, match=r"the groups say --mesh tp=2,cp=2,pp=1,dp=2"):
        chosen(job(tmp_path, MESH), *given)


def test_an_order_names_axes_that_nothing_describes(tmp_path):
    run = job(tmp_path, MESH, descs="undefined")
    assert chosen(run, None, ("dp", "cp", "tp", "pp")).mesh.order[0] == "dp"
