"""Recordings that real programs made: ranks, groups and exact times, each against a plain reader."""

import gzip
import json

import pytest

from tests.ingest.sample import DATA, needs_data, oracle
from tests.marks import quick_nth
from tracekit.errors import InputError
from tracekit.ingest import load

pytestmark = [needs_data, pytest.mark.realdata]

MISC = DATA / "kineto_misc"
READ = ["df_index_resolver.json.gz", "nccl_data.json.gz", "rank-0.Apr_03_18_51_38.1102.pt.trace.json.gz"]
READ += ["rank-34.Jul_15_10_52_41.1074.pt.trace.json.gz", "rank_non_gpu.json.gz"]
ALONE = "mi250_minitoy_train_ROCm6_2_kineto.json.gz"
REFUSED = ["distributed_info_not_found.json.gz", "rank_not_found.json.gz"]
ALL = [MISC / name for name in READ]
ALL += sorted((DATA / "kineto_dlrm8").glob("*.gz")) if DATA.is_dir() else []


@pytest.mark.parametrize("path", quick_nth(2, ALL), ids=lambda p: p.name[:24])
@pytest.mark.quick(1)
def test_times_are_exact(path):
    run = load([str(path)])
    table = run.events(run.ranks[0].rank, ["ts", "dur", "name"])
    kept = list(zip(*(table.column(c).to_pylist() for c in ("ts", "dur", "name")), strict=True))
    assert kept == oracle(gzip.decompress(path.read_bytes()))
    assert all(q.kind == "overlapping_kernels" for q in run.quality), run.quality


@pytest.mark.parametrize("name", REFUSED)
def test_without_a_rank_it_is_refused(name):
    with pytest.raises(InputError, match="its rank is unknown"):
        load([str(MISC / name)])


def test_a_lone_process_without_rank_is_rank_0():
    run = load([str(MISC / ALONE)])
    assert [(r.rank, r.world_size, r.events) for r in run.ranks] == [(0, 1, 113)]
    assert [(q.kind, q.count) for q in run.quality] == [("non_integer_value", 16), ("rank_assumed", 1)]


def test_files_without_rank_are_read_under_a_ranked_name(tmp_path):
    for i, name in enumerate([*REFUSED, ALONE]):
        (tmp_path / f"rank_{i}.json.gz").write_bytes((MISC / name).read_bytes())
    run = load([str(tmp_path)])
    assert [(r.rank, r.events) for r in run.ranks] == [(0, 2467), (1, 2467), (2, 113)]
    assert [(q.kind, q.count) for q in run.quality] == [
        ("non_integer_value", 16)
    ]  # HIP writes streams as 0x0
    whole = json.loads(gzip.decompress((MISC / ALONE).read_bytes()))
    assert min(run.events(2).column("ts").to_pylist()) > whole["baseTimeNanoseconds"]


def test_full_group_arguments():
    run = load([str(MISC / "nccl_data.json.gz")])
    assert [(r.rank, r.world_size) for r in run.ranks] == [(0, 2)]
    assert [(g.ranks, g.names, g.descs) for g in run.groups] == [((0, 1), ("0",), ("default_pg",))]
    comms = [e for e in run.events(0).to_pylist() if e["collective"] is not None and e["pg_name"] is not None]
    kernels = [e for e in comms if e["cat"] == "kernel"]
    assert len(comms) == 42
    assert len(kernels) == 21
    assert {e["group"] for e in comms} == {0}
    assert {e["collective"] for e in kernels} == {"allreduce", "broadcast"}
    assert {(e["group_size"], e["dtype"]) for e in kernels if e["collective"] == "allreduce"} == {
        (2, "Float")
    }


def test_an_uncut_group_of_three_hundred():
    run = load([str(MISC / "rank-34.Jul_15_10_52_41.1074.pt.trace.json.gz")])
    assert [(r.rank, r.world_size, r.events) for r in run.ranks] == [(34, 300, 16)]
    assert [g.ranks for g in run.groups] == [tuple(range(300))]
    assert len(run.groups[0].names) == 11


def test_a_host_and_a_number_for_a_group_name():
    run = load([str(MISC / "rank-0.Apr_03_18_51_38.1102.pt.trace.json.gz")])
    assert run.ranks[0].host == "twshared39868.02.pnb3.facebook.com"
    assert [(g.ranks, g.names) for g in run.groups] == [((0,), ("0",))]


@pytest.mark.slow
def test_all_of_them_at_once():
    with pytest.raises(InputError, match=r"3 jobs.*1: world size 2, 2 ranks.*3: world size 300, rank 34"):
        load([str(MISC)])
    run = load([str(MISC)], job=1)
    assert [r.rank for r in run.ranks] == [0, 1]
    assert len(run.rejected) == 6
    assert {r.rank for r in run.rejected} == {None}
    assert {q.kind for q in run.quality} == {"foreign_files"}


def test_eight_ranks_of_one_step():
    run = load([str(DATA / "kineto_dlrm8")], jobs=2)
    assert [(r.rank, r.world_size, r.host) for r in run.ranks] == [(i, 8, None) for i in range(8)]
    assert run.groups == ()
    assert run.world_size == 8
    assert [q.kind for q in run.quality] == ["foreign_files"]


def test_dumps_of_the_flight_recorder_are_named():
    for path in ("flight_recorder/gpu_error_1st", "flight_recorder/gpu_error_1st/_dump_0"):
        with pytest.raises(InputError, match="flight-recorder dump"):
            load([str(DATA / path)])
