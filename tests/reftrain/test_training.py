"""Training itself: it learns real text alike in every layout, and the optimiser is AdamW."""

from pathlib import Path

import numpy as np
import pytest
import torch

from reftrain.config.file import load
from reftrain.config.run import OptimizerConfig
from reftrain.rank.hooks import Hooks
from reftrain.train.optimizer import AdamW, clip_coefficient, learning_rate
from tests.reftrain import workers

TEXT = Path(__file__).parents[2] / "LICENSE"
LAYOUTS = [{}, {"tp": 2}, {"pp": 2}]


def curve(ranks, mesh, steps):
    """Losses of all steps of a small model over real text."""
    config = load(
        None,
        {
            "mesh": mesh,
            "model": {"layers": 2, "dim": 32, "heads": 4, "kv_heads": 2, "ffn_dim": 64},
            "data": {
                "source": "text",
                "files": [str(TEXT)],
                "batch_size": 8,
                "seq_len": 32,
                "micro_batch_size": 4,
            },
            "numerics": {"policy": "fp32"},
            "optimizer": {"learning_rate": 3e-3, "warmup_steps": 10},
            "run": {"steps": steps},
        },
    )
    return np.array(ranks.run(workers.losses, config.mesh.world_size, config, timeout=280)[0])


def test_loss_falls_on_real_text(ranks):
    losses = curve(ranks, {"pp": 2}, 30)
    assert abs(losses[0] - np.log(260)) < 0.05
    assert losses[-5:].mean() < losses[:5].mean() - 0.7


@pytest.mark.slow
def test_loss_falls_alike_on_real_text_in_three_layouts(ranks):
    """200 steps over real text: from no knowledge (ln 260) to far below, the curves on top of each other."""
    curves = [curve(ranks, mesh, 200) for mesh in LAYOUTS]
    for losses in curves:
        assert abs(losses[0] - np.log(260)) < 0.05
        assert losses[-20:].mean() < 2.5
    apart = max(float(np.abs(losses / curves[0] - 1).max()) for losses in curves[1:])
    print(f"last losses {[round(float(c[-1]), 4) for c in curves]}, greatest relative distance {apart:.1e}")
    assert apart < 1e-3, "FP32 rounding grows over steps, but not into another curve"


def test_adamw_is_the_published_algorithm():
    """Against algorithm 2 of Loshchilov and Hutter written out."""
    config = OptimizerConfig(weight_decay=0.1, clip_norm=0.0)
    torch.manual_seed(0)
    matrix, vector = torch.randn(3, 4), torch.randn(4)
    expected = {"m": matrix.double().clone(), "v": vector.double().clone()}
    optimizer = AdamW(
        config,
        {"m": matrix, "v": vector, "empty": torch.empty(0, 4)},
        {"m": True, "v": False, "empty": True},
        Hooks(),
    )
    first = {n: torch.zeros_like(t) for n, t in expected.items()}
    second = {n: torch.zeros_like(t) for n, t in expected.items()}
    for step in range(1, 4):
        grads = {n: torch.randn(t.shape) for n, t in expected.items()}
        optimizer.step({**grads, "empty": torch.empty(0, 4)}, 0.01, None)
        for name, value in expected.items():
            g = grads[name].double()
            first[name] = 0.9 * first[name] + 0.1 * g
            second[name] = 0.95 * second[name] + 0.05 * g * g
            update = (first[name] / (1 - 0.9**step)) / ((second[name] / (1 - 0.95**step)).sqrt() + 1e-8)
            decay = 0.1 if name == "m" else 0.0
            expected[name] = value - 0.01 * (update + decay * value)
    torch.testing.assert_close(matrix.double(), expected["m"], rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(vector.double(), expected["v"], rtol=1e-5, atol=1e-6)


def test_bf16_shards_are_rounded_masters():
    shard = torch.ones(4, dtype=torch.bfloat16)
    optimizer = AdamW(OptimizerConfig(weight_decay=0.0), {"w": shard}, {"w": True}, Hooks())
    for _ in range(8):  # each step is below half a BF16 ulp of 1
        optimizer.step({"w": torch.ones(4, dtype=torch.bfloat16)}, 1e-3, None)
    assert torch.equal(shard, optimizer.state()["master"]["w"].bfloat16())
    torch.testing.assert_close(
        optimizer.state()["master"]["w"], torch.full((4,), 1 - 8e-3), rtol=1e-5, atol=0
    )
    assert not torch.equal(shard, torch.ones(4, dtype=torch.bfloat16)), "small steps add up in the master"


def test_learning_rate_warms_up_and_falls_on_a_cosine():
    config = OptimizerConfig(learning_rate=1.0, final_share=0.1, warmup_steps=4)
    rates = [learning_rate(config, step, 24) for step in range(30)]
    assert rates[:5] == [0.25, 0.5, 0.75, 1.0, 1.0]
    assert rates[14] == pytest.approx(0.55)
    assert rates[24:] == pytest.approx([0.1] * 6)


def test_clipping():
    assert clip_coefficient(torch.tensor([4.0]), 1.0).item() == pytest.approx(0.25)
    assert clip_coefficient(torch.tensor([0.5]), 1.0).item() == 1.0
    assert clip_coefficient(torch.tensor([4.0]), 0.0) is None
