"""Experts dealt out over ranks: one process gives the same, a repetition the same bits, the replay too."""

import numpy as np
import pytest

from reftrain.config.file import load
from reftrain.errors import ConfigError
from tests.marks import quick_first
from tests.numerics import matched, real_ranks

MIXTURE = {"experts": 6, "shared_expert": True, "layers": 2, "dim": 32, "ffn_dim": 32, "vocab_size": 260}
DATA = {"batch_size": 12, "seq_len": 48, "micro_batch_size": 2}
STEPS = 2
MESHES = {
    "ep3 inside dp3": {"mesh": {"dp": 3, "ep": 3}},
    "tp2, pp2, ep3 inside dp3": {"mesh": {"tp": 2, "pp": 2, "dp": 3, "ep": 3}},
    "cp2, ep2 inside dp2, ZeRO-3, recomputed": {
        "mesh": {"cp": 2, "dp": 2, "ep": 2, "zero": 3},
        "numerics": {"recompute": "full"},
    },
    "ep3 inside dp6, capacity, ZeRO-2": {
        "mesh": {"dp": 6, "ep": 3, "zero": 2},
        "model": {"expert_capacity": 1.0, "shared_expert": False},
    },
    "pp2 zb_h1, ep2 inside dp2": {"mesh": {"pp": 2, "dp": 2, "ep": 2}, "pipeline": {"schedule": "zb_h1"}},
    "pp2 chimera, ep3 inside dp3": {"mesh": {"pp": 2, "dp": 3, "ep": 3}, "pipeline": {"schedule": "chimera"}},
    "one choice, skewed, ep2 inside dp4": {
        "mesh": {"dp": 4, "ep": 2},
        "model": {"experts_per_token": 1, "expert_skew": 2.0},
        "data": {"batch_size": 8},
    },
}


def configuration(name, policy, **mesh):
    tables = {"model": dict(MIXTURE), "data": dict(DATA), "numerics": {"policy": policy}}
    for table, values in MESHES[name].items():
        tables.setdefault(table, {}).update(values)
    if mesh:
        tables["mesh"] = mesh
        tables.pop("pipeline", None)
    return load(None, {**tables, "run": {"steps": STEPS}})


@pytest.mark.parametrize("name", quick_first(1, MESHES))
def test_dealt_experts_equal_one_process(ranks, name):
    """Losses and norms in FP64 differ by rounding only; the same mesh repeats every bit of its gradients."""
    config, alone = configuration(name, "fp64"), configuration(name, "fp64", dp=1)
    one, again = (ranks.run(real_ranks.trained, config.mesh.world_size, config, STEPS) for _ in range(2))
    whole = ranks.run(real_ranks.trained, 1, alone, STEPS)
    assert np.allclose(one[0].losses, whole[0].losses, rtol=1e-12, atol=0)
    assert np.allclose(one[0].norms, whole[0].norms, rtol=1e-12, atol=0)
    for mine, theirs in zip(one, again, strict=True):
        assert mine.losses == theirs.losses
        assert all(real_ranks.same(g, theirs.gradients[-1][n]) for n, g in mine.gradients[-1].items())


@pytest.mark.parametrize(("name", "policy"), quick_first(1, [(n, "bf16") for n in MESHES]))
def test_replay_of_experts_equals_every_bit(ranks, name, policy):
    config = configuration(name, policy)
    real = ranks.run(real_ranks.trained, config.mesh.world_size, config, STEPS)
    found = matched.match(real, matched.replayed(config, STEPS))
    assert found.equal == found.compared, str(found)


@pytest.mark.parametrize(
    ("tables", "field"),
    [
        ({"mesh": {"dp": 4, "ep": 3}}, "mesh.ep"),
        ({"mesh": {"dp": 4, "ep": 4}}, "mesh.ep"),  # 6 experts
        ({"mesh": {"dp": 2, "ep": 2, "zero": 0}}, "mesh.zero"),
        ({"mesh": {"dp": 4, "ep": 2, "dp_shard": 2}}, "mesh.dp_shard"),
        ({"mesh": {"cp": 2}, "model": {"experts": 6, "expert_capacity": 1.0}}, "model.expert_capacity"),
        ({"model": {"experts": 2, "experts_per_token": 3}}, "model.experts_per_token"),
        ({"model": {"experts": 2, "bias": True}}, "model.bias"),
    ],
)
def test_impossible_experts_are_refused(tables, field):
    with pytest.raises(ConfigError) as caught:
        load(None, {"model": {"experts": 6}, **tables})
    assert caught.value.field == field
