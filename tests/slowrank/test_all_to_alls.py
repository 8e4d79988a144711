"""Kernels named after messages that leave together on several ranks are all-to-alls; those of neighbours are not."""

from dataclasses import replace

import numpy as np
import pytest

from tests.slowrank.jobs import grid, job
from tests.tables.rows import comm, gemm, recorded, row
from tracekit.inference.groups.thread_groups import (
    silent_messages,
    with_all_to_alls,
    with_paired_all_to_alls,
)
from tracekit.inference.groups.unnamed_groups import with_groups_of_streams
from tracekit.matching.match import match
from tracekit.schema import Group

KERNEL = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"
EXPERTS = [(0, 1, 2, 3), (4, 5, 6, 7)]
WORLD = Group(0, tuple(range(8)), (), ())
PAIRS = [(0, 1), (2, 3), (4, 5), (6, 7)]


def dealt(groups, *, ring=False, jitter=300.0, calls=20, seed=0, more=None, lists=(WORLD,)):
    """Eight ranks that exchange within `groups`, and run `more`; in a `ring` each waits for those beside it only.

    The calls of `more`, by rank, name groups in `lists`.
    """
    rng = np.random.default_rng(seed)
    lines = {r: [] for r in range(8)}
    for call in range(calls):
        for group in groups:
            came = 1000.0 * call + rng.uniform(0, jitter, len(group))
            for i, rank in enumerate(group):
                near = [came[i - 1], came[i], came[(i + 1) % len(group)]] if ring else came
                end = max(near) + 100 + rng.uniform(0, 1)
                lines[rank] += [row("kernel", KERNEL, came[i], end - came[i], stream=24), gemm(end + 1, 90)]
    return [
        recorded(r, *lines[r], *more(r), groups=lists) if more else recorded(r, *lines[r]) for r in range(8)
    ]


def answered(folder, ranks):
    run = job(folder, grid(dp=8))
    return with_all_to_alls(run, ranks, grid(dp=8))


