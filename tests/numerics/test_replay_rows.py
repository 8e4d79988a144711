"""Capture and replay write the same rows: names, places, collectives, plan, and every digest."""

import pytest

from numerics.order.order_plan import read_plan
from numerics.order.plan_differences import differences
from tests.marks import quick_but
from tests.numerics.replay_runs import captured, replayed, rows, unequal

RUNS = {
    "4D": {"mesh": {"tp": 2, "cp": 2, "pp": 2, "dp": 2}},
    "recomputed": {"mesh": {"tp": 2, "cp": 2}, "numerics": {"recompute": "full", "policy": "fp32"}},
    "ring": {
        "mesh": {"cp": 3},
        "data": {"seq_len": 48},
        "numerics": {"cp_method": "ring", "recompute": "selective"},
    },
    "copied heads, tied": {
        "mesh": {"tp": 4, "pp": 2},
        "model": {"kv_heads": 2, "bias": True, "qk_norm": True, "tied_embeddings": True},
    },
    "HSDP, ZeRO-2": {"mesh": {"dp": 4, "zero": 2, "dp_shard": 2}, "data": {"batch_size": 8}},
    "virtual stages": {
        "mesh": {"pp": 2, "dp": 2, "zero": 2},
        "model": {"layers": 4},
        "data": {"batch_size": 8},
        "pipeline": {"virtual_stages": 2, "consecutive": 3},
    },
    "padded vocabulary": {
        "mesh": {"tp": 3},
        "model": {"heads": 6, "kv_heads": 3, "dim": 48, "ffn_dim": 96, "pad_vocab": True},
        "numerics": {"label_smoothing": 0.1},
        "data": {"seq_len": 48},
    },
    "buckets": {"mesh": {"dp": 3, "zero": 0, "bucket_mb": 0.02}, "data": {"batch_size": 6}},
    "one rank": {},
}


@pytest.mark.parametrize(
    "name",
    quick_but(
        [
            "ring",
            "virtual stages",
            "padded vocabulary",
            "recomputed",
            "copied heads, tied",
            "HSDP, ZeRO-2",
            "buckets",
            "one rank",
        ],
        RUNS,
    ),
)
@pytest.mark.slow
def test_every_row_of_a_run_is_in_its_replay(ranks, tmp_path, name):
    run = tmp_path / "run"
    captured(ranks, run, RUNS[name])
    other = replayed(run)
    assert not unequal(run, other)
    recorded, declared = read_plan(run), read_plan(other)
    assert (recorded.source, declared.source) == ("recorded", "declared")
    assert differences(recorded, declared) == []
    assert len(recorded.reductions) == len(declared.reductions)


@pytest.mark.slow
def test_what_is_captured(ranks, tmp_path):
    """Each kind of tensor the capture promises is there, on the axes that there are."""
    run = tmp_path / "run"
    captured(ranks, run, RUNS["4D"])
    found = rows(run)
    kinds = {kind for key in found for kind in key if kind in KINDS}
    assert kinds == KINDS
    tensors = {tensor for _, tensor in found.values()}
    for part in ("attention.wo.out", "attention.qkv.queries", "feed_forward.w2.in.grad", "out.grad"):
        assert f"layers.0.{part}" in tensors
    assert {
        "tok_embeddings.out",
        "output.logits",
        "output.out.grad",
        "stages.1.in",
        "clip",
        "loss",
    } <= tensors
    assert {"norm.weight.exp_avg", "norm.weight.grad", "layers.1.grad", "mask", "rope"} <= tensors


KINDS = {
    "input",
    "activation",
    "activation_grad",
    "param",
    "param_grad_local",
    "param_grad",
    "optimizer",
    "scalar",
    "metric",
    "collective_in",
    "collective_out",
}


@pytest.mark.slow
def test_a_second_run_replaces_capture_and_replay(ranks, tmp_path):
    run = tmp_path / "run"
    captured(ranks, run, {"mesh": {"dp": 4}})
    (run / "replay").mkdir()
    captured(ranks, run, {"mesh": {"dp": 2}})
    assert sorted(p.name for p in (run / "capture").iterdir()) == [
        "rank00000.parquet",
        "rank00001.parquet",
        "stamp.json",
    ]
    assert not (run / "replay").exists()


@pytest.mark.parametrize(
    ("variant", "changed"),
    [("rope=bf16", "layers.0.attention.qkv.queries"), ("reduce=bf16", "layers.0.grad")],
)
@pytest.mark.quick(1)
def test_a_hypothesis_changes_what_it_names_first(ranks, tmp_path, variant, changed):
    run = tmp_path / "run"
    captured(ranks, run, {"mesh": {"dp": 2}, "run": {"steps": 1}})
    wrong = unequal(run, replayed(run, variant))
    assert changed in wrong
    if variant == "reduce=bf16":
        assert not [tensor for tensor in wrong if tensor.endswith((".out", ".out.grad", ".in"))]
