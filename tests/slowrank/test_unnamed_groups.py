"""Streams tell the groups of collectives that name none, and that their kernels are collectives at all."""

from dataclasses import replace

import numpy as np
import pytest

from tests.mesh.uses import members
from tests.slowrank.events import Timeline, write_run
from tests.slowrank.jobs import grid, job
from tests.tables.rows import bare, comm, gemm, recorded, row, step
from tracekit.analysis.slowrank.analyse import analyse
from tracekit.case.opened import matched
from tracekit.inference.groups.groups_by_place import with_groups_of_places
from tracekit.inference.groups.stream_sequences import stream_classes
from tracekit.inference.groups.unnamed_groups import with_groups_of_streams, with_rare_groups
from tracekit.matching.clock import align
from tracekit.matching.match import match
from tracekit.schema import Group, InferredGroup

MESH = {"tp": 2, "cp": 1, "pp": 1, "dp": 4}
GENERIC = "ncclDevKernel_Generic_1(ncclDevKernelArgsStorage<4096ul>)"


def generic(ranks, seed=0, calls=20):
    """Ranks whose tensor groups run one kind of kernel, as RCCL does, on streams of their own."""
    rng = np.random.default_rng(seed)
    lines = {r: [] for r in range(8)}
    for group in ((0, 1), (2, 3), (4, 5), (6, 7)):
        for call in range(calls):
            begins = 1000.0 * call + rng.uniform(0, 300, 2)
            for rank, begin in zip(group, begins.tolist(), strict=True):
                end = 1000.0 * call + begins.max() % 1000 + 100 + rng.uniform(0, 1)
                lines[rank] += [row("kernel", GENERIC, begin, end - begin, stream=20), gemm(end + 1, 90)]
    return [recorded(r, *lines[r]) for r in ranks]


