"""Data parallelism by FSDP2: wraps a stage, and decides when it reduces gradients.

ZeRO-1 keeps weights and gradients whole and reduces once a step; ZeRO-2 reduces after each run of
micro-batches and accumulates shards; ZeRO-3 also frees the weights between uses. ZeRO-0 replicates, and
HSDP replicates groups of shards; both all-reduce once a step. Gradients are summed, never averaged: the
loss is divided by the global count of valid tokens once, before backward.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.fsdp._fully_shard._fsdp_collectives import DefaultAllGather, DefaultReduceScatter
from torch.distributed.tensor import DTensor, Shard

from reftrain.config.run import MeshConfig
from reftrain.execute.replicated import ANNOUNCING
from reftrain.model.decoder import Stage
from reftrain.model.encoder import EncoderStage
from reftrain.model.parameters import initial_values, shard_part, specs_of
from reftrain.rank.comm import reduction_name
from reftrain.rank.events import CollectiveCall
from reftrain.rank.hooks import Hooks
from reftrain.rank.mesh import Mesh

EXPERTS = ".experts"
"""Ending of the names of units that `ep` deals out."""


class AnnouncedAllGather(DefaultAllGather):
    """FSDP2's all-gather, announced to the hooks."""

    def __init__(self, hooks: Hooks, label: str, axis: str) -> None:
        super().__init__()
        self.hooks, self.label, self.axis = hooks, label, axis

    def __call__(
        self,
        output_tensor: torch.Tensor,
        input_tensor: torch.Tensor,
        group: dist.ProcessGroup,
        async_op: bool = False,
    ) -> dist.Work | None:
        """Gather the weights of one unit."""
        call = CollectiveCall(
            self.axis,
            "all_gather",
            self.label,
            input_tensor,
            group,
            output_tensor.numel(),
            output=output_tensor,
        )
        self.hooks.collective_begin(call)
        work = super().__call__(output_tensor, input_tensor, group, async_op)
        self.hooks.collective_end(call)
        return work


