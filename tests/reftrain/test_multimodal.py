"""Image encoder and cross-attention: every layout equals one process, and what cannot be trained is refused."""

from dataclasses import replace

import numpy as np
import pytest

from reftrain.config.encoder import PLACEMENTS
from reftrain.config.file import load
from reftrain.data.images import patches
from reftrain.errors import ConfigError, ScheduleError
from reftrain.schedule.actions import ENCODER, Action, Kind
from reftrain.schedule.check import check
from reftrain.schedule.encoder import with_encoder
from reftrain.schedule.generators import make_schedule
from reftrain.schedule.lower import lower
from reftrain.schedule.text_form import from_text, to_text
from tests.marks import quick_first
from tests.reftrain import workers

TOLERANCE = 1e-5
BASE = {
    "numerics": {"policy": "fp32"},
    "data": {"batch_size": 12, "seq_len": 48},
    "model": {"layers": 10, "dim": 32, "ffn_dim": 64, "cross_every": 4, "frozen": True},
    "encoder": {"layers": 2},
}
EVERY = {"encoder": {"placement": "replicated"}}
LAYOUTS = {
    "pp3, an encoder on every rank": {"mesh": {"pp": 3}, "model": {"layers": 6, "cross_every": 1}, **EVERY},
    "pp2·dp3, an encoder on every rank": {"mesh": {"pp": 2, "dp": 3}, **EVERY},
    "pp2·dp3, one before": {"mesh": {"pp": 2, "dp": 3}, "model": {"frozen": False}},
    "pp3, an encoder inside": {
        "mesh": {"pp": 3},
        "model": {"layers": 6, "cross_every": 1},
        "encoder": {"placement": "inside"},
    },
    "4D inside, virtual stages": {
        "mesh": {"tp": 2, "cp": 2, "pp": 2, "dp": 2, "zero": 2},
        "model": {"layers": 20},
        "pipeline": {"virtual_stages": 2, "consecutive": 2},
        "encoder": {"placement": "inside"},
    },
    "chimera inside": {
        "mesh": {"pp": 4},
        "model": {"layers": 20},
        "pipeline": {"schedule": "chimera"},
        "encoder": {"placement": "inside"},
    },
    "tp4": {"mesh": {"tp": 4}},
    "cp3": {"mesh": {"cp": 3}, "model": {"qk_norm": True, "bias": True}},
    "dp3 ZeRO-0": {"mesh": {"dp": 3, "zero": 0}},
    "pp3 of 4 micro-batches": {
        "mesh": {"pp": 3},
        "model": {"layers": 30},
        "pipeline": {"virtual_stages": 2, "consecutive": 3},
        "data": {"micro_batch_size": 3},
        **EVERY,
    },
    "gems": {"mesh": {"pp": 2, "dp": 2}, "pipeline": {"schedule": "gems"}, **EVERY},
    "4D ZeRO-2": {"mesh": {"tp": 2, "cp": 2, "pp": 2, "dp": 2, "zero": 2}, **EVERY},
    "4D ZeRO-3 recomputed": {
        "mesh": {"tp": 2, "cp": 2, "pp": 2, "dp": 2, "zero": 3},
        "numerics": {"recompute": "full"},
    },
}


def configuration(*sources):
    tables = {}
    for source in (BASE, *sources):
        for table, values in source.items():
            tables.setdefault(table, {}).update(values)
    return load(None, tables)


def trained(ranks, config):
    results = ranks.run(workers.gradients, config.mesh.world_size, config)
    return workers.assemble(results), results[0]


@pytest.mark.parametrize("name", quick_first(1, LAYOUTS))
@pytest.mark.quick(1)
def test_multimodal_layout_equals_one_process(ranks, name):
    one = {"model": LAYOUTS[name].get("model", {})}
    expected, single = trained(ranks, configuration(one))
    got, result = trained(ranks, configuration(LAYOUTS[name]))
    assert set(got) == set(expected)
    errors = {n: np.linalg.norm(got[n] - g) / np.linalg.norm(g) for n, g in expected.items()}
    assert max(errors.values()) < TOLERANCE, max(errors, key=errors.__getitem__)
    assert result.loss == pytest.approx(single.loss, rel=TOLERANCE)
    assert result.norm == pytest.approx(single.norm, rel=TOLERANCE)
    frozen = not configuration(LAYOUTS[name]).model.trains(0)
    assert ("layers.0.attention.wo.weight" in got) is not frozen
    last = configuration(LAYOUTS[name]).model.layers - 1
    assert f"layers.{last}.attention.qkv.wk.weight" in got


