"""A mixture of experts for all virtual ranks of a stage, by its definition: Shazeer et al. 2017, section 2.

Each token goes to the experts with the greatest probabilities, equal ones by number; a rank's rows lie by expert and
then by token, and what reaches a rank lies by expert and then by sender. Shapes, and the order of use, are
the ranks' own, because bits depend on both.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own habit
from torch import Tensor

from reftrain.config.run import RunConfig
from reftrain.replay.virtual_ranks import Ranks, VirtualRanks, joint


class _Added(torch.autograd.Function):
    """Passes a tensor on, and adds a constant to its gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, constant: Tensor) -> Tensor:
        ctx.save_for_backward(constant)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return grads[0] + ctx.saved_tensors[0], None


@dataclass
class _Choice:
    """One rank's choices: probabilities (B, S, E), experts of its tokens (B, S, k)."""

    odds: Tensor
    experts: Tensor


@dataclass
class _Dealt:
    """One rank's rows: pairs of token and choice in the order in which they are sent, their number by expert."""

    pairs: list[int]
    counts: list[int]
    gates: Tensor


class Mixture:
    """Router, experts and shared expert of a layer, for the ranks in lock step."""

    def __init__(self, config: RunConfig, virtual_ranks: VirtualRanks) -> None:
        self.config, self.model, self.ranks = config, config.model, virtual_ranks

    def compute(self, whole: Ranks, weights: Sequence[Mapping[str, Tensor]], name: str) -> Ranks:
        """Each tensor rank's addend (B, S, D) from all tokens (B, S, D) of its group."""
        k = self.model.experts_per_token
        scores = [F.linear(x, w[f"{name}.router.weight"]) for x, w in zip(whole, weights, strict=True)]
        scores = self.ranks.observer.value(f"{name}.router.out", scores)
        dealt = self._deal(scores, name)
        tokens = [x.flatten(0, 1) for x in whole]
        pairs = [t[:, None].expand(-1, k, -1).flatten(0, 1) for t in tokens]
        orders = [torch.tensor(d.pairs, dtype=torch.int64) for d in dealt]
        rows = [p.index_select(0, order) for p, order in zip(pairs, orders, strict=True)]
        made = self._by_experts(rows, dealt, weights, f"{name}.experts")
        out = []
        for x, token, order, rank, deal, weight in zip(
            whole, tokens, orders, made, dealt, weights, strict=True
        ):
            placed = torch.zeros(len(token) * k, token.shape[1], dtype=x.dtype).index_copy(0, order, rank)
            mean = (torch.unflatten(placed, 0, (-1, k)) * deal.gates[..., None]).sum(1).to(x.dtype)
            if self.model.shared_expert:
                mean = mean + _swiglu(token, weight, f"{name}.shared")
            out.append(mean.view_as(x))
        return out

    def _deal(self, scores: Ranks, name: str) -> list[_Dealt]:
        """Choose experts and order each rank's rows."""
        choices = [self._choose(x) for x in scores]
        odds = self._with_balance(choices, f"{name}.experts.counts")
        return [self._order(own, choice.experts) for own, choice in zip(odds, choices, strict=True)]

    def _choose(self, scores: Tensor) -> _Choice:
        wide = scores.to(torch.promote_types(scores.dtype, torch.float32))
        if self.model.expert_skew:
            first = torch.zeros(self.model.experts, dtype=wide.dtype)
            first[0] = self.model.expert_skew
            wide = wide + first
        odds = wide.softmax(-1)
        _, best = odds.detach().sort(dim=-1, descending=True, stable=True)
        return _Choice(odds, best[..., : self.model.experts_per_token])

    def _with_balance(self, choices: Sequence[_Choice], label: str) -> Ranks:
        """Odds with the gradient of the balance loss (Fedus et al. 2021, equation 4), sequence by sequence."""
        model = self.model
        if not model.expert_balance:
            return [choice.odds for choice in choices]
        numbers = torch.arange(model.experts)
        counts = [(choice.experts.flatten(1)[..., None] == numbers).long().sum(1) for choice in choices]
        if self.config.mesh.cp > 1:
            counts = self.ranks.all_reduce("cp", label, counts)
        length = self.config.data.seq_len
        factor = model.expert_balance * model.experts
        factor /= model.experts_per_token * length * length * self.config.data.batch_size
        out = []
        for place, (choice, count) in enumerate(zip(choices, counts, strict=True)):
            if place % self.ranks.tp:
                out.append(choice.odds)
                continue
            slope = (count * factor).to(choice.odds.dtype)[:, None]
            added: Tensor = _Added.apply(choice.odds, slope)  # type: ignore[no-untyped-call]
            out.append(added)
        return out

    def _order(self, odds: Tensor, experts: Tensor) -> _Dealt:
        """Rows by expert and token; an expert leaves out what exceeds its share of a sequence."""
        gates = odds.gather(-1, experts)
        if experts.shape[-1] > 1:
            gates = gates / gates.sum(dim=-1, keepdim=True)
        by_expert: list[list[int]] = [[] for _ in range(self.model.experts)]
        wanted = experts.flatten(1).tolist()
        capacity = self.model.expert_capacity
        most = math.ceil(capacity * len(wanted[0]) / self.model.experts) if capacity else len(wanted[0])
        for number, sequence in enumerate(wanted):
            taken = [0] * self.model.experts
            for place, expert in enumerate(sequence):
                taken[expert] += 1
                if taken[expert] <= most:
                    by_expert[expert].append(number * len(sequence) + place)
        pairs = [pair for of_expert in by_expert for pair in of_expert]
        return _Dealt(pairs, [len(of_expert) for of_expert in by_expert], gates.flatten(0, 1))

    def _by_experts(
        self,
        rows: Ranks,
        dealt: Sequence[_Dealt],
        weights: Sequence[Mapping[str, Tensor]],
        name: str,
    ) -> Ranks:
        """Send rows to the ranks of their experts, compute, and send back."""
        ep, each = self.ranks.ep, self.model.experts // self.ranks.ep
        sent = [[sum(d.counts[place * each : (place + 1) * each]) for place in range(ep)] for d in dealt]
        arrivals = [torch.tensor(d.counts).view(1, -1) for d in dealt]  # (senders, experts of the rank)
        got = sent
        if ep > 1:
            flat = self.ranks.all_to_all(
                f"{name}.counts", [a.flatten() for a in arrivals], [[each] * ep for _ in dealt]
            )
            arrivals = [a.view(ep, each) for a in flat]
            got = [a.sum(1).tolist() for a in arrivals]
            rows = self._moved(rows, sent, got, f"{name}.in")
        made = []
        for place, (x, arrived, weight) in enumerate(zip(rows, arrivals, weights, strict=True)):
            first = place // (self.ranks.tp * self.ranks.cp) * each
            owner = [e for of_sender in arrived.tolist() for e, n in enumerate(of_sender) for _ in range(n)]
            order = torch.tensor(sorted(range(len(owner)), key=owner.__getitem__), dtype=torch.int64)
            grouped = x.index_select(0, order) if ep > 1 else x
            cut = torch.split(grouped, arrived.sum(0).tolist())
            parts = [_swiglu(part, weight, f"{name}.{first + e}") for e, part in enumerate(cut)]
            back = torch.cat(parts)
            made.append(back.index_select(0, order.argsort()) if ep > 1 else back)
        return self._moved(made, got, sent, f"{name}.out") if ep > 1 else made

    def _moved(self, rows: Ranks, sent: list[list[int]], got: list[list[int]], label: str) -> Ranks:
        """All-to-all of rows over ep; gradients go the other way."""
        return joint(
            lambda x: self.ranks.all_to_all(label, x, sent),
            lambda g: self.ranks.all_to_all(f"{label}.grad", g, got),
            rows,
        )


def _swiglu(x: Tensor, weights: Mapping[str, Tensor], name: str) -> Tensor:
    """w2(silu(w1 x) · w3 x); Shazeer 2020."""
    gate = F.silu(F.linear(x, weights[f"{name}.w1.weight"]))
    return F.linear(gate * F.linear(x, weights[f"{name}.w3.weight"]), weights[f"{name}.w2.weight"])
