"""Building blocks of the decoder with tensor-parallel parts: projections, RMSNorm, attention, SwiGLU.

Shapes: B sequences, S tokens (all of the rank's context part), D width, H heads of this tensor rank.
"""

from dataclasses import replace

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own habit
from torch import nn

from reftrain.model.attention import attend, attend_images, recomputed, ring_mask
from reftrain.model.batch import LocalBatch
from reftrain.model.context import NORMAL_STD, ModelContext
from reftrain.model.parameters import Spec, SpecModule, gathered
from reftrain.parallel.context import gather_keys_values
from reftrain.parallel.ring import BlockSegments, ring_attention


class Projection(SpecModule):
    """A linear map with a weight that is split over `tp` by rows (column-parallel)."""

    weight: nn.Parameter
    bias: nn.Parameter | None

    def __init__(self, weight: Spec, bias: Spec | None, dtype: torch.dtype) -> None:
        super().__init__()
        self.declare("weight", weight, dtype)
        if bias is not None:
            self.declare("bias", bias, dtype)
        else:
            self.bias = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(…, in) to (…, out/tp)."""
        return F.linear(x, gathered(self.weight), self.bias)


class RowProjection(Projection):
    """A row-parallel projection: the partial sums leave the tensor axis before the bias is added, once."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(…, in/tp) to this rank's partial sums (…, out)."""
        return F.linear(x, gathered(self.weight))

    def finish(self, x: torch.Tensor) -> torch.Tensor:
        """Add the bias to what has left the tensor axis."""
        return x if self.bias is None else x + self.bias


class RMSNorm(SpecModule):
    """Root mean square normalisation, computed in FP32 (or wider) whatever the compute format.

    Source: Zhang and Sennrich 2019, equation 4.
    """

    weight: nn.Parameter

    def __init__(self, width: int, eps: float, sums: tuple[str, ...], dtype: torch.dtype) -> None:
        super().__init__()
        self.eps = eps
        self.declare("weight", Spec((width,), std=0.0, sums=sums), dtype)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(…, width) to (…, width)."""
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        normal = wide * torch.rsqrt(wide.square().mean(dim=-1, keepdim=True) + self.eps)
        return normal.to(x.dtype) * self.weight


def column(context: ModelContext, rows: int) -> Projection:
    """Projection from the model width to `rows` that are split over `tp`."""
    bias = context.split((rows,), 0) if context.model.bias else None
    return Projection(context.split((rows, context.model.dim), 0), bias, context.parameter_dtype)


def key_value(context: ModelContext) -> Projection:
    """Projection from the model width to keys or values."""
    rows = context.model.kv_heads * context.model.head_dim
    bias = context.key_value((rows,)) if context.model.bias else None
    return Projection(context.key_value((rows, context.model.dim)), bias, context.parameter_dtype)


def row(context: ModelContext, columns: int) -> RowProjection:
    """Projection from `columns` that are split over `tp` to the model width."""
    weight = context.split((context.model.dim, columns), 1, context.residual_std)
    bias = Spec((context.model.dim,), NORMAL_STD, sums=context.sequence_sum) if context.model.bias else None
    return RowProjection(weight, bias, context.parameter_dtype)


def rotate(x: torch.Tensor, rope: torch.Tensor) -> torch.Tensor:
    """Apply the rotary embedding to pairs of neighbouring elements; (B, H, S, D) with rope (2, S, D/2)."""
    wide = x.to(rope.dtype)
    even, odd = wide[..., 0::2], wide[..., 1::2]
    cos, sin = rope[0], rope[1]
    return torch.stack([even * cos - odd * sin, even * sin + odd * cos], dim=-1).flatten(-2).to(x.dtype)


class Queries(nn.Module):
    """Queries, keys and values: projections (separate or fused), head norms and RoPE."""

    def __init__(self, context: ModelContext) -> None:
        super().__init__()
        self.context = context
        model, dtype = context.model, context.parameter_dtype
        if model.fused_qkv:
            self.wqkv = column(context, model.kv_heads * (context.groups + 2) * model.head_dim)
        else:
            self.wq = column(context, model.heads * model.head_dim)
            self.wk = key_value(context)
            self.wv = key_value(context)
        if model.qk_norm:
            self.q_norm = RMSNorm(model.head_dim, model.norm_eps, context.tp_sum, dtype)
            self.k_norm = RMSNorm(model.head_dim, model.norm_eps, context.tp_sum, dtype)

    def project(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """(B, S, D) to heads (B, S, H, head_dim) of queries, keys and values.

        The fused weight holds, for each key/value head, its group's queries, then its key, then its value.
        """
        width = self.context.model.head_dim
        if not self.context.model.fused_qkv:
            heads = [w(x).unflatten(-1, (-1, width)) for w in (self.wq, self.wk, self.wv)]
            return heads[0], heads[1], heads[2]
        joint = self.wqkv(x).unflatten(-1, (-1, self.context.groups + 2, width))
        queries, keys, values = joint.split([self.context.groups, 1, 1], dim=-2)
        return queries.flatten(2, 3), keys.squeeze(3), values.squeeze(3)

    def forward(self, x: torch.Tensor, rope: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """(B, S, D) to (B, H, S, head_dim) queries, keys and values."""
        queries, keys, values = self.project(x)
        if self.context.model.qk_norm:
            queries, keys = self.q_norm(queries), self.k_norm(keys)
        queries, keys, values = (t.transpose(1, 2).contiguous() for t in (queries, keys, values))
        return rotate(queries, rope), rotate(keys, rope), values


class Attention(nn.Module):
    """Grouped-query attention with document masks over the tensor and context axes."""

    queries: type[Queries] = Queries

    def __init__(self, context: ModelContext, name: str, layer: int) -> None:
        super().__init__()
        self.context, self.name = context, name
        self.qkv = self.queries(context)
        self.wo = row(context, context.model.heads * context.model.head_dim)
        self.qkv_segment = context.segment("qkv", layer)
        self.core_segment = context.segment("attention", layer)
        self.out_segment = context.segment("out", layer)

    def core(
        self, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, batch: LocalBatch
    ) -> torch.Tensor:
        """Attention proper, with the other context ranks' keys and values; (B, H, S, head_dim)."""
        context = self.context
        a_pair = 4 * queries.shape[1] * queries.shape[3]
        if context.ring:
            work = [replace(self.core_segment, flops=a_pair * pairs) for pairs in batch.pairs_by_source]
            blocks = BlockSegments(context.segments.hooks, work)
            return ring_attention(queries, keys, values, ring_mask(batch), context.cp, self.name, blocks)
        if batch.cache is not None:
            keys, values = batch.cache.extend(self.name, keys, values)
        keys, values = gather_keys_values(keys, values, context.cp, self.name)
        segment = replace(self.core_segment, flops=a_pair * batch.pairs)
        queries, keys, values = context.segments.begin(segment, queries, keys, values)
        (out,) = context.segments.end(segment, attend(context.kernel, queries, keys, values, batch))
        return out

    def project(self, whole: torch.Tensor, batch: LocalBatch) -> tuple[torch.Tensor, ...]:
        """(B, S, D) to (B, H, S, head_dim) queries, keys and values."""
        out: tuple[torch.Tensor, ...] = self.qkv(whole, batch.rope)
        return out

    def forward(self, x: torch.Tensor, batch: LocalBatch) -> torch.Tensor:
        """(B, S or S/tp, D) to the same."""
        context = self.context
        whole = context.tp.enter(x, f"{self.name}.qkv")
        (whole,) = context.segments.begin(self.qkv_segment, whole)
        queries, keys, values = context.segments.end(self.qkv_segment, *self.project(whole, batch))
        if context.recompute == "selective":
            attended = recomputed(self.core, queries, keys, values, batch)
        else:
            attended = self.core(queries, keys, values, batch)
        (attended,) = context.segments.begin(self.out_segment, attended)
        (partial,) = context.segments.end(self.out_segment, self.wo(attended.transpose(1, 2).flatten(2)))
        return self.wo.finish(context.tp.leave(partial, f"{self.name}.wo"))


