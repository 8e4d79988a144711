"""A captured multimodal run: its replay has the same bits and plan; `advise` shows what FP32 sums are worth."""

import json

import pytest

from numerics.comparison.compare import Options, compare
from numerics.order.order_plan import read_plan
from numerics.precision.advise import advise
from reftrain.config.file import load
from tests.marks import quick_first
from tests.numerics import replay_runs
from tests.reftrain import workers

BASE = {
    "model": {"layers": 4, "dim": 32, "ffn_dim": 64, "cross_every": 1, "frozen": True},
    "encoder": {"layers": 1},
    "data": {"batch_size": 6, "seq_len": 32},
}
EVERY, INSIDE = {"placement": "replicated"}, {"placement": "inside"}
CASES = {
    "pp3 replicated, a step": {
        "mesh": {"pp": 3},
        "model": {"layers": 6},
        "encoder": EVERY,
        "data": {"batch_size": 4, "seq_len": 16},
        "run": {"steps": 1},
    },
    "pp3 inside": {"mesh": {"pp": 3}, "model": {"layers": 6}, "encoder": INSIDE},
    "chimera of 4, inside, sums in BF16": {
        "mesh": {"pp": 4},
        "model": {"layers": 8},
        "data": {"batch_size": 4},
        "pipeline": {"schedule": "chimera"},
        "encoder": {**INSIDE, "sum_format": "compute"},
    },
    "4D ZeRO-2 inside, virtual stages, recomputed": {
        "mesh": {"tp": 2, "cp": 2, "pp": 2, "dp": 2, "zero": 2},
        "model": {"layers": 8},
        "data": {"batch_size": 8},
        "pipeline": {"virtual_stages": 2, "consecutive": 2},
        "numerics": {"recompute": "full"},
        "encoder": INSIDE,
    },
    "pp3 replicated": {"mesh": {"pp": 3}, "model": {"layers": 6}, "encoder": EVERY},
    "dp3, several cross layers": {
        "mesh": {"dp": 3},
        "numerics": {"policy": "fp32"},
        "model": {"frozen": False},
    },
    "tp3": {
        "mesh": {"tp": 3},
        "data": {"seq_len": 48},
        "model": {"heads": 6, "kv_heads": 3, "dim": 48, "ffn_dim": 96, "pad_vocab": True},
        "encoder": {"heads": 3, "dim": 48, "ffn_dim": 96},
    },
    "tp4 copied kv heads, sums in BF16": {
        "mesh": {"tp": 4},
        "model": {"kv_heads": 2},
        "encoder": {"sum_format": "compute"},
    },
    "cp3 recomputed": {
        "mesh": {"cp": 3},
        "data": {"seq_len": 48},
        "model": {"qk_norm": True, "bias": True},
        "numerics": {"recompute": "selective"},
    },
    "4D ZeRO-2 replicated": {
        "mesh": {"tp": 2, "cp": 2, "pp": 2, "dp": 2, "zero": 2},
        "data": {"batch_size": 8},
        "encoder": EVERY,
    },
    "4D ZeRO-3 before, recomputed": {
        "mesh": {"tp": 2, "cp": 2, "pp": 2, "dp": 2, "zero": 3},
        "data": {"batch_size": 8},
        "numerics": {"recompute": "full"},
    },
    "cp2 by a ring": {
        "mesh": {"cp": 2, "dp": 2},
        "data": {"batch_size": 8, "seq_len": 48},
        "numerics": {"cp_method": "ring"},
    },
    "dp4 in shards of 2, pp2": {
        "mesh": {"pp": 2, "dp": 4, "zero": 2, "dp_shard": 2},
        "data": {"batch_size": 8},
        "encoder": EVERY,
    },
    "dp3 in buckets, pp2": {"mesh": {"pp": 2, "dp": 3, "zero": 0, "bucket_mb": 1}, "encoder": EVERY},
    "chimera of 4, before": {
        "mesh": {"pp": 4},
        "model": {"layers": 8},
        "data": {"batch_size": 4},
        "pipeline": {"schedule": "chimera"},
    },
    "gems of 3": {
        "mesh": {"pp": 3, "dp": 2, "zero": 0},
        "model": {"layers": 6},
        "data": {"batch_size": 8},
        "pipeline": {"schedule": "gems"},
        "encoder": EVERY,
    },
}


def merged(*sources):
    tables = {}
    for source in sources:
        for table, values in source.items():
            tables.setdefault(table, {}).update(values)
    return tables


@pytest.mark.parametrize("name", quick_first(1, CASES))
@pytest.mark.quick(1)
def test_multimodal_replay_has_the_same_bits(ranks, tmp_path, name):
    replay_runs.captured(ranks, tmp_path / "run", merged(BASE, CASES[name]))
    replay = replay_runs.replayed(tmp_path / "run")
    assert replay_runs.unequal(tmp_path / "run", replay) == []
    recorded, declared = (
        {(r.place, r.group): r for r in read_plan(p).reductions} for p in (tmp_path / "run", replay)
    )
    assert recorded == declared
    axes = ("tp",) if CASES[name].get("encoder", {}).get("placement") == "inside" else ("tp", "pp")
    summed = {axis for axis in axes if CASES[name]["mesh"].get(axis, 1) > 1}
    assert {place[1] for place, _ in recorded if place[3] == "image_tokens.grad"} == summed


PLANTED = [
    ("P61", {"mesh": {"pp": 3}, "model": {"layers": 6}, "encoder": INSIDE}),
    ("P61", {"mesh": {"tp": 2, "pp": 2}, "encoder": INSIDE, "numerics": {"policy": "fp32"}}),
    ("P62", {"mesh": {"tp": 2, "pp": 2}, "encoder": INSIDE}),
    ("P62", {"mesh": {"tp": 2, "pp": 2}, "encoder": EVERY}),
]


@pytest.mark.slow
@pytest.mark.parametrize(("bug", "tables"), PLANTED)
def test_a_lost_gradient_of_image_tokens_is_named(ranks, tmp_path, bug, tables):
    run = tmp_path / "run"
    replay_runs.captured(ranks, run, merged(BASE, tables, {"evidence": {"faults": [bug]}}))
    found = compare(run, None, Options(replay=replay_runs.replayed(run)))
    assert found.verdict == "bug", found.reason
    first = found.first_divergence
    assert first.tensor.startswith(("image_tokens", "encoder.")), first


@pytest.mark.slow
def test_advise_flags_image_tokens_in_bf16(ranks, tmp_path):
    """Sums over many cross-attention layers: BF16 errs by several roundings, FP32 by none."""
    deep = {"model": {"layers": 24}, "mesh": {"dp": 3}, "data": {"batch_size": 3}}
    own = {"run": {"out": str(tmp_path), "steps": 1, "device": "cpu"}, "evidence": {"shadow_gradients": True}}
    config = load(None, merged(BASE, deep, own))
    ranks.run(workers.whole_run, 3, config)
    buffer = next(b for b in advise(tmp_path).buffers if b.tensor == "image_tokens.grad")
    assert buffer.micro_batches == 12
    assert buffer.kept == "float32"
    assert buffer.measured > 2 * buffer.rounded_once > 100 * buffer.in_fp32
    assert buffer.needs_fp32
    assert json.loads((tmp_path / "run.json").read_text())["encoder"]["layers"] == 1