@pytest.mark.parametrize("seed", range(3))
def test_what_leaves_together_is_an_all_to_all(tmp_path, seed):
    found, ranks = answered(tmp_path, dealt(EXPERTS, seed=seed))
    members = {g.group: g.ranks for g in found.groups}
    for rank in ranks:
        assert set(rank.op) == {"all_to_all"}
        assert {members[int(n)] for n in rank.group} == {EXPERTS[rank.rank // 4]}
        assert {t.partition("/")[0] for t in rank.token} == {"all_to_all"}


@pytest.mark.parametrize(
    "given",
    [
        dealt(PAIRS),
        dealt(EXPERTS, ring=True),
        dealt(EXPERTS, jitter=0.5),
    ],
    ids=["pairs", "rings", "nobody waited"],
)
def test_messages_stay_messages(tmp_path, given):
    _, ranks = answered(tmp_path, given)
    assert all(set(rank.op) == {"send_recv"} for rank in ranks)


@pytest.mark.parametrize(
    ("mesh", "exchanged"), [({"tp": 2, "dp": 4}, True), ({"tp": 2, "pp": 4}, False), (None, False)]
)
def test_ranks_of_no_pipeline_exchange_in_pairs(tmp_path, mesh, exchanged):
    """The user says that no stages send to each other; else two that leave together may be neighbours."""
    run = replace(job(tmp_path, grid(dp=8)), groups=() if mesh else job(tmp_path, grid(dp=8)).groups)
    _, ranks = with_groups_of_streams(run, dealt(PAIRS), mesh, None)
    assert all(set(rank.op) == {"all_to_all" if exchanged else "send_recv"} for rank in ranks)


@pytest.mark.parametrize(("kind", "exchanged"), [("reduce_scatter", True), ("all_reduce", False)])
def test_ranks_of_one_stage_exchange_in_pairs(tmp_path, kind, exchanged):
    """Ranks that scatter the same sums hold one model; a norm is reduced over all stages of a pipeline as well."""
    ranks = dealt(PAIRS, more=lambda rank: [comm(30_000, 90, 0, kind, stream=20)])
    _, ranks = with_groups_of_streams(job(tmp_path, grid(dp=8)), ranks, None, None)
    assert all(set(rank.op) == {"all_to_all" if exchanged else "send_recv", kind} for rank in ranks)


@pytest.mark.parametrize("listed", [True, False])
def test_listed_groups_show_that_no_stage_sends(tmp_path, listed):
    """Data groups of four, in which pairs exchange, and tensor groups of two are a mesh without a pipeline."""
    tensor, data = [(r, r + 1) for r in range(0, 8, 2)], [(0, 2, 4, 6), (1, 3, 5, 7)]
    pairs = [(0, 2), (1, 3), (4, 6), (5, 7)]
    kinds = {"TENSOR_MODEL": tensor, "DATA": data, "EXPERT_MODEL": pairs}
    every = [(ranks, f"{kind}_PARALLEL_GROUP") for kind, of in kinds.items() for ranks in of]
    groups = tuple(Group(n, ranks, (), (desc,)) for n, (ranks, desc) in enumerate(every))

    def named(rank):
        mine = [g.group for g in groups if rank in g.ranks and g.ranks not in pairs]
        return [comm(30_000 + 1000 * n, 90, n, stream=20 + n) for n in mine]

    run = job(tmp_path, grid(dp=8))
    lists = [tuple(g.group for g in groups if r.rank in g.ranks) * listed for r in run.ranks]
    records = tuple(replace(r, groups=mine) for r, mine in zip(run.ranks, lists, strict=True))
    run = replace(run, groups=groups, ranks=records)
    _, ranks = with_groups_of_streams(run, dealt(pairs, more=named, lists=groups), None, None)
    found = {op for rank in ranks for op in rank.op} - {"all_reduce"}
    assert found == {"all_to_all" if listed else "send_recv"}


def test_messages_that_tell_anything_are_not_silent():
    (plain,) = (r for r in dealt(EXPERTS) if r.rank == 0)
    assert silent_messages(plain).all()
    for told in ("src", "dst", "group", "way"):
        assert not silent_messages(replace(plain, **{told: np.ones(len(plain.op), np.int64)})).any()
    named = recorded(0, comm(0, 5, 0, "alltoall", stream=24), groups=[])
    assert not silent_messages(named).any()


@pytest.mark.parametrize("named", [False, True])
def test_a_stage_without_messages_exchanges_no_tokens(tmp_path, named):
    """What tensor ranks of a stage receive in step leaves together; with messages beside it, it is another exchange."""
    ranks = dealt(EXPERTS)
    if named:
        ranks = [
            replace(r, op=("send", *r.op[1:]), dst=np.append((r.rank + 4) % 8, r.dst[1:])) for r in ranks
        ]
    _, told = with_all_to_alls(job(tmp_path, grid(dp=8)), ranks, grid(tp=4, pp=2))
    assert all(("all_to_all" in r.op) == named for r in told)


@pytest.mark.parametrize("named", [1, 8])
def test_pairs_exchange_tokens_beside_messages_with_peers(tmp_path, named):
    """Until all ranks' messages have peers, two ranks that leave together may be stages."""
    run, ranks = job(tmp_path, grid(tp=2, pp=2, dp=2)), dealt(PAIRS)
    told = [
        replace(
            r, op=("send", *r.op[1:]), src=np.append(r.rank, r.src[1:]), dst=np.append(7 - r.rank, r.dst[1:])
        )
        for r in ranks[:named]
    ]
    ops = match([*told, *ranks[named:]], run.groups)
    found = with_paired_all_to_alls(run, ops, grid(tp=2, pp=2, dp=2))[1]
    kinds = [{op for op in r.op if op != "send"} for r in found.per_rank.values()]
    assert kinds == [{"all_to_all" if named == 8 else "send_recv"}] * 8