class CrossQueries(Queries):
    """Queries of the text, keys and values of the image tokens: no positions, and no mask later."""

    reads_images = True

    def forward(
        self, x: torch.Tensor, images: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """(B, S, D) and (B, I, D) to (B, H, S or I, head_dim) queries, keys and values.

        Image tokens are cast at each use, so that all their gradients are added in the format they are held in
        ("Scaling Llama 3 Training", section 6.2: FP32): first those of a layer, then the layers'.
        """
        width, dtype = self.context.model.head_dim, x.dtype
        queries, keys, values = (
            w(source).unflatten(-1, (-1, width))
            for w, source in ((self.wq, x), (self.wk, images.to(dtype)), (self.wv, images.to(dtype)))
        )
        if self.context.model.qk_norm:
            queries, keys = self.q_norm(queries), self.k_norm(keys)
        queries, keys, values = (t.transpose(1, 2).contiguous() for t in (queries, keys, values))
        return queries, keys, values


class CrossAttention(Attention):
    """Attention of the text to the image of its sequence; keys and values are whole on every context rank."""

    queries = CrossQueries

    def core(
        self, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, batch: LocalBatch
    ) -> torch.Tensor:
        """Attention proper; (B, H, S, head_dim)."""
        del batch
        context = self.context
        segment = replace(self.core_segment, flops=4 * queries.numel() * keys.shape[2])
        queries, keys, values = context.segments.begin(segment, queries, keys, values)
        (out,) = context.segments.end(segment, attend_images(context.kernel, queries, keys, values))
        return out

    def project(self, whole: torch.Tensor, batch: LocalBatch) -> tuple[torch.Tensor, ...]:
        """Queries of the text, keys and values of the image tokens."""
        if batch.images is None:
            raise AssertionError("image tokens are there before the pipeline runs")
        out: tuple[torch.Tensor, ...] = self.qkv(whole, batch.images.view_as(batch.images))
        return out


class FeedForward(nn.Module):
    """SwiGLU: w2(silu(w1 x) · w3 x). Source: Shazeer 2020, "GLU Variants Improve Transformer"."""

    def __init__(self, context: ModelContext, name: str, layer: int) -> None:
        super().__init__()
        self.context, self.name = context, name
        self.w1 = column(context, context.model.ffn_dim)
        self.w3 = column(context, context.model.ffn_dim)
        self.w2 = row(context, context.model.ffn_dim)
        self.segment = context.segment("ffn", layer)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(B, S or S/tp, D) to the same."""
        context = self.context
        whole = context.tp.enter(x, f"{self.name}.w1")
        (whole,) = context.segments.begin(self.segment, whole)
        partial = self.w2(F.silu(self.w1(whole)) * self.w3(whole))
        (partial,) = context.segments.end(self.segment, partial)
        return self.w2.finish(context.tp.leave(partial, f"{self.name}.w2"))
