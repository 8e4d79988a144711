"""A layer under SPMD 2-D sharding for all ranks of the model axis, by the tables of "Llama 2 with PyTorch/XLA SPMD".

Residuals are cut by features, (B, S, D/tp). Queries, keys and values are sums over the ranks' features, each rank
keeping its heads; attention's output is gathered in front of the output projection, which each rank computes by rows.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own habit
from torch import Tensor

from reftrain.replay.batch import Share
from reftrain.replay.forward.layers import Layers, Weights, linear, turn
from reftrain.replay.ring import ring_sum
from reftrain.replay.virtual_ranks import Ranks, VirtualRanks, joint


class AnnotatedRanks(VirtualRanks):
    """Ranks of the model axis: features are gathered, summed and cut, summed and kept."""

    def _gather_features(self, label: str, tensors: Ranks) -> Ranks:
        """(B, S, D/tp) to (B, S, D)."""
        groups, axis = self.groups("tp"), ("tp", "all_gather", label)
        sent = self.observer.collective_in(*axis, groups, [t.contiguous() for t in tensors])
        out: Ranks = [torch.empty(0)] * len(self)
        for group in groups:
            whole = torch.cat([sent[r] for r in group], dim=-1)
            for r in group:
                out[r] = whole.clone()
        return self.observer.collective_out(*axis, groups, out)

    def _scatter_features(self, label: str, tensors: Ranks) -> Ranks:
        """(B, S, D) to (B, S, D/tp), summed; the buffer holds one destination after the other."""
        groups, axis = self.groups("tp"), ("tp", "reduce_scatter", label)
        sent = self.observer.collective_in(*axis, groups, [t.contiguous() for t in tensors])
        out: Ranks = [torch.empty(0)] * len(self)
        for group in groups:
            total = ring_sum([torch.stack(sent[r].chunk(self.tp, dim=-1)) for r in group])
            for index, r in enumerate(group):
                out[r] = total[index].clone()
        return self.observer.collective_out(*axis, groups, out)

    def enter(self, tensors: Ranks, label: str) -> Ranks:
        """Gather features in front of weights cut by rows; gradients are summed and cut."""
        if self.tp == 1:
            return tensors
        return joint(
            lambda x: self._gather_features(label, x),
            lambda g: self._scatter_features(f"{label}.grad", g),
            tensors,
        )

    def leave(self, partials: Ranks, label: str) -> Ranks:
        """Sum products of weights cut by columns, each rank keeping its features; gradients are gathered."""
        if self.tp == 1:
            return partials
        return joint(
            lambda x: self._scatter_features(label, x),
            lambda g: self._gather_features(f"{label}.grad", g),
            partials,
        )

    def total(self, partials: Ranks, label: str) -> Ranks:
        """Sum on every rank; every rank's gradient is an addend of the sum's."""
        if self.tp == 1:
            return partials
        return joint(
            lambda x: self.all_reduce("tp", label, [t.contiguous() for t in x]),
            lambda g: self.all_reduce("tp", f"{label}.grad", [t.contiguous() for t in g]),
            partials,
        )


class AnnotatedLayers(Layers):
    """The computation of a stage with annotated weights and activations."""

    @property
    def ranks(self) -> AnnotatedRanks:
        """The ranks of the model axis."""
        if not isinstance(self.virtual_ranks, AnnotatedRanks):
            raise TypeError("annotated layers run on annotated ranks")
        return self.virtual_ranks

    def norm(self, xs: Ranks, weights: Sequence[Weights], name: str) -> Ranks:
        """Root mean square over all ranks' features, the rank's own features of the weight."""
        ranks, model = self.ranks, self.model
        wide = [x.to(torch.promote_types(x.dtype, torch.float32)) for x in xs]
        squares = ranks.total([w.square().sum(dim=-1, keepdim=True) for w in wide], f"{name}.squares")
        out = []
        for place, (x, held, sums) in enumerate(zip(wide, weights, squares, strict=True)):
            own = held[f"{name}.weight"].chunk(ranks.tp)[place % ranks.tp]
            scaled = x * torch.rsqrt(sums / model.dim + model.norm_eps)
            out.append(scaled.to(xs[place].dtype) * own.to(xs[place].dtype))
        return ranks.observer.value(f"{name}.out", out)

    def attention(self, xs: Ranks, weights: Sequence[Weights], batch: Sequence[Share], name: str) -> Ranks:
        """Grouped-query attention; (B, S, D/tp) to the same."""
        ranks, qkv = self.ranks, f"{name}.qkv"
        parts = ("wq", "wk", "wv")
        xs = ranks.observer.value(f"{qkv}.in", xs)
        projected = [[linear(x, w, f"{qkv}.{p}") for p in parts] for x, w in zip(xs, weights, strict=True)]
        heads = []
        for number, part in enumerate(parts):
            addends = ranks.observer.value(f"{qkv}.{part}.out", [of_rank[number] for of_rank in projected])
            summed = ranks.leave(addends, f"{qkv}.{part}")
            heads.append([self._heads(t) for t in summed])
        queries, keys = (
            [turn(t, share.rope) for t, share in zip(ts, batch, strict=True)] for ts in heads[:2]
        )
        queries, keys, values = (
            ranks.observer.value(f"{qkv}.{part}", ts)
            for part, ts in (("queries", queries), ("keys", keys), ("values", heads[2]))
        )
        attended = self._core(queries, keys, values, batch, name)
        whole = ranks.enter([a.transpose(1, 2).flatten(2) for a in attended], f"{name}.wo")
        whole = ranks.observer.value(f"{name}.wo.in", whole)
        out = [F.linear(x, w[f"{name}.wo.weight"]) for x, w in zip(whole, weights, strict=True)]
        return ranks.observer.value(f"{name}.out", out)

    def _heads(self, x: Tensor) -> Tensor:
        """(B, S, H · width) to (B, H, S, width)."""
        return torch.unflatten(x, -1, (-1, self.model.head_dim)).transpose(1, 2).contiguous()