class AnnouncedReduceScatter(DefaultReduceScatter):
    """FSDP2's reduce-scatter, announced to the hooks, as is the all-reduce between replicas that may follow."""

    def __init__(self, hooks: Hooks, label: str, axis: str, replica_axis: str) -> None:
        super().__init__()
        self.hooks, self.label = hooks, f"{label}.grad"
        self.axis, self.replica_axis = axis, replica_axis

    def allocate(
        self, size: Sequence[int | torch.SymInt], *, dtype: torch.dtype, device: torch.device
    ) -> torch.Tensor:
        """Make a buffer; FSDP2 asks for it first of all when a unit reduces."""
        ANNOUNCING.reducing(self.hooks, self.replica_axis, self.label)
        return super().allocate(size, dtype=dtype, device=device)

    def __call__(
        self,
        output_tensor: torch.Tensor,
        input_tensor: torch.Tensor,
        group: dist.ProcessGroup,
        op: Any,
        async_op: bool = False,
    ) -> dist.Work:
        """Reduce the gradients of one unit."""
        call = CollectiveCall(
            self.axis,
            "reduce_scatter",
            self.label,
            input_tensor,
            group,
            output_tensor.numel(),
            output=output_tensor,
            reduction=reduction_name(op),
        )
        self.hooks.collective_begin(call)
        work = super().__call__(output_tensor, input_tensor, group, op, async_op)
        self.hooks.collective_end(call)
        return work


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
    """A stage with parameters that FSDP2 shards over a mesh: (shard,) or (replicate, shard)."""

    def __init__(
        self,
        stage: Stage | EncoderStage,
        mesh: DeviceMesh,
        parallel: MeshConfig,
        policy: MixedPrecisionPolicy,
        hooks: Hooks,
        expert_mesh: DeviceMesh | None = None,
    ) -> None:
        self.specs = specs_of(stage)
        self.unit = stage.unit
        self.frees_weights = parallel.shards_parameters
        dealt = stage.experts() if expert_mesh is not None and isinstance(stage, Stage) else []
        units = [(m, expert_mesh) for m in dealt] + [(m, mesh) for m in (*stage.layers.values(), stage)]
        cuts = {id(p): self.specs[name].data_dim for name, p in stage.named_parameters()}
        whole = {p for p in stage.parameters() if cuts[id(p)] is None}
        for unit, ranks in units:
            fully_shard(
                unit,
                mesh=ranks,
                reshard_after_forward=self.frees_weights,
                mp_policy=policy,
                shard_placement_fn=(lambda p: Shard(cuts[id(p)] or 0)) if parallel.annotated else None,
                ignored_params=whole or None,
            )
        self.module: nn.Module = stage
        replica_axis = "dp_cp" if parallel.replicates else "dp"
        for name, module in self._wrapped():
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(enable=True)
            label, axis, ranks = name or self.unit, "dp_cp", mesh
            if expert_mesh is not None and name.endswith(EXPERTS):
                axis, ranks = "edp", expert_mesh
            if ranks.size(ranks.ndim - 1) > 1:
                module.set_custom_all_gather(AnnouncedAllGather(hooks, label, axis))
            module.set_custom_reduce_scatter(AnnouncedReduceScatter(hooks, label, axis, replica_axis))

    def _wrapped(self) -> Iterator[tuple[str, FSDPModule]]:
        for name, module in self.module.named_modules():
            if isinstance(module, FSDPModule):
                yield name, module

    def arm(self, *, reduce: bool, last: bool) -> None:
        """Set whether the next backward reduces gradients and whether it is the step's last."""
        root = self.module
        if not isinstance(root, FSDPModule):
            raise TypeError("the stage was wrapped at construction")
        root.set_requires_gradient_sync(reduce)
        root.set_requires_all_reduce(last)
        root.set_is_last_backward(last)
        root.set_reshard_after_backward(last or self.frees_weights)

    def whole_parameters(self) -> list[nn.Parameter]:
        """Return the gathered parameters that the graphs of forwards hold."""
        for _, module in self._wrapped():
            module.unshard()
        return list(self.module.parameters())

    def widen_gradients(self) -> None:
        """Add the gradients of one micro-batch to those before in the format of the reduction.

        Needed after the weight part of a split backward: FSDP2 does it in hooks that this part does not pass, so that
        several micro-batches would be added in the format of the computation.
        """
        for _, module in self._wrapped():
            group = module._get_fsdp_state()._fsdp_param_group  # noqa: SLF001 - FSDP2 has no other way
            for held in group.fsdp_params if group is not None else ():
                held.accumulate_unsharded_grad_if_needed()
                held.to_accumulated_grad_if_needed()

    def release_gathered(self) -> None:
        """Free the gathered weights: the next computation gathers what the shards then hold."""
        for _, module in self._wrapped():
            module.reshard()

    def reduce_now(self, *, last: bool) -> None:
        """Reduce what backwards have accumulated without reducing; `last` ends the step's backwards.

        Needed where a backward is split: FSDP2 reduces in hooks that the weight part does not pass.
        """
        self.arm(reduce=True, last=last)
        root = self.module
        if not isinstance(root, FSDPModule):
            raise TypeError("the stage was wrapped at construction")
        root.set_is_last_backward(is_last_backward=True)
        for _, module in self._wrapped():
            group = module._get_fsdp_state()._fsdp_param_group  # noqa: SLF001 - FSDP2 has no other way
            if group is not None:
                group.post_backward()
        root._get_fsdp_state()._root_post_backward_final_callback()  # noqa: SLF001 - as above

    def materialise(self, device: torch.device, seed: int, mesh: Mesh) -> None:
        """Give every shard its storage and its initial values."""
        self.module.to_empty(device=device)
        for name, local in self.local_parameters().items():
            spec = self.specs[name]
            part = shard_part(spec, *mesh.shard_of(dealt=spec.dealt))
            local.zero_()
            part.within(local).copy_(part.of(initial_values(name, spec, seed)))

    def local_parameters(self) -> dict[str, torch.Tensor]:
        """Return this rank's shard of every parameter by global name, detached, sharing storage."""
        return {name: _local(parameter).detach() for name, parameter in self.module.named_parameters()}

    def trained_parameters(self) -> dict[str, torch.Tensor]:
        """Return the shards of `local_parameters` that are not frozen."""
        return {n: shard for n, shard in self.local_parameters().items() if not self.specs[n].frozen}

    def local_gradients(self) -> dict[str, torch.Tensor]:
        """Return this rank's shard of every gradient by global name, sharing storage."""
        return {
            name: _local(parameter.grad)
            for name, parameter in self.module.named_parameters()
            if parameter.grad is not None
        }

    def zero_gradients(self) -> None:
        """Give every trained parameter a gradient of zero."""
        for parameter in (p for p in self.module.parameters() if p.requires_grad):
            parameter.grad = torch.zeros_like(parameter)

    def clear_gradients(self) -> None:
        """Drop all gradients."""
        for parameter in self.module.parameters():
            parameter.grad = None


def _local(tensor: torch.Tensor) -> torch.Tensor:
    if not isinstance(tensor, DTensor):
        raise TypeError("FSDP2 makes every parameter a DTensor")
    return tensor._local_tensor  # noqa: SLF001 - to_local() goes through autograd
