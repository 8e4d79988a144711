"""A mixture of experts in place of the feed-forward: router, experts that `ep` deals out, and a shared expert.

The router's scores choose `experts_per_token` experts for each token, and their probabilities weigh what these make of
it; several weights of a token are scaled to sum 1. Every tensor rank routes all tokens of its group and computes its
columns of each expert. Nothing depends on the mesh: shares and losses are counted sequence by sequence.

Sources: Shazeer et al. 2017, "Outrageously Large Neural Networks", section 2; the balance loss, Fedus et al. 2021,
"Switch Transformers", equation 4.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own habit
from torch import nn

from reftrain.model.context import NORMAL_STD, ModelContext
from reftrain.model.layers import column, row
from reftrain.model.parameters import Spec, SpecModule
from reftrain.parallel.experts import ExpertExchange, pulled


class Router(SpecModule):
    """Scores of all experts for each token. Each tensor rank's gradient is partial: it sees its part of the output."""

    weight: nn.Parameter

    def __init__(self, context: ModelContext) -> None:
        super().__init__()
        shape = context.model.experts, context.model.dim
        self.declare("weight", Spec(shape, NORMAL_STD, sums=context.tp_sum), context.parameter_dtype)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(B, S, D) to (B, S, E)."""
        return F.linear(x, self.weight)


class Expert(nn.Module):
    """One SwiGLU; the result is this tensor rank's addend."""

    def __init__(self, context: ModelContext, *, dealt: bool) -> None:
        super().__init__()
        self.w1 = column(context, context.model.ffn_dim)
        self.w3 = column(context, context.model.ffn_dim)
        self.w2 = row(context, context.model.ffn_dim)
        for part in (self.w1, self.w3, self.w2):
            part.own_specs["weight"] = replace(part.own_specs["weight"], dealt=dealt)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(rows, D) to the same."""
        out: torch.Tensor = self.w2(F.silu(self.w1(x)) * self.w3(x))
        return out


class ExpertGroup(nn.ModuleDict):
    """The experts that this rank holds, by number."""

    def __init__(self, context: ModelContext, layer: int) -> None:
        each = context.model.experts // context.ep.size
        first = context.ep.index * each
        dealt = context.ep.size > 1
        super().__init__({str(n): Expert(context, dealt=dealt) for n in range(first, first + each)})
        self.context, self.segment = context, context.segment("ffn", layer)

    def forward(self, rows: torch.Tensor, counts: Sequence[int]) -> torch.Tensor:
        """Rows (rows, D) by expert, `counts` of them for each, to the same."""
        work = replace(self.segment, flops=self.segment.flops * len(rows) // self.context.tokens)
        (rows,) = self.context.segments.begin(work, rows)
        cut = torch.split(rows, list(counts))
        parts = [expert(x) for expert, x in zip(self.values(), cut, strict=True)]
        return torch.cat(self.context.segments.end(work, *parts))


@dataclass(frozen=True)
class Routing:
    """Where the tokens go. A pair is a token and one of its choices: token · k + choice.

    `order` has the pairs that are computed, by expert and then by token, `counts` their number for each expert (E,),
    `gates` the weight of every pair, (tokens, k).
    """

    order: torch.Tensor
    counts: torch.Tensor
    gates: torch.Tensor


class Experts(nn.Module):
    """Router, experts and shared expert of one layer."""

    def __init__(self, context: ModelContext, name: str, layer: int) -> None:
        super().__init__()
        self.context, self.name = context, name
        self.segment = context.segment("ffn", layer)
        self.router = Router(context)
        self.experts = ExpertGroup(context, layer)
        self.shared = Expert(context, dealt=False) if context.model.shared_expert else None

    def route(self, scores: torch.Tensor) -> Routing:
        """Choose experts for each token from its scores (B, S, E)."""
        model = self.context.model
        wide = scores.to(torch.promote_types(scores.dtype, torch.float32))
        if model.expert_skew:
            wide = wide + wide.new_tensor([model.expert_skew] + [0.0] * (model.experts - 1))
        odds = torch.softmax(wide, dim=-1)
        chosen = odds.detach().sort(dim=-1, descending=True, stable=True)[1][..., : model.experts_per_token]
        odds = self.balanced(odds, chosen)
        gates = odds.gather(-1, chosen)
        if model.experts_per_token > 1:
            gates = gates / gates.sum(dim=-1, keepdim=True)
        expert = self.within_capacity(chosen.flatten(1)).flatten()
        kept = int((expert < model.experts).sum())
        order = expert.argsort(stable=True)[:kept]
        counts = expert.bincount(minlength=model.experts + 1)[: model.experts]
        return Routing(order, counts, gates.flatten(0, 1))

    def balanced(self, odds: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
        """Return the odds (B, S, E), with the balance loss in their gradient.

        The loss of a sequence is E times the sum over experts of its share of choices, times its mean odds; it is the
        mean of all sequences of a step. Choices have no gradient, so that it is linear in the odds. One tensor rank
        adds it.
        """
        context, model = self.context, self.context.model
        weight = model.expert_balance
        if not weight:
            return odds
        counts = F.one_hot(chosen.flatten(1), model.experts).sum(1)  # (B, E)
        counts = context.cp.all_reduce(counts, f"{self.name}.experts.counts")
        if context.tp.axis.index:
            return odds
        tokens = odds.shape[1] * context.cp.size
        factor = weight * model.experts / (model.experts_per_token * tokens * tokens * context.sequences)
        return pulled(odds, (counts * factor).to(odds.dtype).unsqueeze(1))

    def within_capacity(self, expert: torch.Tensor) -> torch.Tensor:
        """Return the experts of a sequence's pairs (B, pairs), E in place of one that has its share already."""
        model = self.context.model
        if not model.expert_capacity:
            return expert
        most = math.ceil(model.expert_capacity * expert.shape[1] / model.experts)
        before = F.one_hot(expert, model.experts).cumsum(1).gather(-1, expert.unsqueeze(-1)).squeeze(-1) - 1
        return expert.masked_fill(before >= most, model.experts)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(B, S or S/tp, D) to the same."""
        context = self.context
        whole = context.tp.enter(x, f"{self.name}.w1")
        routing = self.route(self.router(whole))
        tokens, choices = whole.flatten(0, 1), context.model.experts_per_token
        exchange = ExpertExchange(routing.counts, context.ep, f"{self.name}.experts")
        pairs = tokens.unsqueeze(1).expand(-1, choices, -1).flatten(0, 1)
        rows = exchange.there(pairs.index_select(0, routing.order))
        made = exchange.back(self.experts(rows, exchange.rows))
        pairs = torch.zeros_like(pairs).index_copy(0, routing.order, made)
        weighed = torch.unflatten(pairs, 0, (-1, choices)) * routing.gates.unsqueeze(-1)  # wide
        partial = weighed.sum(1).to(x.dtype)
        if self.shared is not None:
            (tokens,) = context.segments.begin(self.segment, tokens)
            (always,) = context.segments.end(self.segment, self.shared(tokens))
            partial = partial + always
        return context.tp.leave(partial.view_as(whole), f"{self.name}.w2")
