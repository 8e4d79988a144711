"""The last sums of a step's gradients, and their global norm.

After FSDP2 has reduced over data and context parallelism, some gradients are still partial: parameters that
each tensor rank used on a part of the tokens or heads, copied key/value heads, and the two ends of a tied
embedding. Both act on shards, which is correct because sums commute with sharding.
"""

from collections.abc import Iterable, Mapping, Sequence

import torch

from reftrain.execute.sharded_stage import ShardedStage
from reftrain.model.parameters import Spec
from reftrain.rank.comm import Axis


def sum_partial_gradients(stages: Iterable[ShardedStage], axes: Mapping[str, Axis]) -> None:
    """Sum the gradients over each axis that their spec names: one buffer per axis, parameters in stage order."""
    wanted: dict[str, list[torch.Tensor]] = {}
    for stage in stages:
        grads = stage.local_gradients()
        for name, spec in stage.specs.items():
            for axis in () if spec.frozen else spec.sums:
                wanted.setdefault(axis, []).append(grads[name])
    for axis in sorted(wanted):
        buffer = torch.cat([grad.reshape(-1) for grad in wanted[axis]])
        axes[axis].all_reduce(buffer, f"{axis}.partial_gradients")
        pieces = torch.split(buffer, [grad.numel() for grad in wanted[axis]])
        for grad, piece in zip(wanted[axis], pieces, strict=True):
            grad.copy_(piece.view_as(grad))


def sum_tied_gradients(first: torch.Tensor | None, last: torch.Tensor | None, axis: Axis | None) -> None:
    """Sum in place the gradients of a tied embedding's two ends, on one rank or over their axis."""
    if first is not None and last is not None:
        total = first + last
        first.copy_(total)
        last.copy_(total)
        return
    own = first if first is not None else last
    if own is not None and axis is not None:
        axis.all_reduce(own, "tied_embedding.grad")


def counts_in_norm(spec: Spec, tp_index: int) -> bool:
    """Whether this tensor rank's part of a parameter counts: each element of the model once."""
    if spec.tied_to is not None:
        return False
    return tp_index == 0 if spec.split is None else spec.first_copy


def global_norm(
    stages: Sequence[ShardedStage], tp: Axis, dp_cp: Axis, pp: Axis, replica_index: int
) -> torch.Tensor:
    """Euclidean norm of the whole model's gradient, float32 (float64 for float64 gradients), (1,).

    Squares are added parameter by parameter in stage order, then over dp_cp, tp and pp. Shards that are
    replicated (ZeRO-0, HSDP) count on the first replica.
    """
    return root_of_sum(local_square(stages, tp, replica_index, dp_cp.index), (dp_cp, tp, pp))


def local_square(
    stages: Sequence[ShardedStage], tp: Axis, replica_index: int, data_index: int = 0
) -> torch.Tensor:
    """Sum of the squares of this rank's gradients that count in the norm, (1,)."""
    total: torch.Tensor | None = None
    for stage in stages:
        grads = stage.local_gradients()
        for name, spec in stage.specs.items():
            if spec.frozen:
                continue
            wide = grads[name].to(torch.promote_types(grads[name].dtype, torch.float32))
            square = wide.square().sum()
            replica = replica_index or (data_index if spec.data_dim is None else 0)
            if not counts_in_norm(spec, tp.index) or replica:
                square = torch.zeros_like(square)
            total = square if total is None else total + square
    if total is None:
        raise AssertionError("a rank has no parameters")
    return total.reshape(1)


def root_of_sum(total: torch.Tensor, axes: Sequence[Axis]) -> torch.Tensor:
    """Square root of the sum over the axes, in place."""
    for axis in axes:
        axis.all_reduce(total, "grad_norm")
    return total.sqrt()
