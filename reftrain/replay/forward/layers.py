"""One decoder layer for all virtual ranks of a stage: Llama's blocks by their definitions, on local shapes.

The shapes, splits and contiguity are those of the ranks, because a matrix product's bits depend on them.
`Weights` are the local pieces of one rank by parameter name.
"""

from collections.abc import Mapping, Sequence
from contextlib import nullcontext

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own habit
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from reftrain.config.run import ModelConfig, RunConfig
from reftrain.replay.batch import Share
from reftrain.replay.document_pieces import attend_pieces
from reftrain.replay.forward.experts import Mixture
from reftrain.replay.forward.ring_attention import ring_attention
from reftrain.replay.virtual_ranks import Ranks, VirtualRanks

Weights = Mapping[str, Tensor]


def linear(x: Tensor, weights: Weights, name: str) -> Tensor:
    """Product with a named weight, and its bias if it has one."""
    return F.linear(x, weights[f"{name}.weight"], weights.get(f"{name}.bias"))


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Divide by the root mean square, at least in FP32; Zhang and Sennrich 2019, equation 4."""
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    scaled = wide * torch.rsqrt(wide.square().mean(dim=-1, keepdim=True) + eps)
    return scaled.to(x.dtype) * weight


def turn(x: Tensor, table: Tensor) -> Tensor:
    """Turn neighbouring pairs of (B, H, S, D) by the angles of the table (2, S, D/2)."""
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    first, second = wide[..., 0::2], wide[..., 1::2]
    cosine, sine = table.to(wide.dtype)
    pairs = torch.stack([first * cosine - second * sine, first * sine + second * cosine], dim=-1)
    return pairs.flatten(-2).to(x.dtype)


def project(model: ModelConfig, x: Tensor, weights: Weights, name: str) -> dict[str, Tensor]:
    """Outputs (B, S, rows) of the projections in front of attention, by their names."""
    names = ("wqkv",) if model.fused_qkv else ("wq", "wk", "wv")
    return {w: linear(x, weights, f"{name}.{w}") for w in names}


def heads(model: ModelConfig, projected: Mapping[str, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values (B, S, heads, width) from the projections.

    A fused weight holds, for each key head, its group's queries, then its key, then its value.
    """
    width, groups = model.head_dim, model.heads // model.kv_heads
    if not model.fused_qkv:
        split = [_unflatten(t, width) for t in projected.values()]
        return split[0], split[1], split[2]
    blocks = _unflatten(projected["wqkv"], groups + 2, width)
    queries, keys, values = torch.split(blocks, [groups, 1, 1], dim=-2)
    return queries.flatten(2, 3), keys.squeeze(3), values.squeeze(3)


def _unflatten(x: Tensor, *sizes: int) -> Tensor:
    """Split the last dimension into (…, *sizes)."""
    return torch.unflatten(x, -1, (-1, *sizes))


