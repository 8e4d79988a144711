"""SPMD 2-D sharding: annotations of the document, equality with one process, bits, bytes moved, and refusals."""

from collections import Counter

import numpy as np
import pytest

from numerics.order.order_plan import read_plan
from reftrain.config.file import load
from reftrain.cost.cost_model import CostModel
from reftrain.cost.hardware import load_hardware
from reftrain.cost.job import cost_model_of, job_of_run
from reftrain.cost.memory import MemoryModel
from reftrain.cost.volume import step_volume
from reftrain.errors import ConfigError
from reftrain.layout.declaration import Declaration
from tests.numerics import replay_runs
from tests.reftrain import spmd_workers, workers

MODEL = {"layers": 2, "dim": 48, "heads": 12, "kv_heads": 12, "ffn_dim": 96, "vocab_size": 262}
BASE = {
    "model": {**MODEL, "pad_vocab": True},
    "data": {"batch_size": 12, "seq_len": 48},
    "numerics": {"policy": "fp32"},
}
LAYOUTS = {
    "data 2, model 2": {"dp": 2, "tp": 2, "zero": 3},
    "data 3, model 2": {"dp": 3, "tp": 2, "zero": 3},
    "data 2, model 3": {"dp": 2, "tp": 3, "zero": 3},
    "data 2, model 4, once a step": {"dp": 2, "tp": 4, "zero": 1},
    "data 3, model 1": {"dp": 3, "zero": 3},
    "data 1, model 4": {"tp": 4, "zero": 2},
}
DOCUMENT = {
    "tok_embeddings": ("model", "data"),
    "wq": ("data", "model"),
    "wk": ("data", "model"),
    "wv": ("data", "model"),
    "wo": ("model", "data"),
    "w1": ("model", "data"),
    "w3": ("model", "data"),
    "w2": ("data", "model"),
    "output": ("model", "data"),
}
"""Table 1 of the document, by our names."""


def configuration(mesh=None, **tables):
    merged = {table: {**values} for table, values in BASE.items()}
    for table, values in {"mesh": {"sharding": "spmd_2d", **(mesh or {})}, **tables}.items():
        merged.setdefault(table, {}).update(values)
    return load(None, merged)


@pytest.mark.slow
@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.quick(1)
def test_annotated_layout_equals_one_process(ranks, name):
    config = configuration(LAYOUTS[name])
    expected = ranks.run(workers.parameters_after, 1, configuration({"sharding": "fsdp"}), 2)
    got = ranks.run(workers.parameters_after, config.mesh.world_size, config, 2)
    whole, ours = workers.assemble(expected), workers.assemble(got)
    assert set(ours) == set(whole)
    errors = {n: np.linalg.norm(ours[n] - w) / np.linalg.norm(w) for n, w in whole.items()}
    assert max(errors.values()) < 2e-6, max(errors, key=errors.__getitem__)
    assert got[0].loss == pytest.approx(expected[0].loss, rel=1e-6)
    assert got[0].norm == pytest.approx(expected[0].norm, rel=1e-5)


@pytest.mark.slow
def test_every_weight_is_annotated_as_documented(ranks):
    (seen, *_) = ranks.run(spmd_workers.annotations, 6, configuration(LAYOUTS["data 3, model 2"]))
    for name, (axes, placements, shape) in seen.items():
        module = name.split(".")[-2]
        if module in DOCUMENT:
            cut = dict(zip(axes, placements, strict=True))
            expected = {"dp": DOCUMENT[module].index("data"), "tp": DOCUMENT[module].index("model")}
            assert cut == expected, name
            assert len(shape) == 2
        else:
            assert placements == (None, None), name
    declared = {p.name: p for p in Declaration(configuration(LAYOUTS["data 3, model 2"])).in_order(0)}
    for name, parameter in declared.items():
        if (module := name.split(".")[-2]) in DOCUMENT:
            assert (parameter.split, parameter.data_dim) == (
                DOCUMENT[module].index("model"),
                DOCUMENT[module].index("data"),
            )


@pytest.mark.slow
def test_an_annotated_run_repeats_in_every_bit(ranks):
    config = configuration(LAYOUTS["data 2, model 4, once a step"], numerics={"policy": "bf16"})
    first, second = (workers.assemble(ranks.run(workers.parameters_after, 8, config, 2)) for _ in range(2))
    assert all(np.array_equal(values, second[name]) for name, values in first.items())


