"""Work of a token and the share of the devices' peak that training reaches (MFU)."""

import resource
import sys
from typing import TYPE_CHECKING

from reftrain.config.run import EncoderConfig, ModelConfig, RunConfig

if TYPE_CHECKING:
    import torch

PEAK_TFLOPS = {
    "H100 PCIe": 756.0,
    "H100 NVL": 835.0,
    "H100": 989.0,
    "H200": 989.0,
    "A100": 312.0,
    "B200": 2250.0,
    "P100": 18.7,
}
"""Dense 16-bit peak by the first of these in the device's name, TFLOP/s (NVIDIA's data sheets; SXM unless named)."""


def flops_per_token(model: ModelConfig, seq_len: int) -> int:
    """Floating-point operations of forward and backward a token: 6 a matrix element, and attention.

    Source: Chowdhery et al. 2022, "PaLM", appendix B (attention counted in full, recomputation not).
    """
    attention = model.dim * model.head_dim * 2 * (model.heads + model.kv_heads)
    layer = attention + 3 * model.dim * model.ffn_dim * model.computed_experts + model.dim * model.experts
    matrices = model.layers * layer + model.vocab_size * model.dim
    return 6 * matrices + 12 * model.layers * model.heads * model.head_dim * seq_len


def flops_per_sequence(model: ModelConfig, encoder: EncoderConfig, seq_len: int) -> int:
    """Floating-point operations of forward and backward a sequence with its image, counted as `flops_per_token` does.

    A frozen layer has no products for gradients of weights (4 a matrix element, not 6), and one that backward never
    reaches runs forward alone (2).
    """
    if not model.cross_every:
        return seq_len * flops_per_token(model, seq_len)
    columns = model.heads * model.head_dim
    text = 2 * model.dim * columns + 3 * model.dim * model.ffn_dim
    keys = 2 * model.dim * model.kv_heads * model.head_dim
    work = (4 if model.frozen else 6) * seq_len * model.vocab_size * model.dim
    for layer in range(model.layers):
        images, reached = model.crosses(layer), model.passes_gradient(layer)
        each = (6 if model.trains(layer) else 4) if reached else 2
        source = encoder.tokens if images else seq_len
        work += each * (seq_len * text + source * keys) + (12 if reached else 4) * seq_len * source * columns
    layers = encoder.layers * (4 * encoder.dim**2 + 2 * encoder.dim * encoder.ffn_dim)
    matrices = layers + encoder.dim * (encoder.patch + model.dim)
    return work + 6 * encoder.tokens * matrices + 12 * encoder.layers * encoder.dim * encoder.tokens**2


def peak_flops(config: RunConfig, device: "torch.device") -> float | None:
    """Peak of one device in FLOP/s, from the configuration or its name; None when unknown."""
    if config.peak_tflops:
        return config.peak_tflops * 1e12
    if device.type != "cuda":
        return None
    import torch

    name = torch.cuda.get_device_name(device)
    return next((peak * 1e12 for word, peak in PEAK_TFLOPS.items() if word in name), None)


def mfu(config: RunConfig, device: "torch.device", step_s: float) -> float | None:
    """Model FLOPs utilisation of a step, or None where the peak is unknown."""
    peak = peak_flops(config, device)
    if peak is None:
        return None
    sequence = flops_per_sequence(config.model, config.encoder, config.data.seq_len)
    work = config.data.batch_size * sequence
    return work / (step_s * peak * config.mesh.world_size)


def peak_bytes(device: "torch.device") -> int:
    """Peak memory of this process: on the device, or resident on a CPU."""
    if device.type == "cuda":
        import torch

        return torch.cuda.max_memory_allocated(device)
    scale = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * scale
