"""Memory by kind against what the shapes say."""

import pytest
import torch

from reftrain.config.file import load
from reftrain.rank.hooks import HookList
from reftrain.record.memory import MemoryByKind, SavedBytes, distinct
from tests.reftrain import workers

LAYER = 64 * 8 * 16 + 64 * 64 + 3 * 64 * 128 + 2 * 64
WHOLE = 2 * LAYER + 2 * 260 * 64 + 64
FP32, BF16 = 4, 2


def figures(rank, world, store, config):
    memory = MemoryByKind()
    out = []
    with workers.trainer(rank, world, store, config, HookList([memory])) as made:
        for step in range(2):
            made.apply_gradients(step, made.compute_gradients(step).norm)
            out.append(memory.figures())
    return out


def measured(ranks, **tables):
    config = load(None, {"model": {"layers": 2}, "data": {"batch_size": 8}, **tables})
    results = ranks.run(figures, config.mesh.world_size, config)
    for first, second in results:
        assert second == first, "every step alike"
    return [second for _, second in results]


def test_storages_count_once():
    x = torch.zeros(10)
    assert distinct([x, x[2:], x.view(2, 5), torch.zeros(3)]) == 40 + 12


def test_saved_bytes_leave_weights_out():
    w, x = torch.ones(5, 5, requires_grad=True), torch.ones(3, 5, requires_grad=True)
    saved = SavedBytes({w.untyped_storage().data_ptr()})
    with saved:
        ((x @ w).sin()).sum()
    assert saved.bytes == 2 * 3 * 5 * FP32  # x, and the product


def test_one_rank_holds_the_whole_model(ranks):
    (got,) = measured(ranks, numerics={"policy": "fp32"})
    assert got["optimizer"] == 2 * WHOLE * FP32
    assert got["gradients"] == WHOLE * FP32
    assert WHOLE * FP32 <= got["weights"] <= 2 * WHOLE * FP32
    assert got["activations"] > 8 * 64 * 64 * FP32
    assert got["buffers"] == 0


def test_sharding_halves_what_it_shards(ranks):
    for got in measured(ranks, mesh={"dp": 2, "zero": 3}):
        assert got["optimizer"] == pytest.approx(WHOLE * FP32, rel=0.01)
        assert got["gradients"] == pytest.approx(WHOLE * FP32 / 2, rel=0.01)
        assert got["weights"] < WHOLE * (FP32 / 2 + BF16)
    for got in measured(ranks, mesh={"dp": 2, "zero": 1}):
        assert got["weights"] == pytest.approx(WHOLE * (FP32 / 2 + BF16), rel=0.02)


def test_activations_follow_the_micro_batches_in_flight(ranks):
    """1F1B holds as many forwards as stages lie ahead; all-forward-all-backward holds all."""
    first, last = measured(ranks, mesh={"pp": 2}, pipeline={"schedule": "1f1b"})
    all_first, _ = measured(ranks, mesh={"pp": 2}, pipeline={"schedule": "gpipe"})
    assert all_first["activations"] == 4 * first["activations"]
    assert first["buffers"] > 0
    assert last["buffers"] > 0


def test_recomputing_keeps_less(ranks):
    (usual,) = measured(ranks)
    (less,) = measured(ranks, numerics={"recompute": "full"})
    assert less["activations"] < usual["activations"] / 2
