"""The image encoder: a vision transformer from patches to image tokens of the text model's width.

Its products are split over the tensor ranks without sequence parallelism, its weights sharded by FSDP2. Every context
rank encodes the same images and runs back from the gradient of its own text alone; because backward is linear, FSDP2's
sum over context ranks completes the gradients of the weights.

Source: Dosovitskiy et al. 2021, "An Image is Worth 16x16 Words", with RMSNorm as in the decoder.
"""

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own habit
from torch import nn

from reftrain.config.encoder import EncoderConfig
from reftrain.model.context import NORMAL_STD, ModelContext
from reftrain.model.layers import Projection, RMSNorm, RowProjection
from reftrain.model.parameters import Spec, SpecModule
from reftrain.parallel.tensor import TensorParallel
from reftrain.rank.events import Segment


def _column(context: ModelContext, inner: int, rows: int) -> Projection:
    return Projection(context.split((rows, inner), 0), None, context.parameter_dtype)


def _row(context: ModelContext, inner: int, rows: int) -> RowProjection:
    return RowProjection(context.split((rows, inner), 1), None, context.parameter_dtype)


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
        for name, shape in (
            ("weight", (config.dim, config.patch)),
            ("positions", (config.tokens, config.dim)),
        ):
            self.declare(name, Spec(shape, NORMAL_STD), context.parameter_dtype)

    def forward(self, patches: torch.Tensor) -> torch.Tensor:
        """(B, tokens, patch) to (B, tokens, width)."""
        return F.linear(patches, self.weight) + self.positions


class EncoderAttention(nn.Module):
    """Attention of all patches of an image to one another."""

    def __init__(self, context: ModelContext, config: EncoderConfig) -> None:
        super().__init__()
        self.width = config.dim // config.heads
        self.wq, self.wk, self.wv = (_column(context, config.dim, config.dim) for _ in range(3))
        self.wo = _row(context, config.dim, config.dim)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(B, tokens, width) to this tensor rank's partial sums of the same."""
        heads = [w(x).unflatten(-1, (-1, self.width)).transpose(1, 2) for w in (self.wq, self.wk, self.wv)]
        out: torch.Tensor = self.wo(F.scaled_dot_product_attention(*heads).transpose(1, 2).flatten(2))
        return out


class EncoderFeedForward(nn.Module):
    """Two products with GELU between them."""

    def __init__(self, context: ModelContext, config: EncoderConfig) -> None:
        super().__init__()
        self.w1 = _column(context, config.dim, config.ffn_dim)
        self.w2 = _row(context, config.ffn_dim, config.dim)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(B, tokens, width) to this tensor rank's partial sums of the same."""
        out: torch.Tensor = self.w2(F.gelu(self.w1(x)))
        return out


class EncoderLayer(nn.Module):
    """One pre-norm layer of the encoder."""

    def __init__(self, context: ModelContext, config: EncoderConfig, number: int, images: int) -> None:
        super().__init__()
        self.context, self.name = context, f"encoder.layers.{number}"
        self.tp = TensorParallel(context.tp.axis, sequence_parallel=False)
        eps, dtype = context.model.norm_eps, context.parameter_dtype
        self.attention_norm = RMSNorm(config.dim, eps, (), dtype)
        self.attention = EncoderAttention(context, config)
        self.ffn_norm = RMSNorm(config.dim, eps, (), dtype)
        self.feed_forward = EncoderFeedForward(context, config)
        work = layer_flops(config, images) // context.tp.axis.size
        self.segments = (
            Segment("encoder", number, "forward", work // 2),
            Segment("encoder", number, "forward", work - work // 2),
        )

    def _branch(
        self, part: nn.Module, x: torch.Tensor, names: tuple[str, str], segment: Segment
    ) -> torch.Tensor:
        """Run one residual branch between its collectives."""
        whole = self.tp.enter(x, f"{self.name}.{names[0]}")
        (whole,) = self.context.segments.begin(segment, whole)
        (partial,) = self.context.segments.end(segment, part(whole))
        return self.tp.leave(partial, f"{self.name}.{names[1]}")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(B, tokens, width) to the same."""
        names = ("attention.qkv", "attention.wo"), ("feed_forward.w1", "feed_forward.w2")
        x = x + self._branch(self.attention, self.attention_norm(x), names[0], self.segments[0])
        return x + self._branch(self.feed_forward, self.ffn_norm(x), names[1], self.segments[1])


class Encoder(nn.Module):
    """Patches, layers, a last norm, and the projection to the text model's width."""

    def __init__(self, context: ModelContext, config: EncoderConfig, images: int) -> None:
        super().__init__()
        self.patches = Patches(context, config)
        self.layers = nn.ModuleDict(
            {str(number): EncoderLayer(context, config, number, images) for number in range(config.layers)}
        )
        self.norm = RMSNorm(config.dim, context.model.norm_eps, (), context.parameter_dtype)
        whole = Spec((context.model.dim, config.dim), NORMAL_STD)
        self.projection = Projection(whole, None, context.parameter_dtype)

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
