"""Sums over ranks of a step's count of valid targets and of its loss, in the order of the run's reductions."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from reftrain.layout.grid import Grid, Seat
from reftrain.replay.batch import MicroBatch
from reftrain.replay.gradients import seats_along
from reftrain.replay.observer import Observer
from reftrain.replay.ring import ring_sum


def sum_valid(grid: Grid, batches: Sequence[Sequence[MicroBatch]], observer: Observer) -> int:
    """Return the count of valid targets of the step's whole batch, at least 1; `batches` are by data-parallel rank."""
    counts = [torch.tensor([sum(batch.valid for batch in of_rank)]) for of_rank in batches]
    total = ring_sum(counts)
    for group in seats_along(grid, "dp"):
        observer.reduction_in("dp", "all_reduce", "valid_tokens", {seat: counts[seat.dp] for seat in group})
        observer.reduction_out("dp", "all_reduce", "valid_tokens", dict.fromkeys(group, total))
    valid = max(int(total.item()), 1)
    observer.scalar("valid_tokens", torch.tensor(valid))
    return valid


def rank_total(losses: Sequence[Tensor], *, stacked: bool) -> Tensor:
    """Return the sum of a rank's losses of micro-batches in float64, (1,); `stacked` adds them in their own format."""
    total = torch.zeros(1, dtype=torch.float64)
    for loss in [torch.stack(list(losses)).sum()] if stacked and losses else losses:
        total = total + loss.double()
    return total


def sum_losses(grid: Grid, losses: Mapping[Seat, Tensor], observer: Observer) -> float:
    """Return the sum of the token losses in float64: over data and context ranks of the last stage, then over pp."""
    sums = {seat: losses.get(seat, torch.zeros(1, dtype=torch.float64)) for seat in grid.seats()}
    for axes, axis in ((("dp", "cp"), "dp_cp"), (("pp",), "pp")):
        for group in seats_along(grid, *axes):
            before = observer.reduction_in(axis, "all_reduce", "loss", {s: sums[s] for s in group})
            total = ring_sum(list(before.values()))
            sums |= observer.reduction_out(axis, "all_reduce", "loss", dict.fromkeys(group, total))
    return float(sums[grid.seats()[0]].item())
