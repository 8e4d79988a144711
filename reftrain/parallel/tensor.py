"""Tensor parallelism: how activations enter and leave the region with weights that are split over `tp`.

Without sequence parallelism the input is replicated: it enters by identity (its gradient is all-reduced)
and the partial sums leave by an all-reduce. With sequence parallelism it is split over the sequence outside
the region: it enters by an all-gather (gradient: reduce-scatter) and leaves by a reduce-scatter (gradient:
all-gather). Source: Korthikanti et al. 2022, "Reducing Activation Recomputation in Large Transformer
Models", figures 4 and 5.
"""

from typing import Any

import torch

from reftrain.parallel.autograd import call
from reftrain.rank.comm import Axis


def gather_sequence(x: torch.Tensor, axis: Axis, label: str) -> torch.Tensor:
    """Join the sequence pieces of all ranks: (B, S/tp, D) becomes (B, S, D)."""
    stacked = axis.all_gather(x, label)  # (tp, B, S/tp, D)
    return stacked.transpose(0, 1).reshape(x.shape[0], -1, x.shape[2])


def scatter_sequence(x: torch.Tensor, axis: Axis, label: str) -> torch.Tensor:
    """Sum over the ranks and keep one piece of the sequence: (B, S, D) becomes (B, S/tp, D)."""
    pieces = x.reshape(x.shape[0], axis.size, -1, x.shape[2]).transpose(0, 1)  # (tp, B, S/tp, D)
    return axis.reduce_scatter(pieces.contiguous(), label)


class _Copy(torch.autograd.Function):
    """Identity; the gradient is summed over the axis."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, axis: Axis, label: str) -> torch.Tensor:
        ctx.axis, ctx.label = axis, label
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        return ctx.axis.all_reduce(grads[0].contiguous().clone(), f"{ctx.label}.grad"), None, None


class _Sum(torch.autograd.Function):
    """Sum over the axis; the gradient passes."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, axis: Axis, label: str) -> torch.Tensor:
        del ctx
        return axis.all_reduce(x.contiguous().clone(), label)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        del ctx
        return grads[0], None, None


class _Gather(torch.autograd.Function):
    """Join sequence pieces; the gradient is summed and cut."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, axis: Axis, label: str) -> torch.Tensor:
        ctx.axis, ctx.label = axis, label
        return gather_sequence(x, axis, label)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        return scatter_sequence(grads[0], ctx.axis, f"{ctx.label}.grad"), None, None


class _Scatter(torch.autograd.Function):
    """Sum and cut the sequence; the pieces of the gradient are joined."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, axis: Axis, label: str) -> torch.Tensor:
        ctx.axis, ctx.label = axis, label
        return scatter_sequence(x, axis, label)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        return gather_sequence(grads[0], ctx.axis, f"{ctx.label}.grad"), None, None


class TensorParallel:
    """Ways in and out of the tensor-parallel region of this rank."""

    def __init__(self, axis: Axis, *, sequence_parallel: bool) -> None:
        self.axis = axis
        self.sequence_parallel = sequence_parallel and axis.size > 1

    def enter(self, x: torch.Tensor, label: str) -> torch.Tensor:
        """Bring (B, S or S/tp, D) in front of column-split weights as (B, S, D)."""
        if self.axis.size == 1:
            return x
        entry = _Gather if self.sequence_parallel else _Copy
        out: torch.Tensor = call(entry, x, self.axis, label)
        return out

    def leave(self, partial: torch.Tensor, label: str) -> torch.Tensor:
        """Sum the partial results (B, S, D) of row-split weights; they leave as (B, S or S/tp, D)."""
        if self.axis.size == 1:
            return partial
        way_out = _Scatter if self.sequence_parallel else _Sum
        out: torch.Tensor = call(way_out, partial, self.axis, label)
        return out
