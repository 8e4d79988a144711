"""One pipeline stage of the demo's model: residual feed-forward layers, split over two tensor-parallel ranks.

The first matrix of a layer is split by columns and the second by rows (Megatron-LM, arXiv:1909.08053,
section 3), so that a layer needs one all-reduce forward (after the second product) and one backward (of the
gradient of its input).
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional

WIDTH = 512
HIDDEN = 1536  # of both tensor-parallel ranks together
LAYERS = 2  # per stage

AllReduce = Callable[[torch.Tensor], None]


class _ReduceForward(torch.autograd.Function):
    """Sums over the tensor-parallel ranks forward; the gradient passes unchanged."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, reduce: AllReduce) -> torch.Tensor:
        """Sum `x` in place."""
        ctx.mark_dirty(x)
        reduce(x)
        return x

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None]:  # noqa: ARG004
        """Pass the gradient on."""
        return grads[0], None


class _ReduceBackward(torch.autograd.Function):
    """Passes its input unchanged; sums the gradient over the tensor-parallel ranks."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, reduce: AllReduce) -> torch.Tensor:
        """Pass `x` on."""
        ctx.reduce = reduce
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None]:
        """Sum the gradient."""
        grad = grads[0].contiguous()
        ctx.reduce(grad)
        return grad, None


class Layer(nn.Module):
    """x + W2 gelu(W1 norm(x)), with this rank's half of W1's columns and W2's rows."""

    def __init__(self, tp: int, reduce: AllReduce, generator: torch.Generator) -> None:
        super().__init__()
        self.reduce = reduce
        part = HIDDEN // tp
        self.up = nn.Parameter(torch.randn(part, WIDTH, generator=generator) / WIDTH**0.5)
        self.down = nn.Parameter(torch.randn(WIDTH, part, generator=generator) / HIDDEN**0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, WIDTH) to (batch, WIDTH)."""
        inner = _ReduceBackward.apply(functional.rms_norm(x, (WIDTH,)), self.reduce)  # type: ignore[no-untyped-call]
        partial = functional.linear(functional.gelu(functional.linear(inner, self.up)), self.down)
        out: torch.Tensor = x + _ReduceForward.apply(partial, self.reduce)  # type: ignore[no-untyped-call]
        return out


class Stage(nn.Module):
    """The layers of one pipeline stage on one tensor-parallel rank."""

    def __init__(self, tp: int, reduce: AllReduce, seed: int, *, first: bool) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        # whole on every tensor-parallel rank; it costs the first stage what the targets cost the last one
        self.embed = nn.Linear(WIDTH, WIDTH, bias=False) if first else nn.Identity()
        for weight in self.embed.parameters():
            nn.init.normal_(weight, std=WIDTH**-0.5, generator=torch.Generator().manual_seed(seed // 10))
        self.layers = nn.ModuleList(Layer(tp, reduce, generator) for _ in range(LAYERS))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, WIDTH) to (batch, WIDTH)."""
        x = self.embed(x)
        for layer in self.layers:
            x = layer(x)
        return x