WAYS = {
    "bf16": {"policy": "bf16"},
    "fp32": {"policy": "fp32"},
    "pure bf16": {"policy": "bf16_pure"},
    "recomputed": {"policy": "bf16", "recompute": "full"},
    "attention recomputed": {"policy": "fp32", "recompute": "selective"},
}


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", ["data 3, model 2", "data 2, model 4, once a step", "data 1, model 4"])
def test_the_replay_has_the_same_bits(ranks, tmp_path, name, way):
    tables = {**BASE, "mesh": {"sharding": "spmd_2d", **LAYOUTS[name]}, "numerics": WAYS[way]}
    tables["data"] = {"batch_size": 12, "seq_len": 48, "micro_batch_size": 2}
    replay_runs.captured(ranks, tmp_path / "run", tables)
    replay = replay_runs.replayed(tmp_path / "run")
    assert replay_runs.unequal(tmp_path / "run", replay) == []
    recorded, declared = (
        {(r.place, r.group): r for r in read_plan(p).reductions} for p in (tmp_path / "run", replay)
    )
    assert recorded == declared


def _volume(config) -> tuple[Counter, CostModel]:
    job = job_of_run(config)
    costs = cost_model_of(job, load_hardware("cpu"))
    return step_volume(job, costs), costs


MOVED = {
    "2-D": {"dp": 3, "tp": 2, "zero": 3},
    "2-D, gathered once": {"dp": 2, "tp": 2, "zero": 1},
    "1-D FSDP": {"dp": 6, "zero": 3, "sharding": "fsdp"},
}


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["fp32", "bf16"])
@pytest.mark.parametrize("name", MOVED)
def test_collectives_move_the_bytes_of_the_formula(ranks, name, policy):
    config = configuration(MOVED[name], numerics={"policy": policy}, model={"vocab_size": 264})
    (moved, _) = ranks.run(spmd_workers.second_step, config.mesh.world_size, config)[0]
    formula, _ = _volume(config)
    assert {k: v for k, v in formula.items() if v} == dict(moved)


@pytest.mark.slow
@pytest.mark.parametrize("name", MOVED)
def test_memory_is_that_of_the_model(ranks, name):
    config = configuration(MOVED[name], model={"dim": 96, "ffn_dim": 384})
    measured = ranks.run(spmd_workers.second_step, config.mesh.world_size, config)[0][1]
    job = job_of_run(config)
    (rank,) = MemoryModel(job).ranks()
    assert measured["optimizer"] == pytest.approx(rank.largest.optimizer, rel=0.02)
    assert measured["gradients"] == pytest.approx(job.trained_parameters(0) * job.reduce_bytes, rel=0.02)
    assert measured["activations"] == pytest.approx(rank.largest.activations, rel=0.15)


REFUSED = [
    ({"mesh": {"cp": 2}}, "mesh.cp"),
    ({"mesh": {"pp": 2}}, "mesh.pp"),
    ({"mesh": {"dp": 2, "ep": 2}, "model": {"experts": 4}}, "mesh.ep"),
    ({"mesh": {"zero": 0}}, "mesh.zero"),
    ({"mesh": {"dp": 4, "dp_shard": 2}}, "mesh.dp_shard"),
    ({"mesh": {"dp": 5}, "data": {"batch_size": 5}}, "mesh.dp"),
    ({"mesh": {"tp": 3}, "model": {"dim": 40, "heads": 12, "kv_heads": 12}}, "model.heads"),
    ({"mesh": {"tp": 4}, "model": {"kv_heads": 2}}, "mesh.tp"),
    ({"model": {"bias": True}}, "model.bias"),
    ({"model": {"qk_norm": True}}, "model.qk_norm"),
    ({"model": {"fused_qkv": True}}, "model.fused_qkv"),
    ({"model": {"tied_embeddings": True}}, "model.tied_embeddings"),
    ({"model": {"experts": 4}}, "model.experts"),
    ({"numerics": {"tp_reduce": "fp32"}}, "numerics.tp_reduce"),
    ({"evidence": {"shadow_gradients": True}}, "evidence.shadow_gradients"),
    ({"pipeline": {"schedule": "zb_h1"}}, "pipeline.schedule"),
    ({"mesh": {"sharding": "spmd_3d"}}, "mesh.sharding"),
]


@pytest.mark.parametrize(("tables", "field"), REFUSED)
def test_what_annotation_excludes_is_refused(tables, field):
    with pytest.raises(ConfigError) as refused:
        configuration(**tables)
    assert refused.value.field == field
