"""The loss, in one place: sum of the token losses over the global count of valid tokens.

Whatever splits the batch (data, context, pipeline, micro-batches), each part is divided by the same global
count, and gradients are summed: a mean of means cannot arise.
"""

import torch

from reftrain.rank.comm import Axis


def step_loss(token_sum: torch.Tensor, valid_tokens: int) -> torch.Tensor:
    """Return a micro-batch's share of the step's loss, in nats per token."""
    return token_sum / valid_tokens


def global_valid_tokens(local: int, dp: Axis, device: torch.device) -> int:
    """Count of valid targets in the step's whole batch, at least 1; `local` counts one rank of dp."""
    total = dp.all_reduce(torch.tensor([local], dtype=torch.int64, device=device), "valid_tokens")
    return max(int(total.item()), 1)


def global_loss(
    loss_sums: dict[int, torch.Tensor],
    valid_tokens: int,
    dp_cp: Axis,
    pp: Axis,
    device: torch.device,
    *,
    stacked: bool = False,
) -> float:
    """Loss of the step, the same on every rank; for reports only, as each backward starts from its own sum.

    Micro-batches are added in their order in float64, or, `stacked`, by one sum in their own format.
    """
    total = torch.zeros(1, dtype=torch.float64, device=device)
    if stacked and loss_sums:
        total += torch.stack([loss_sums[micro_batch] for micro_batch in sorted(loss_sums)]).sum().double()
    else:
        for micro_batch in sorted(loss_sums):
            total += loss_sums[micro_batch].double()
    pp.all_reduce(dp_cp.all_reduce(total, "loss"), "loss")
    return float(total.item()) / valid_tokens
