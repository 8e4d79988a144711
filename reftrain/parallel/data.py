"""Data parallelism by FSDP2: wraps a stage, and tells it when to reduce gradients.

ZeRO-1 keeps weights and gradients whole and reduces once a step; ZeRO-2 reduces after each run of
micro-batches and accumulates shards; ZeRO-3 also frees the weights between uses. ZeRO-0 replicates, and
HSDP replicates groups of shards; both all-reduce once a step. Gradients are summed, never averaged: the
loss is divided by the global count of valid tokens once, before backward.
"""

from collections.abc import Iterator

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

from reftrain.model.decoder import Stage
from reftrain.model.parameters import initial_values, shard_part, specs_of


def mixed_precision(
    compute: torch.dtype, parameter: torch.dtype, reduce: torch.dtype
) -> MixedPrecisionPolicy:
    """FSDP2's policy: weights are cast to `compute` when gathered, gradients to `reduce` when reduced."""
    return MixedPrecisionPolicy(
        param_dtype=None if compute == parameter else compute,
        reduce_dtype=None if reduce == parameter == compute else reduce,
        cast_forward_inputs=False,
    )


class ShardedStage:
    """A stage whose parameters FSDP2 shards over a mesh: (shard,) or (replicate, shard)."""

    def __init__(self, stage: Stage, mesh: DeviceMesh, zero: int, policy: MixedPrecisionPolicy) -> None:
        self.specs = specs_of(stage)
        self.zero = zero
        for layer in stage.layers.values():
            fully_shard(layer, mesh=mesh, reshard_after_forward=zero == 3, mp_policy=policy)
        fully_shard(stage, mesh=mesh, reshard_after_forward=zero == 3, mp_policy=policy)
        self.module: nn.Module = stage
        for module in self._wrapped():
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(enable=True)

    def _wrapped(self) -> Iterator[FSDPModule]:
        for module in self.module.modules():
            if isinstance(module, FSDPModule):
                yield module

    def arm(self, *, reduce: bool, last: bool) -> None:
        """Say of the next backward whether it reduces gradients and whether it is the step's last."""
        root = self.module
        if not isinstance(root, FSDPModule):
            raise TypeError("the stage was wrapped at construction")
        root.set_requires_gradient_sync(reduce)
        root.set_requires_all_reduce(last)
        root.set_is_last_backward(last)
        root.set_reshard_after_backward(last or (reduce and self.zero == 3) or self.zero == 3)

    def materialise(self, device: torch.device, seed: int, shard_size: int, shard_index: int) -> None:
        """Give every shard its storage and its initial values."""
        self.module.to_empty(device=device)
        for name, local in self.local_parameters().items():
            spec = self.specs[name]
            part = shard_part(spec, shard_size, shard_index)
            local.zero_()
            part.within(local).copy_(part.of(initial_values(name, spec, seed)))

    def local_parameters(self) -> dict[str, torch.Tensor]:
        """Return this rank's shard of every parameter by global name, detached, sharing storage."""
        return {name: _local(parameter).detach() for name, parameter in self.module.named_parameters()}

    def local_gradients(self) -> dict[str, torch.Tensor]:
        """Return this rank's shard of every gradient by global name, sharing storage."""
        return {
            name: _local(parameter.grad)
            for name, parameter in self.module.named_parameters()
            if parameter.grad is not None
        }

    def clear_gradients(self) -> None:
        """Drop all gradients."""
        for parameter in self.module.parameters():
            parameter.grad = None


def _local(tensor: torch.Tensor) -> torch.Tensor:
    if not isinstance(tensor, DTensor):
        raise TypeError("FSDP2 makes every parameter a DTensor")
    return tensor._local_tensor  # noqa: SLF001 - to_local() goes through autograd