class Layers:
    """The computation between two stage boundaries, for the ranks in lock step."""

    def __init__(self, config: RunConfig, virtual_ranks: VirtualRanks) -> None:
        self.config, self.model, self.virtual_ranks = config, config.model, virtual_ranks
        self.mixture = Mixture(config, virtual_ranks)
        self.ring = config.numerics.cp_method == "ring" and config.mesh.cp > 1

    def norm(self, xs: Ranks, weights: Sequence[Weights], name: str) -> Ranks:
        """Normalise on every rank."""
        out = [
            rms_norm(x, w[f"{name}.weight"], self.model.norm_eps) for x, w in zip(xs, weights, strict=True)
        ]
        return self.virtual_ranks.observer.value(f"{name}.out", out)

    def layer(self, xs: Ranks, weights: Sequence[Weights], batch: Sequence[Share], number: int) -> Ranks:
        """Both residual branches of one layer."""
        pre = f"layers.{number}"
        branch = self.attention(
            self.norm(xs, weights, f"{pre}.attention_norm"), weights, batch, f"{pre}.attention"
        )
        xs = [x + b for x, b in zip(xs, branch, strict=True)]
        xs_in = self.norm(xs, weights, f"{pre}.ffn_norm")
        if self.model.experts:
            branch = self.experts(xs_in, weights, f"{pre}.feed_forward")
        else:
            branch = self.feed_forward(xs_in, weights, f"{pre}.feed_forward")
        xs = [x + b for x, b in zip(xs, branch, strict=True)]
        return self.virtual_ranks.observer.value(f"{pre}.out", xs)

    def attention(self, xs: Ranks, weights: Sequence[Weights], batch: Sequence[Share], name: str) -> Ranks:
        """Grouped-query attention; (B, S or S/tp, D) to the same."""
        whole = self.virtual_ranks.enter(xs, f"{name}.qkv")
        whole = self.virtual_ranks.observer.value(f"{name}.qkv.in", whole)
        crosses = self.model.crosses(int(name.split(".")[1]))
        project = self._cross_queries if crosses else self._queries
        shown = [
            project(x, w, share, f"{name}.qkv") for x, w, share in zip(whole, weights, batch, strict=True)
        ]
        parts = list(shown[0])
        for part in parts[:-3]:
            self.virtual_ranks.observer.shown(f"{name}.qkv.{part}", [rank[part] for rank in shown])
        queries, keys, values = (
            self.virtual_ranks.observer.value(f"{name}.qkv.{part}", [rank[part] for rank in shown])
            for part in parts[-3:]
        )
        core = self._cross_core if crosses else self._core
        attended = core(queries, keys, values, batch, name)
        inputs = [a.transpose(1, 2).flatten(2) for a in attended]
        inputs = self.virtual_ranks.observer.value(f"{name}.wo.in", inputs)
        return self._row(inputs, weights, name, "wo")

    def _queries(self, x: Tensor, weights: Weights, share: Share, name: str) -> dict[str, Tensor]:
        """Everything in front of attention on one rank, by name; queries, keys and values are (B, H, S, D)."""
        projected = project(self.model, x, weights, name)
        shown = {f"{part}.out": value for part, value in projected.items()}
        queries, keys, values = heads(self.model, projected)
        if self.model.qk_norm:
            queries = rms_norm(queries, weights[f"{name}.q_norm.weight"], self.model.norm_eps)
            keys = rms_norm(keys, weights[f"{name}.k_norm.weight"], self.model.norm_eps)
            shown |= {"q_norm.out": queries, "k_norm.out": keys}
        q, k, v = (t.transpose(1, 2).contiguous() for t in (queries, keys, values))
        return {**shown, "queries": turn(q, share.rope), "keys": turn(k, share.rope), "values": v}

    def _cross_queries(self, x: Tensor, weights: Weights, share: Share, name: str) -> dict[str, Tensor]:
        """Queries of the text, keys and values of the image tokens, cast at each use; without positions."""
        assert share.images is not None  # noqa: S101 - images are encoded first
        images = share.images.view_as(share.images)  # gradients of a layer are added before those of layers
        inputs = {"wq": x, "wk": images.to(x.dtype), "wv": images.to(x.dtype)}
        projected = {w: linear(source, weights, f"{name}.{w}") for w, source in inputs.items()}
        shown = {f"{part}.out": value for part, value in projected.items()}
        queries, keys, values = heads(self.model, projected)
        if self.model.qk_norm:
            queries = rms_norm(queries, weights[f"{name}.q_norm.weight"], self.model.norm_eps)
            keys = rms_norm(keys, weights[f"{name}.k_norm.weight"], self.model.norm_eps)
            shown |= {"q_norm.out": queries, "k_norm.out": keys}
        q, k, v = (t.transpose(1, 2).contiguous() for t in (queries, keys, values))
        return {**shown, "queries": q, "keys": k, "values": v}

    def _cross_core(
        self, queries: Ranks, keys: Ranks, values: Ranks, batch: Sequence[Share], name: str
    ) -> Ranks:
        """Attention of every text token to all image tokens."""
        del batch, name
        groups = queries[0].shape[1] // keys[0].shape[1]
        if groups > 1:
            keys, values = ([t.repeat_interleave(groups, dim=1) for t in ts] for ts in (keys, values))
        with sdpa_kernel(SDPBackend.MATH) if self.config.numerics.attention == "math" else nullcontext():
            return [
                F.scaled_dot_product_attention(q, k, v) for q, k, v in zip(queries, keys, values, strict=True)
            ]

    def _core(self, queries: Ranks, keys: Ranks, values: Ranks, batch: Sequence[Share], name: str) -> Ranks:
        if self.ring:
            masks = [share.mask for share in batch]
            return ring_attention(self.virtual_ranks, queries, keys, values, masks, name)
        keys, values = self.virtual_ranks.gather_keys_values(keys, values, name)
        with sdpa_kernel(SDPBackend.MATH) if self.config.numerics.attention == "math" else nullcontext():
            return [
                attend(q, k, v, share) for q, k, v, share in zip(queries, keys, values, batch, strict=True)
            ]

    def feed_forward(self, xs: Ranks, weights: Sequence[Weights], name: str) -> Ranks:
        """w2(silu(w1 x) · w3 x); Shazeer 2020."""
        whole = self.virtual_ranks.enter(xs, f"{name}.w1")
        whole = self.virtual_ranks.observer.value(f"{name}.w1.in", whole)
        gates, ups, inputs = [], [], []
        for x, w in zip(whole, weights, strict=True):
            gates.append(linear(x, w, f"{name}.w1"))
            silu = F.silu(gates[-1])
            ups.append(linear(x, w, f"{name}.w3"))
            inputs.append(silu * ups[-1])
        for part, values in (("w1.out", gates), ("w3.out", ups)):
            self.virtual_ranks.observer.shown(f"{name}.{part}", values)
        inputs = self.virtual_ranks.observer.value(f"{name}.w2.in", inputs)
        return self._row(inputs, weights, name, "w2")

    def experts(self, xs: Ranks, weights: Sequence[Weights], name: str) -> Ranks:
        """Mixture of experts in the feed-forward's place."""
        whole = self.virtual_ranks.enter(xs, f"{name}.w1")
        partials = self.mixture.compute(whole, weights, name)
        return self.virtual_ranks.observer.value(
            f"{name}.out", self.virtual_ranks.leave(partials, f"{name}.w2")
        )

    def _row(self, inputs: Ranks, weights: Sequence[Weights], name: str, part: str) -> Ranks:
        """Products of weights cut by columns, summed over tp; then the bias, once."""
        partials = [F.linear(x, w[f"{name}.{part}.weight"]) for x, w in zip(inputs, weights, strict=True)]
        partials = self.virtual_ranks.observer.value(f"{name}.{part}.out", partials)
        out = self.virtual_ranks.leave(partials, f"{name}.{part}")
        if self.model.bias:
            out = [x + w[f"{name}.{part}.bias"] for x, w in zip(out, weights, strict=True)]
        return self.virtual_ranks.observer.value(f"{name}.out", out)


def attend(queries: Tensor, keys: Tensor, values: Tensor, share: Share) -> Tensor:
    """Scaled dot-product attention (B, H, Sq, D); each key head serves its group of query heads."""
    groups = queries.shape[1] // keys.shape[1]
    if groups > 1:
        keys, values = keys.repeat_interleave(groups, dim=1), values.repeat_interleave(groups, dim=1)
    if share.pieces:
        return attend_pieces(queries, keys, values, share.pieces)
    mask = share.mask
    return F.scaled_dot_product_attention(queries, keys, values, attn_mask=mask, is_causal=mask is None)
