"""The image encoder: a vision transformer from patches to image tokens of the text model's width.

Its weights are sharded by FSDP2 and copied over the tensor and context ranks, each of which encodes the same images.
A rank's image tokens get the gradient of that rank's heads and text alone; because backward is linear, the encoder runs
back from this part, and the sums over ranks are those of its weights (`Spec.sums`, and FSDP2 over context ranks).

Source: Dosovitskiy et al. 2021, "An Image is Worth 16x16 Words", with RMSNorm as in the decoder.
"""

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own habit
from torch import nn

from reftrain.config.encoder import EncoderConfig
from reftrain.model.context import NORMAL_STD, ModelContext
from reftrain.model.layers import Projection, RMSNorm
from reftrain.model.parameters import Spec, SpecModule
from reftrain.rank.events import Segment


def _linear(context: ModelContext, inner: int, rows: int) -> Projection:
    return Projection(Spec((rows, inner), NORMAL_STD, sums=context.tp_sum), None, context.parameter_dtype)


def layer_flops(config: EncoderConfig, images: int) -> int:
    """Forward work of one encoder layer on a number of images: products, and attention of all pairs."""
    weights = config.dim * (4 * config.dim + 2 * config.ffn_dim)
    return 2 * images * config.tokens * (weights + 2 * config.tokens * config.dim)


class Patches(SpecModule):
    """Linear embedding of patches, and a learned position for each."""

    weight: nn.Parameter
    positions: nn.Parameter

    def __init__(self, context: ModelContext, config: EncoderConfig) -> None:
        super().__init__()
        for name, shape in (("weight", (config.dim, config.patch)), ("positions", (config.tokens, config.dim))):
            self.declare(name, Spec(shape, NORMAL_STD, sums=context.tp_sum), context.parameter_dtype)

    def forward(self, patches: torch.Tensor) -> torch.Tensor:
        """(B, tokens, patch) to (B, tokens, width)."""
        return F.linear(patches, self.weight) + self.positions


class EncoderAttention(nn.Module):
    """Attention of all patches of an image to one another."""

    def __init__(self, context: ModelContext, config: EncoderConfig) -> None:
        super().__init__()
        self.heads = config.heads
        self.wq, self.wk, self.wv, self.wo = (_linear(context, config.dim, config.dim) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(B, tokens, width) to the same."""
        heads = [w(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for w in (self.wq, self.wk, self.wv)]
        out: torch.Tensor = self.wo(F.scaled_dot_product_attention(*heads).transpose(1, 2).flatten(2))
        return out


class EncoderFeedForward(nn.Module):
    """Two products with GELU between them."""

    def __init__(self, context: ModelContext, config: EncoderConfig) -> None:
        super().__init__()
        self.w1 = _linear(context, config.dim, config.ffn_dim)
        self.w2 = _linear(context, config.ffn_dim, config.dim)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(B, tokens, width) to the same."""
        out: torch.Tensor = self.w2(F.gelu(self.w1(x)))
        return out


class EncoderLayer(nn.Module):
    """One pre-norm layer of the encoder."""

    def __init__(self, context: ModelContext, config: EncoderConfig, number: int, images: int) -> None:
        super().__init__()
        self.context = context
        eps, sums, dtype = context.model.norm_eps, context.tp_sum, context.parameter_dtype
        self.attention_norm = RMSNorm(config.dim, eps, sums, dtype)
        self.attention = EncoderAttention(context, config)
        self.ffn_norm = RMSNorm(config.dim, eps, sums, dtype)
        self.feed_forward = EncoderFeedForward(context, config)
        self.segment = Segment("encoder", number, "forward", layer_flops(config, images))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(B, tokens, width) to the same."""
        (x,) = self.context.segments.begin(self.segment, x)
        x = x + self.attention(self.attention_norm(x))
        (x,) = self.context.segments.end(self.segment, x + self.feed_forward(self.ffn_norm(x)))
        return x


class Encoder(nn.Module):
    """Patches, layers, a last norm, and the projection to the text model's width."""

    def __init__(self, context: ModelContext, config: EncoderConfig, images: int) -> None:
        super().__init__()
        self.patches = Patches(context, config)
        self.layers = nn.ModuleDict(
            {str(number): EncoderLayer(context, config, number, images) for number in range(config.layers)}
        )
        self.norm = RMSNorm(config.dim, context.model.norm_eps, context.tp_sum, context.parameter_dtype)
        self.projection = _linear(context, config.dim, context.model.dim)

    def forward(self, patches: torch.Tensor) -> torch.Tensor:
        """(B, tokens, patch) to (B, tokens, D)."""
        x = self.patches(patches)
        for layer in self.layers.values():
            x = layer(x)
        out: torch.Tensor = self.projection(self.norm(x))
        return out


class EncoderStage(nn.Module):
    """The encoder as a stage of its own, so that it is sharded, stepped and saved like the others."""

    unit = "encoder"

    def __init__(self, context: ModelContext, config: EncoderConfig, images: int) -> None:
        super().__init__()
        self.encoder = Encoder(context, config, images)

    @property
    def layers(self) -> nn.ModuleDict:
        """Parts that FSDP2 shards one by one."""
        return self.encoder.layers

    def forward(self, patches: torch.Tensor) -> torch.Tensor:
        """(B, tokens, patch) to image tokens (B, tokens, D)."""
        tokens: torch.Tensor = self.encoder(patches)
        return tokens
