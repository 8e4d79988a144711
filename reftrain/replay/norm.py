"""The global norm of a step's gradient, over the shards of all virtual ranks."""

from collections.abc import Mapping

import torch
from torch import Tensor

from reftrain.layout.declaration import Declaration
from reftrain.layout.grid import Grid, Seat
from reftrain.replay.gradients import Shards, seats_along
from reftrain.replay.observer import Observer
from reftrain.replay.ring import ring_sum


def global_norm(grid: Grid, declared: Declaration, shards: Shards, observer: Observer) -> Tensor:
    """Euclidean norm of the model's gradient (1,): squares by parameter, then over data, tensor, pipeline ranks."""
    squares = {seat: _squares(grid, declared, seat, shards[seat]) for seat in grid.seats()}
    for axes in (("dp", "cp"), ("tp",), ("pp",)):
        for group in seats_along(grid, *axes):
            name = ("_".join(axes), "all_reduce", "grad_norm")
            before = observer.reduction_in(*name, {seat: squares[seat] for seat in group})
            after = dict.fromkeys(group, ring_sum(list(before.values())))
            squares |= observer.reduction_out(*name, after)
    return squares[grid.seats()[0]].sqrt()


def _squares(grid: Grid, declared: Declaration, seat: Seat, grads: Mapping[str, Tensor]) -> Tensor:
    """Sum of squares of what this seat counts: every element of the model once."""
    replica = next(
        number for number, group in enumerate(grid.shard_groups(seat.pp, seat.tp)) if seat in group
    )
    place = grid.place(seat)
    total: Tensor | None = None
    for stage in declared.pipeline.counted(seat.pp):
        for parameter in declared.trained(stage, place):
            grad = grads[parameter.name]
            square = grad.to(torch.promote_types(grad.dtype, torch.float32)).square().sum()
            first_copy = seat.tp % parameter.copies == 0 if parameter.split is not None else seat.tp == 0
            copied = seat.dp > 0 if parameter.data_dim is None else replica > 0
            if parameter.tied or not first_copy or copied:
                square = torch.zeros_like(square)
            total = square if total is None else total + square
    if total is None:
        raise ValueError(f"pipeline rank {seat.pp} holds no parameters")
    return total.reshape(1)
