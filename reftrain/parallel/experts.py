"""Expert parallelism: rows of tokens travel to the ranks that hold their experts, and back.

Ranks of `ep` lie inside data parallelism: they work on different tokens, and each holds a part of the experts. One
all-to-all says how many rows each rank sends to each expert, a second one brings the rows, a third one returns what
the experts made of them; in backward the gradients travel the same ways. Source: Lepikhin et al. 2020, "GShard",
section 3.2; without a capacity, Gale et al. 2022, "MegaBlocks", section 4.
"""

from collections.abc import Sequence
from typing import Any

import torch

from reftrain.parallel.autograd import call
from reftrain.rank.comm import Axis


class _AllToAll(torch.autograd.Function):
    """Rows to their ranks; the gradient travels back."""

    @staticmethod
    def forward(
        ctx: Any, rows: torch.Tensor, sent: Sequence[int], received: Sequence[int], axis: Axis, label: str
    ) -> torch.Tensor:
        ctx.sent, ctx.received, ctx.axis, ctx.label = sent, received, axis, label
        return axis.all_to_all(rows, sent, received, label)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None, None, None, None]:
        back = ctx.axis.all_to_all(grads[0], ctx.received, ctx.sent, f"{ctx.label}.grad")
        return back, None, None, None, None


class _Pull(torch.autograd.Function):
    """Identity; a constant joins the gradient: that of a loss which is linear in the input."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, pull: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(pull)
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None]:
        (pull,) = ctx.saved_tensors
        return grads[0] + pull, None


def pulled(x: torch.Tensor, pull: torch.Tensor) -> torch.Tensor:
    """Return `x`, with a gradient to which `pull` (broadcast to its shape) is added."""
    out: torch.Tensor = call(_Pull, x, pull)
    return out


class ExpertExchange:
    """One micro-batch's way to the experts and back: what each rank sends to each expert, as the ranks agreed on it.

    `counts` are this rank's rows for every expert of the model.
    """

    def __init__(self, counts: torch.Tensor, axis: Axis, label: str) -> None:
        self.axis, self.label = axis, label
        ones = [len(counts) // axis.size] * axis.size
        there = axis.all_to_all(counts, ones, ones, f"{label}.counts").view(axis.size, -1)
        self.rows = there.sum(0).tolist()
        self._sent: list[int] = counts.view(axis.size, -1).sum(1).tolist()
        self._received: list[int] = there.sum(1).tolist()
        experts = torch.arange(there.shape[1], device=counts.device).repeat(axis.size)
        self._by_expert = torch.repeat_interleave(experts, there.flatten()).argsort(stable=True)

    def there(self, rows: torch.Tensor) -> torch.Tensor:
        """(rows by expert, D) of this rank to the rows of this rank's experts: by expert, then by sender."""
        if self.axis.size == 1:
            return rows
        arrived: torch.Tensor = call(
            _AllToAll, rows, self._sent, self._received, self.axis, f"{self.label}.in"
        )
        return arrived.index_select(0, self._by_expert)

    def back(self, rows: torch.Tensor) -> torch.Tensor:
        """Inverse of `there`, for what the experts made of the rows."""
        if self.axis.size == 1:
            return rows
        by_sender = rows.index_select(0, self._by_expert.argsort())
        out: torch.Tensor = call(
            _AllToAll, by_sender, self._received, self._sent, self.axis, f"{self.label}.out"
        )
        return out