@pytest.mark.slow
def test_a_multimodal_run_repeats_in_every_bit(ranks):
    config = configuration(LAYOUTS["4D ZeRO-2"], {"numerics": {"policy": "bf16"}})
    first, second = (workers.assemble(ranks.run(workers.parameters_after, 16, config, 2)) for _ in range(2))
    assert all(np.array_equal(values, second[name]) for name, values in first.items())
    start = workers.assemble(ranks.run(workers.parameters_after, 16, config, 1))
    assert np.array_equal(first["layers.0.attention.wo.weight"], start["layers.0.attention.wo.weight"])
    assert not np.array_equal(first["encoder.patches.weight"], start["encoder.patches.weight"])


def test_images_are_those_of_the_sequence():
    config = configuration().encoder
    some = patches(config, 1, range(3, 6))
    assert some.shape == (3, config.tokens, config.patch)
    assert np.array_equal(some[1], patches(config, 1, [4])[0])
    assert not np.array_equal(some[1], patches(config, 2, [4])[0])


@pytest.mark.parametrize("placement", PLACEMENTS)
@pytest.mark.parametrize("micro_batches", [1, 4, 7])
def test_tables_with_an_encoder_can_run(placement, micro_batches):
    table = lower(make_schedule("flexible", 3, 2, micro_batches, 3), 1, encoder=placement)
    check(table)
    assert from_text(to_text(table), "here") == table
    assert with_encoder(table, placement) == table
    encoded = [number for rank in range(3) for number in table.encoded_by(rank)]
    assert encoded == list(range(micro_batches))
    assert table.carries_tokens is (placement == "inside")


def test_a_table_that_runs_back_too_early_is_refused():
    table = lower(make_schedule("flexible", 3, 1, 2, 3), 1, encoder="inside")
    first = list(table.actions[0])
    first.remove(Action(Kind.ENCODE_BACKWARD, ENCODER, 1))
    first.insert(0, Action(Kind.ENCODE_BACKWARD, ENCODER, 1))
    with pytest.raises(ScheduleError, match=r"EB-1\.1 waits for B0\.1"):
        check(replace(table, actions=(tuple(first), *table.actions[1:])))


REFUSED = [
    ({"encoder": {"layers": 0}}, "encoder.layers"),
    ({"model": {"cross_every": 0, "frozen": False}}, "model.cross_every"),
    ({"model": {"layers": 9}}, "model.layers"),
    ({"model": {"fused_qkv": True}}, "model.fused_qkv"),
    ({"model": {"experts": 4}}, "model.experts"),
    ({"mesh": {"dp": 2, "ep": 2}, "model": {"experts": 4}}, "model.experts"),
    ({"mesh": {"pp": 2}, "pipeline": {"layers_per_stage": [4, 6]}}, "pipeline.layers_per_stage"),
    ({"mesh": {"pp": 4}}, "pipeline.virtual_stages"),
    ({"mesh": {"pp": 2}, "pipeline": {"schedule": "zb_h1"}}, "pipeline.schedule"),
    (
        {"mesh": {"pp": 2}, "pipeline": {"schedule": "pipedream"}, "optimizer": {"clip_norm": 0}},
        "pipeline.schedule",
    ),
    ({"mesh": {"tp": 2}, "encoder": {"heads": 1}}, "encoder.heads"),
    ({"encoder": {"placement": "somewhere"}}, "encoder.placement"),
    ({"encoder": {"heads": 5}}, "encoder.heads"),
    ({"model": {"frozen": True, "tied_embeddings": True}}, "model.tied_embeddings"),
]


@pytest.mark.parametrize(("tables", "field"), REFUSED)
def test_a_contradiction_is_named(tables, field):
    with pytest.raises(ConfigError) as refused:
        configuration(tables)
    assert refused.value.field == field


def test_frozen_layers_have_no_gradients_to_count():
    from reftrain.cost.job import job_of_run
    from reftrain.cost.memory import MemoryModel

    frozen, free = (job_of_run(configuration({"model": {"frozen": f}})) for f in (True, False))
    assert frozen.trained_parameters(0) == 2 * frozen.shapes.layer_parameters
    assert free.trained_parameters(0) == free.stage_parameters(0) == frozen.stage_parameters(0)
    one, other = (MemoryModel(job).rank(0).largest for job in (frozen, free))
    assert one.optimizer < other.optimizer / 3