@pytest.mark.parametrize("mesh", [MESH, None], ids=["mesh given", "mesh told by ends"])
@pytest.mark.parametrize("ranks", [range(8), (0, 1, 3, 4, 5, 6)], ids=["all", "a subset"])
def test_generic_kernels_that_end_together_are_collectives(tmp_path, ranks, mesh):
    run = replace(job(tmp_path, grid(dp=8)), groups=())
    found, named = with_groups_of_streams(run, generic(ranks), mesh, None)
    members = {g.group: g.ranks for g in found.groups}
    for rank in named:
        assert {members[int(n)] for n in rank.group} == {(rank.rank // 2 * 2, rank.rank // 2 * 2 + 1)}
        assert set(rank.op) == {"collective"}
    assert all(isinstance(g, InferredGroup) for g in found.groups)


def test_programs_tell_the_pipeline_of_ends(tmp_path):
    """Ends show shards over cp and half of dp, and all of dp on a few ranks; messages between stages name no peer."""
    truth, rng = grid(tp=2, cp=2, pp=2, dp=8), np.random.default_rng(0)
    lines = {rank: [bare(90.0, 5, 1, stream=40), bare(95.0, 5, 2, stream=40)] for rank in range(64)}
    shards = [tuple(r for r in m if r // 32 == h) for m in members(truth, ("cp", "dp")) for h in (0, 1)]
    uses = [
        ("allgather", members(truth, ("tp",)), 40),
        ("allgather", members(truth, ("cp",)), 20),
        ("reduce_scatter", shards, 8),
        ("allreduce", [(r, r + 32) for r in range(32)], 6),
        ("broadcast", [m for m in members(truth, ("dp",)) if m[0] in {2, 6, 7}], 8),
    ]
    for stream, (op, groups, calls) in enumerate(uses, 20):
        for group in groups:
            for call in range(calls + (2 if truth.stage(group[0]) else 0)):
                at = 1000.0 * (100 * stream + call)
                begins = at + rng.uniform(0, 300, len(group))
                for rank, begin in zip(group, begins.tolist(), strict=True):
                    lasts = begins.max() + 100 + rng.uniform(0, 1) - begin
                    lines[rank].append(comm(begin, lasts, None, op, stream=stream))
    run = replace(job(tmp_path, grid(dp=64)), groups=())
    found, _ = with_groups_of_streams(run, [recorded(r, *lines[r]) for r in range(64)], None, None)
    assert {g.ranks for g in found.groups} >= {*uses[0][1], *uses[2][1], *uses[4][1]}


def rare_calls(folder, line_ends, groups, more=lambda rank: [], size=None):
    """(run, operations): everybody's collective is named and aligns the clocks; two calls of lines name no group.

    The lines hold the ranks that leave together, `groups` what the files list, `more` further rows of a rank, and
    `size` what calls count.
    """
    rng = np.random.default_rng(3)
    lines = {r: [] for r in range(8)}
    for call in range(12):
        for rank in range(8):
            lines[rank].append(comm(1000.0 * call + rank, 20 - rank, 0, seq=call))
    for call in (3, 7):
        for line in line_ends:
            begins = 1000.0 * call + rng.uniform(100, 400, len(line))
            for rank, begin in zip(line, begins.tolist(), strict=True):
                lines[rank].append(
                    comm(
                        begin, begins.max() + 50 + rng.uniform(0, 1) - begin, None, stream=20, group_size=size
                    )
                )
    for rank in range(8):
        lines[rank] += more(rank)
    run = job(folder, grid(dp=8))
    lists = [tuple(g.group for g in groups if r.rank in g.ranks) for r in run.ranks]
    records = tuple(replace(r, groups=found) for r, found in zip(run.ranks, lists, strict=True))
    run = replace(run, groups=groups, ranks=records)
    return run, match([recorded(r, *lines[r], groups=[groups[0]]) for r in range(8)], run.groups)


def test_a_late_rank_without_the_last_step_is_compared(tmp_path):
    """All wait for rank 2, whose window ends before its last call; two ranks each come together otherwise."""
    lines = {}
    for rank in range(8):
        begins = [1000.0 * n + (900 if rank == 2 else 100 * (rank // 2)) for n in range(5)]
        calls = [comm(at, 950 - at % 1000, None, stream=20) for at in begins[: 4 if rank == 2 else 5]]
        lines[rank] = [*calls, *(step(n, 1000.0 * n, 1000) for n in range(5))]
    run = replace(job(tmp_path, grid(dp=8)), groups=())
    found, named = with_groups_of_streams(
        run, [recorded(r, *lines[r]) for r in range(8)], {"tp": 2, "pp": 4}, None
    )
    members = {g.group: g.ranks for g in found.groups}
    assert {members[int(n)] for rank in named for n in rank.group} == {tuple(range(8))}


WORLD = Group(0, tuple(range(8)), (), ())
ODD, EVEN = tuple(range(1, 8, 2)), tuple(range(0, 8, 2))


def test_a_common_clock_tells_the_groups_of_rare_calls(tmp_path):
    run, ops = rare_calls(tmp_path, (EVEN, ODD), (WORLD,))
    found, ops = with_rare_groups(run, ops, grid(tp=2, dp=4))
    members = {g.group: g.ranks for g in found.groups}
    for rank, line in ops.per_rank.items():
        assert {members[int(n)] for n in line.group} == {tuple(range(8)), tuple(range(rank % 2, 8, 2))}
    assert (ops.instance >= 0).all()


@pytest.mark.parametrize(("world", "listed"), [(8, False), (8, True), (None, False)])
def test_a_stream_before_torch_2_3_has_one_group(tmp_path, world, listed):
    """Reduce-scatters end apart, as behind a slow link; the group of their stream's all-reduces is theirs as well."""

    def apart(rank):
        return [comm(1000.0 * n + 500, 20 + 9 * rank * n, None, "reduce_scatter", stream=20) for n in (3, 7)]

    run, ops = rare_calls(tmp_path, (EVEN, ODD), (WORLD,), apart)
    records = tuple(replace(r, groups=(0,) if listed else (), world_size=world) for r in run.ranks)
    found, ops = with_rare_groups(replace(run, ranks=records), ops, grid(tp=2, dp=4))
    members = {g.group: g.ranks for g in found.groups}
    for rank, line in ops.per_rank.items():
        groups = line.group[np.array(line.op) == "reduce_scatter"].tolist()
        own = EVEN if rank % 2 == 0 else ODD
        assert [members.get(n) for n in groups] == [own if world and not listed else None] * 2


def test_a_refuted_group_leaves_no_operation_behind(tmp_path):
    """In the steps all ranks leave apart; the one operation before them had its group from these."""
    lines = {rank: [comm(0, 90, 0, "reduce", stream=20)] for rank in range(8)}
    for rank, line in lines.items():
        for call in range(1, 9):
            at = 1000.0 * call
            line += [step(call, at, 900), comm(at + rank, 200 - rank, 0, seq=call, stream=24)]
            line += [comm(at + 300, 100 + 50 * rank * (call % 3), 0, "reduce", stream=20)]
    run = replace(job(tmp_path, grid(dp=8)), groups=(WORLD,))
    ranks = [recorded(r, *lines[r], groups=[WORLD]) for r in range(8)]
    reduces = [np.array(r.op) == "reduce" for r in ranks]
    ops = match([replace(r, inferred=mine) for r, mine in zip(ranks, reduces, strict=True)], run.groups)
    _, found = with_groups_of_places(run, list(ops.per_rank.values()), grid(tp=2, dp=4), align(ops))
    assert all(set(r.group[mine].tolist()) == {-1} for r, mine in zip(found, reduces, strict=True))


def test_streams_of_other_groups_run_a_kind_as_often(tmp_path):
    """Ranks 0-3 are one group, in which pairs come together; on the other stage each pair is a group of its own."""
    groups = (WORLD, *(Group(n, m, (), ()) for n, m in enumerate([(0, 1, 2, 3), (4, 5), (6, 7)], 1)))
    lines = {rank: [] for rank in range(8)}
    for call in range(1, 9):
        for rank, line in lines.items():
            at, pair = 1000.0 * call, rank // 2
            line += [step(call, at, 900), comm(at + rank, 20 - rank, 0, seq=call, stream=24)]
            for begin in (at + 300, at + 600):
                late = (pair * call % 3) * 40 + 60 * (rank % 2)
                alone, ends = (
                    (begin + late, begin + (pair * call % 3) * 40 + 61),
                    (begin + 100 * pair, begin + 150),
                )
                begins, end = ends if rank < 4 else alone
                line.append(comm(begins, end - begins, max(1, pair), "reduce_scatter", stream=20))
    ranks = [recorded(r, *lines[r], groups=groups) for r in range(8)]
    scatters = [np.array(r.op) == "reduce_scatter" for r in ranks]
    ranks = [replace(r, inferred=mine) for r, mine in zip(ranks, scatters, strict=True)]
    run = replace(job(tmp_path, grid(dp=8)), groups=groups)
    ops = match(ranks, run.groups)
    found, named = with_groups_of_places(run, list(ops.per_rank.values()), grid(cp=2, dp=2, pp=2), align(ops))
    members = {g.group: g.ranks for g in found.groups}
    for rank, mine in zip(named, scatters, strict=True):
        own = next(g.ranks for g in groups[1:] if rank.rank in g.ranks)
        assert {members[int(n)] for n in rank.group[mine]} == {own}


def test_groups_of_rare_calls_divide_a_flat_world(tmp_path):
    """The mesh is chosen before a common clock shows these groups, as one group of all ranks, and again with them."""
    lines = ((0, 1, 2, 3), (4, 5, 6, 7))
    run, ops = rare_calls(tmp_path, lines, (WORLD,), size=4)
    found, ops, choice = matched(run, list(ops.per_rank.values()), None, None)
    assert {g.ranks for g in found.groups} == {WORLD.ranks, *lines}
    assert choice.source == "process_groups"
    assert sorted(size for size in choice.mesh.sizes.values() if size > 1) == [2, 4]


def test_groups_of_rare_calls_divide_an_axis(tmp_path):
    """Four ranks beside each tensor group were one axis for want of these groups; each group holds two of them."""
    pairs, lines = ((0, 1), (2, 3), (4, 5), (6, 7)), ((0, 2), (1, 3), (4, 6), (5, 7))
    groups = (WORLD, *(Group(n, members, (), ()) for n, members in enumerate(pairs, 1)))

    def tensor(rank):
        return [comm(1000.0 * n + 600 + rank % 2, 20, 1 + rank // 2, seq=n) for n in range(12)]

    run, ops = rare_calls(tmp_path, lines, groups, tensor, size=2)
    run = replace(run, ranks=tuple(replace(r, groups=()) for r in run.ranks))  # files list no groups
    found, _, choice = matched(run, list(ops.per_rank.values()), None, None)
    assert {g.ranks for g in found.groups} == {WORLD.ranks, *pairs, *lines}
    assert sorted(size for size in choice.mesh.sizes.values() if size > 1) == [2, 2, 2]


@pytest.mark.parametrize("listed", [True, False])
def test_a_group_that_no_file_lists_is_none(tmp_path, listed):
    """Files list groups: what leaves together without being one of them is no group, as on clocks that are wrong."""
    more = (EVEN, ODD) if listed else ((0, 1, 2, 3), (4, 5, 6, 7))
    groups = (WORLD, *(Group(n, members, (), ()) for n, members in enumerate(more, 1)))
    run, ops = rare_calls(tmp_path, (EVEN, ODD), groups)
    _, ops = with_rare_groups(run, ops, grid(tp=2, dp=4))
    for rank, line in ops.per_rank.items():
        assert set(line.group.tolist()) == {0, 1 + rank % 2 if listed else -1}


@pytest.mark.parametrize(
    ("others", "told"), [((4, 2), {20: 4, 24: 2}), ((4, 4), {20: 4, 24: 4}), ((2, -1), {20: 2, 24: -1})]
)
def test_other_ranks_tell_a_lost_size(others, told):
    """Rank 0 lost the arguments of all calls of its second stream; the others tell what their two streams count."""

    def calls(*sizes):
        streams = [s for s in zip((20, 24), sizes, strict=True) for _ in range(4)]
        told = ({} if size < 0 else {"group_size": size} for _, size in streams)
        return [
            comm(1000.0 * n, 90, None, stream=s, **m)
            for n, ((s, _), m) in enumerate(zip(streams, told, strict=True))
        ]

    ranks = [recorded(r, *calls(others[0], others[1] if r else -1)) for r in range(4)]
    sizes = {c.streams[0]: c.size for c in stream_classes(ranks)}
    assert sizes == told


def test_a_collective_that_counts_everybody_is_the_worlds(tmp_path):
    """Two calls alone tell no group by their ends; that they count eight members of eight does."""
    ranks = [
        recorded(r, *[comm(1000.0 * n + r, 90 - r, None, stream=20, group_size=8) for n in range(2)])
        for r in range(8)
    ]
    run = replace(job(tmp_path, grid(dp=8)), groups=())
    found, named = with_groups_of_streams(run, ranks, None, None)
    members = {g.group: g.ranks for g in found.groups}
    assert all({members[int(n)] for n in rank.group} == {tuple(range(8))} for rank in named)


def graphs(calls, shift, size=None, counted=np.inf):
    """A few collectives of eight ranks that name no group; those of odd ranks end ever later by `shift` ns.

    The first of them count `size` members, as many as are `counted`.
    """
    return [
        recorded(
            r,
            *[
                comm(
                    *(1000.0 * n + 10 * r, 90 - 10 * r + (shift * n * n if r % 2 else 0), None),
                    stream=20,
                    group_size=size if n < counted else None,
                )
                for n in range(calls)
            ],
        )
        for r in range(8)
    ]


@pytest.mark.parametrize(
    ("sizes", "calls", "shift", "size", "named"),
    [
        ((8,), 2, 0, None, True),
        ((8, 4), 2, 0, None, False),
        ((8,), 5, 40, None, False),
        ((8,), 2, 0, 4, False),
    ],
)
def test_the_only_listed_group_takes_what_names_none(tmp_path, sizes, calls, shift, size, named):
    """Unless a file lists another group, members leave one by one, or calls count fewer members."""
    listed = tuple(Group(n, tuple(range(size)), (), ()) for n, size in enumerate(sizes))
    run = job(tmp_path, grid(dp=8))
    records = tuple(replace(r, groups=tuple(range(len(listed)))) for r in run.ranks)
    run = replace(run, groups=listed, ranks=records)
    _, found = with_groups_of_streams(run, graphs(calls, shift, size), None, None)
    assert all((rank.group == 0).all() == named for rank in found)


@pytest.mark.parametrize(("size", "counted", "group"), [(4, 5, 1), (4, 1, -1), (2, 5, -1), (None, 5, -1)])
def test_only_listed_group_of_a_size_takes_its_streams(tmp_path, size, counted, group):
    """Ends that drift apart show no group; two listed groups have two members, and one has four.

    A stream with calls that count none may carry other groups as well.
    """
    lists = (tuple(range(8)), (0, 1, 2, 3), (0, 1), (0, 2))
    listed = tuple(Group(n, ranks, (), ()) for n, ranks in enumerate(lists))
    run = job(tmp_path, grid(dp=8))
    records = tuple(replace(r, groups=(0, 1, 2, 3) if r.rank == 0 else (0,)) for r in run.ranks)
    run = replace(run, groups=listed, ranks=records)
    _, found = with_groups_of_streams(run, graphs(5, 40, size, counted), None, None)
    assert set(found[0].group.tolist()) == {group}


def test_a_stream_of_several_groups_is_told_apart(tmp_path):
    """On the caller's stream run all kinds; those that lost their arguments in a graph end with their group's."""
    rng = np.random.default_rng(5)
    pairs = Group(0, (0, 1), ("tp",), ()), Group(1, (2, 3), ("tp",), ())
    world = Group(2, (0, 1, 2, 3), (), ())
    lines = {r: [] for r in range(4)}
    for call in range(12):
        for rank, line in lines.items():
            line.append(comm(1000.0 * call + rank, 20 - rank, 2, seq=call, stream=3))
            line.append(comm(1000.0 * call + 900, 20, rank // 2, seq=call, stream=7))
        for pair in ((0, 1), (2, 3)):
            begins = 1000.0 * call + rng.uniform(100, 400, 2)
            for rank, begin in zip(pair, begins.tolist(), strict=True):
                until = begins.max() + 50 + rng.uniform(0, 1)
                lines[rank].append(comm(begin, until - begin, None, "all_gather", stream=7))
    run = replace(job(tmp_path, grid(tp=2, dp=2)), groups=(*pairs, world))
    ops = match([recorded(r, *lines[r], groups=run.groups) for r in range(4)], run.groups)
    _, ops = with_rare_groups(run, ops, grid(tp=2, dp=2))
    assert (ops.instance >= 0).all()


@pytest.mark.quick(1)
@pytest.mark.parametrize("name", ["void deep_ep::intranode::dispatch<8>(int4*, int*)", "gemm"])
def test_kernels_of_other_libraries_wait_for_the_slow(tmp_path, name):
    """Of eight ranks 5 is slow, and its half waits for it in kernels that no record tells of.

    Where their name says nothing, their waits are work that takes as long on four ranks: a false culprit or none.
    """
    lines = [Timeline(rank) for rank in range(8)]
    rng = np.random.default_rng(2)
    for number in range(5):
        begins = [line.at for line in lines]
        for _ in range(8):
            for line in lines:
                line.compute(300 * (1.4 if line.rank == 5 else 1) + rng.uniform(0, 3), "nvjet")
            for half in (lines[:4], lines[4:]):
                end = max(line.at for line in half) + 40
                for line in half:
                    line.silent(name, end + rng.uniform(0, 1))
        handles = [line.post(0) for line in lines]
        end = max(h[0] for h in handles) + 100
        for line, handle, begin in zip(lines, handles, begins, strict=True):
            line.finish(handle, end)
            line.step(number, begin)
    found = analyse(write_run(tmp_path, lines, {0: tuple(range(8))}, {0: "dp"}, 8))
    assert ([s.rank for s in found.suspects] == [5]) == (name != "gemm")
