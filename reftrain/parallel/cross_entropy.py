"""Cross-entropy over a vocabulary split on `tp`, without ever gathering the logits.

Communication is O(b·s): the maximum (b·s), and in one call the sum of exponentials, the target's logit and,
for label smoothing, the sum of the logits. Source: Shoeybi et al. 2019, "Megatron-LM", section 3.
"""

from typing import Any

import torch
import torch.distributed as dist

from reftrain.data.batches import IGNORED
from reftrain.parallel.autograd import call
from reftrain.rank.comm import Axis


class _VocabParallelCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        logits: torch.Tensor,
        targets: torch.Tensor,
        axis: Axis,
        start: int,
        vocab_size: int,
        smoothing: float,
    ) -> torch.Tensor:
        wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
        columns = min(max(vocab_size - start, 0), logits.shape[1])  # the rest pads the vocabulary
        real = wide[:, :columns]
        top = real.amax(dim=1) if columns else wide.new_full((len(wide),), -torch.inf)
        axis.all_reduce(top, "loss.max", dist.ReduceOp.MAX)
        exponentials = torch.exp(real - top.unsqueeze(1))
        valid = targets != IGNORED
        local = (targets - start).clamp(0, max(columns - 1, 0))
        mine = valid & (targets >= start) & (targets < start + columns)
        picked = real.gather(1, local.unsqueeze(1)).squeeze(1) if columns else torch.zeros_like(top)
        parts = [exponentials.sum(dim=1), torch.where(mine, picked, torch.zeros_like(top))]
        if smoothing:
            parts.append(real.sum(dim=1))
        sums = axis.all_reduce(torch.stack(parts), "loss.sums")
        log_sum = torch.log(sums[0]) + top
        losses = log_sum - sums[1]
        if smoothing:
            losses = (1 - smoothing) * losses + smoothing * (log_sum - sums[2] / vocab_size)
        ctx.save_for_backward(exponentials, sums[0], local, mine, valid)
        ctx.shape, ctx.dtype, ctx.smoothing, ctx.vocab_size = (
            logits.shape,
            logits.dtype,
            smoothing,
            vocab_size,
        )
        return torch.where(valid, losses, torch.zeros_like(losses))

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        exponentials, total, local, mine, valid = ctx.saved_tensors
        grad = exponentials / total.unsqueeze(1)
        if ctx.smoothing:
            grad = grad - ctx.smoothing / ctx.vocab_size
        rows = torch.arange(len(grad), device=grad.device)
        if grad.shape[1]:
            grad[rows, local] -= (1 - ctx.smoothing) * mine.to(grad.dtype)
        grad = grad * (grads[0] * valid).unsqueeze(1)
        out = grad.new_zeros(ctx.shape)
        out[:, : grad.shape[1]] = grad
        return out.to(ctx.dtype), None, None, None, None, None


def vocab_parallel_cross_entropy(
    logits: torch.Tensor, targets: torch.Tensor, axis: Axis, vocab_size: int, smoothing: float = 0.0
) -> torch.Tensor:
    """Loss of each token in nats, (N,); 0 where the target is ignored.

    `logits` is this rank's share of the vocabulary, (N, V_padded/tp); `targets` is (N,) in the whole
    vocabulary.
    """
    start = axis.index * logits.shape[1]
    arguments = (logits, targets, axis, start, vocab_size, smoothing)
    out: torch.Tensor = call(_VocabParallelCrossEntropy, *arguments)
    return out
