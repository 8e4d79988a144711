"""Faults of annotated jobs are named: a wrong annotation by compare, a slow rank and a slow link by slowrank."""

import pytest

from numerics.comparison.compare import Options, compare
from tests.numerics.replay_runs import captured, replayed
from tests.simulate.case import setup_of, written
from tracekit.analysis.slowrank.analyse import analyse as find_slow
from tracekit.ingest import load

MESH = {"tp": 2, "dp": 3, "zero": 3, "sharding": "spmd_2d"}
TABLES = {
    "mesh": MESH,
    "model": {"layers": 2, "dim": 48, "heads": 12, "kv_heads": 12, "ffn_dim": 96},
    "data": {"batch_size": 6, "seq_len": 24},
    "numerics": {"policy": "fp32"},
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("bug", "place"),
    [("P60:layer=1", "layers.1.feed_forward"), ("P60:layer=0,of=wv", "layers.0.attention.qkv")],
)
def test_a_wrong_annotation_is_named(ranks, tmp_path, bug, place):
    run = tmp_path / "run"
    captured(ranks, run, {**TABLES, "evidence": {"faults": [bug]}})
    found = compare(run, None, Options(replay=replayed(run)))
    assert found.verdict == "bug", found.reason
    assert found.first_divergence.tensor.startswith(place), found.first_divergence


@pytest.mark.slow
def test_an_annotated_run_drifts_from_one_process(ranks, tmp_path):
    captured(ranks, tmp_path / "run", TABLES)
    captured(ranks, tmp_path / "one", {**TABLES, "mesh": {}})
    found = compare(tmp_path / "run", tmp_path / "one", Options(replay=replayed(tmp_path / "run")))
    assert (found.verdict, found.proof) == ("drift", "matched_order"), found.reason
    assert found.tensors.unexplained == 0


FOUND = [
    ((), "healthy", ()),
    (("slow_compute:rank=5,factor=1.5",), "slow_rank", (5,)),
    (("slow_link:rank=5,delay_ms=0.5",), "slow_link", (5,)),
]


@pytest.mark.slow
@pytest.mark.parametrize(("faults", "verdict", "ranks"), FOUND)
def test_slowrank_names_the_rank_of_an_annotated_job(tmp_path, faults, verdict, ranks):
    mesh = {"tp": 4, "dp": 4, "zero": 3, "sharding": "spmd_2d"}
    setup, config = setup_of(
        mesh, *faults, schedule="flexible", micro_batches=1, tables={"data": {"seq_len": 2048}}
    )
    written(tmp_path, setup, config)
    finding = find_slow(load([str(tmp_path / "trace")]))
    assert finding.verdict == verdict, finding.why
    assert tuple(s.rank for s in finding.suspects) == ranks
