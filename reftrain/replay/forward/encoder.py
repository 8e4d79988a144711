"""The image encoder for all virtual ranks of a pipeline rank: Dosovitskiy et al. 2021, with RMSNorm.

Heads and inner width are cut over tp; what lies outside is whole on every rank, without sequence parallelism.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own habit
from torch import Tensor

from reftrain.config.run import RunConfig
from reftrain.replay.forward.layers import Weights, linear, rms_norm
from reftrain.replay.virtual_ranks import Ranks, VirtualRanks


def encode(
    config: RunConfig, virtual_ranks: VirtualRanks, weights: Sequence[Weights], images: Tensor
) -> Ranks:
    """Image tokens (B, I, D) of patches (B, I, patch) on every rank."""
    eps = config.model.norm_eps

    def norm(xs: Ranks, name: str) -> Ranks:
        return [rms_norm(x, w[f"encoder.{name}.weight"], eps) for x, w in zip(xs, weights, strict=True)]

    xs = [linear(images, w, "encoder.patches") + w["encoder.patches.positions"] for w in weights]
    for number in range(config.encoder.layers):
        pre = f"layers.{number}"
        inputs = virtual_ranks.enter(norm(xs, f"{pre}.attention_norm"), f"encoder.{pre}.attention.qkv")
        pairs = zip(inputs, weights, strict=True)
        parts = [_attention(x, w, f"encoder.{pre}.attention", config) for x, w in pairs]
        branch = virtual_ranks.leave(parts, f"encoder.{pre}.attention.wo")
        xs = [x + b for x, b in zip(xs, branch, strict=True)]
        inputs = virtual_ranks.enter(norm(xs, f"{pre}.ffn_norm"), f"encoder.{pre}.feed_forward.w1")
        parts = [_inner(x, w, f"encoder.{pre}.feed_forward") for x, w in zip(inputs, weights, strict=True)]
        branch = virtual_ranks.leave(parts, f"encoder.{pre}.feed_forward.w2")
        xs = [x + b for x, b in zip(xs, branch, strict=True)]
    return [linear(x, w, "encoder.projection") for x, w in zip(norm(xs, "norm"), weights, strict=True)]


def _inner(x: Tensor, weights: Weights, name: str) -> Tensor:
    """Partial sums of the feed-forward on one rank."""
    return linear(F.gelu(linear(x, weights, f"{name}.w1")), weights, f"{name}.w2")


def _attention(x: Tensor, weights: Weights, name: str, config: RunConfig) -> Tensor:
    """Attention of all patches to all, with one rank's heads; its partial sums."""
    width = config.encoder.dim // config.encoder.heads
    projected = [linear(x, weights, f"{name}.{w}") for w in ("wq", "wk", "wv")]
    queries, keys, values = (torch.unflatten(t, -1, (-1, width)).transpose(1, 2) for t in projected)
    attended = F.scaled_dot_product_attention(queries, keys, values)
    return linear(attended.transpose(1, 2).flatten(2), weights, f"{name}.wo")
