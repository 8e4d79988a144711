"""Work of a token, and MFU where the peak is known."""

import pytest
import torch

from reftrain.config.file import load
from reftrain.model.flops import flops_per_token, mfu, peak_bytes


def test_a_token_costs_six_per_weight_plus_attention():
    config = load(None, {"model": {"preset": "8b"}})
    weights = 8.03e9 - 128256 * 4096  # the embedding multiplies nothing
    attention = 12 * 32 * 4096 * 8192
    assert flops_per_token(config.model, 8192) == pytest.approx(6 * weights + attention, rel=1e-3)


def test_mfu_reproduces_a_published_row():
    """The Llama 3 Herd of Models, table 4: 16 384 H100 at 400 TFLOP/s each is 41 % of 989."""
    config = load(
        None,
        {
            "model": {"preset": "405b"},
            "mesh": {"tp": 8, "pp": 16, "dp": 128},
            "pipeline": {"virtual_stages": 8, "balanced": True},
            "run": {"peak_tflops": 989},
        },
    )
    tokens = 2048 * 8192
    step_s = tokens * flops_per_token(config.model, 8192) / (16384 * 400e12)
    assert mfu(config, torch.device("cpu"), step_s) == pytest.approx(0.404, abs=1e-3)


def test_mfu_is_none_where_no_peak_is_known():
    assert mfu(load(None, {}), torch.device("cpu"), 1.0) is None
    assert peak_bytes(torch.device("cpu")) > 50 << 20
