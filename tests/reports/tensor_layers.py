"""A decoder of heads and MLPs, its adapters, and the parts of its layers that ranks of tensor parallelism hold."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional

from tests.reports.trained import WORDS
from tests.reports.vocabulary import OVER

WIDE, HEAD, RANK, TP = 12, 4, 4, 3


def as_is(x: torch.Tensor) -> torch.Tensor:
    """Its argument."""
    return x


class Adapted(nn.Module):
    """A frozen linear map, and beside it one of low rank that is trained."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.a = nn.Linear(base.in_features, RANK, bias=False)
        self.b = nn.Linear(RANK, base.out_features, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        added: torch.Tensor = self.base(x) + self.b(self.a(x))
        return added


class Layer(nn.Module):
    """Attention of heads and an MLP, each behind a norm; dropout behind both, and `inner` within the MLP.

    `drawing` surrounds what is dropped within the MLP; ranks of tensor parallelism hold parts of it.
    """

    def __init__(self, drop: float, inner: float = 0.0) -> None:
        super().__init__()
        self.norm, self.mlp_norm = nn.LayerNorm(WIDE), nn.LayerNorm(WIDE)
        self.q, self.k, self.v = (nn.Linear(WIDE, WIDE) for _ in range(3))
        self.out, self.up = nn.Linear(WIDE, WIDE), nn.Linear(WIDE, 4 * WIDE)
        self.down, self.drop = nn.Linear(4 * WIDE, WIDE), nn.Dropout(drop)
        self.inner = nn.Dropout(inner) if inner else None
        self.drawing: Callable[[], AbstractContextManager[object]] = nullcontext

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        normed = self.norm(x)
        heads = [m(normed).unflatten(-1, (-1, HEAD)).transpose(1, 2) for m in (self.q, self.k, self.v)]
        mixed = functional.scaled_dot_product_attention(*heads, is_causal=True).transpose(1, 2).flatten(2)
        x = x + self.drop(self.out(mixed))
        raised = functional.gelu(self.up(self.mlp_norm(x)))
        with self.drawing():
            raised = raised if self.inner is None else self.inner(raised)
        return x + self.drop(self.down(raised))


class Decoder(nn.Module):
    """Two layers between embeddings and a head; `cut` and `joined` take and put together a rank's positions."""

    def __init__(self, drop: float = 0.0, inner: float = 0.0) -> None:
        super().__init__()
        self.words, self.layers = (
            nn.Embedding(WORDS, WIDE),
            nn.ModuleList(Layer(drop, inner) for _ in range(2)),
        )
        self.norm, self.head = nn.LayerNorm(WIDE), nn.Linear(WIDE, WORDS, bias=False)
        self.cut: Callable[[torch.Tensor], torch.Tensor] = as_is
        self.joined: Callable[[torch.Tensor], torch.Tensor] = as_is

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.cut(self.words(ids))
        for layer in self.layers:
            x = layer(x)
        logits: torch.Tensor = self.head(self.joined(self.norm(x)))
        return logits


def build(*, drop: float = 0.0, inner: float = 0.0) -> tuple[Decoder, torch.optim.Optimizer]:
    """The whole model and its optimizer."""
    torch.manual_seed(4)
    model = Decoder(drop, inner)
    return model, torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)


def build_dropping() -> tuple[Decoder, torch.optim.Optimizer]:
    """The same with dropout."""
    return build(drop=0.2)


def build_dropping_within() -> tuple[Decoder, torch.optim.Optimizer]:
    """The same with dropout within the MLP as well."""
    return build(drop=0.2, inner=0.2)


def build_adapted() -> tuple[Decoder, torch.optim.Optimizer]:
    """The model with adapters at queries and at attention's projection; nothing else is trained."""
    model, _ = build()
    model.requires_grad_(False)
    for layer in model.layers:
        layer.q, layer.out = Adapted(layer.q), Adapted(layer.out)
    trained = [p for p in model.parameters() if p.requires_grad]
    return model, torch.optim.SGD(trained, lr=0.5, momentum=0.9)


class Cut(torch.autograd.Function):
    """This rank's positions forth; those of all ranks put together back."""

    @staticmethod
    def forward(_ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.chunk(TP, 1)[dist.get_rank(OVER[0])].contiguous()

    @staticmethod
    def backward(_ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return together(grad)


class Join(torch.autograd.Function):
    """The positions of all ranks forth; this rank's gradients back, which are summed over ranks where `sums`."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, sums: bool) -> torch.Tensor:
        ctx.sums = sums
        return together(x)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        grad = grad.contiguous().clone()
        if ctx.sums:
            dist.all_reduce(grad, group=OVER[0])
        return grad.chunk(TP, 1)[dist.get_rank(OVER[0])].contiguous(), None


class SumCut(torch.autograd.Function):
    """This rank's positions of the sum over ranks forth; the gradients of all positions back."""

    @staticmethod
    def forward(_ctx: Any, x: torch.Tensor) -> torch.Tensor:
        x = x.contiguous().clone()
        dist.all_reduce(x, group=OVER[0])
        return x.chunk(TP, 1)[dist.get_rank(OVER[0])].contiguous()

    @staticmethod
    def backward(_ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return together(grad)


def together(x: torch.Tensor) -> torch.Tensor:
    """The pieces of all ranks along positions."""
    pieces = [torch.empty_like(x) for _ in range(TP)]
    dist.all_gather(pieces, x.contiguous(), group=OVER[0])
    return torch.cat(pieces, 1)


class Column(nn.Module):
    """Part of the outputs of a linear map."""

    def __init__(self, whole: nn.Linear, into: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.weight = own(whole.weight, 0)
        self.bias = None if whole.bias is None else own(whole.bias, 0)
        self.into = into

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.linear(self.into(x), self.weight, self.bias)


class Row(nn.Module):
    """A linear map of part of the inputs, summed over ranks; `shares` adds a share of the bias on each rank."""

    def __init__(
        self, whole: nn.Linear, out_of: Callable[[torch.Tensor], torch.Tensor], shares: bool
    ) -> None:
        super().__init__()
        self.weight, self.bias = own(whole.weight, 1), whole.bias
        self.out_of, self.shares = out_of, shares

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.bias is None:
            return self.out_of(functional.linear(x, self.weight))
        if self.shares:
            return self.out_of(functional.linear(x, self.weight, self.bias / TP))
        return self.out_of(functional.linear(x, self.weight)) + self.bias


def own(weight: torch.Tensor, dim: int) -> nn.Parameter:
    """This rank's part of a weight."""
    part = weight.detach().chunk(TP, dim)[dist.get_rank(OVER[0])].clone()
    return nn.Parameter(part, requires_grad=weight.requires_grad)
