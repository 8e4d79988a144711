"""Runs under FSDP2: formats of reductions, divisors of gradients, accumulation without reductions, hooks, masters."""

from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

from tests.reports.report import Report
from tests.reports.trained import Trainer
from tests.reports.wide_copies import Masters
from tests.reports.wrong import HEALTHY, SOUND, seen, verdict


@dataclass(frozen=True)
class Sharded(Trainer):
    """FSDP2 over all ranks, on one process as well; weights are gathered and gradients reduced in given formats."""

    weights: torch.dtype | None = None
    sums: torch.dtype | None = None
    replicas: int = 1

    def wrapped(self, model: nn.Module) -> nn.Module:
        world = dist.get_world_size() if dist.is_initialized() else 1
        if world == 1:
            return model
        mesh = init_device_mesh("cpu", (world,), mesh_dim_names=("dp",))
        if self.replicas > 1:
            names = ("dp_replicate", "dp_shard")
            mesh = init_device_mesh("cpu", (self.replicas, world // self.replicas), mesh_dim_names=names)
        policy = MixedPrecisionPolicy(param_dtype=self.weights, reduce_dtype=self.sums)
        for block in model.blocks:  # type: ignore[union-attr]
            fully_shard(block, mesh=mesh, mp_policy=policy)
        return fully_shard(model, mesh=mesh, mp_policy=policy)

    def optimizer(self, wrapped: nn.Module, made: torch.optim.Optimizer) -> torch.optim.Optimizer:
        return torch.optim.AdamW(wrapped.parameters(), lr=0.01)


class SumsOnly(Sharded):
    """Gradients are sums over ranks, not means: the loss must be divided by what all ranks count."""

    def wrapped(self, model: nn.Module) -> nn.Module:
        wrapped = super().wrapped(model)
        if isinstance(wrapped, FSDPModule):
            for module in wrapped.modules():
                if isinstance(module, FSDPModule):
                    module.set_force_sum_reduction_for_comms(True)  # Gloo knows no sum with a factor
                    module.set_gradient_divide_factor(1.0)
        return wrapped


class SumsMean(SumsOnly):
    """The same, with a loss that is divided by the number of ranks."""

    def loss(self, logits: torch.Tensor, labels: torch.Tensor, step: int) -> torch.Tensor:
        return super().loss(logits, labels, step) / dist.get_world_size()


class DividedTwice(Sharded):
    """The loss is divided by the number of ranks, and gradients are averaged over them."""

    def loss(self, logits: torch.Tensor, labels: torch.Tensor, step: int) -> torch.Tensor:
        return super().loss(logits, labels, step) / dist.get_world_size()


@dataclass(frozen=True)
class ReducesLast(Sharded):
    """Only the last micro-batch reduces; or the flag is never set again, so that none does."""

    never: bool = False
    all_reduces: bool = False

    def before_forward(self, wrapped: nn.Module, number: int) -> None:
        last = number == self.micro - 1 and not self.never
        assert isinstance(wrapped, FSDPModule)
        if self.all_reduces:
            wrapped.set_requires_all_reduce(last)
        else:
            wrapped.set_requires_gradient_sync(last)


@dataclass(frozen=True)
class ShardedMasters(Masters):
    """FSDP2 over BF16 weights, stepped by FP32 masters of each rank's shards."""

    def wrapped(self, model: nn.Module) -> nn.Module:
        if not dist.is_initialized():
            return model
        policy = MixedPrecisionPolicy(reduce_dtype=torch.float32)
        for block in model.blocks:  # type: ignore[union-attr]
            fully_shard(block, mp_policy=policy)
        return fully_shard(model, mp_policy=policy)


@dataclass(frozen=True)
class FlatMasters(Masters):
    """Each rank steps its part of one flat FP32 copy of all weights, which is then gathered, as in ZeRO-1."""

    forgets: bool = False

    def wrapped(self, model: nn.Module) -> nn.Module:
        return model

    def optimizer(self, wrapped: nn.Module, made: torch.optim.Optimizer) -> torch.optim.Optimizer:
        return torch.optim.AdamW(
            [nn.Parameter(own_part([p.detach() for p in wrapped.parameters()]))], lr=0.01
        )

    def before_update(self, model: nn.Module, optimizer: torch.optim.Optimizer, step: int, rank: int) -> None:
        grads = [p.grad for p in model.parameters() if p.grad is not None]
        if dist.is_initialized():
            flat = padded(grads)
            if not (self.forgets and step == 1):
                dist.all_reduce(flat)
            flat /= dist.get_world_size()
            part = flat.chunk(dist.get_world_size())[rank]
        else:
            part = padded(grads)
        self.masters(optimizer)[0].grad = part

    @torch.no_grad()
    def after_update(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, step: int, world: int
    ) -> torch.optim.Optimizer:
        part = self.masters(optimizer)[0].detach()
        parts = [torch.empty_like(part) for _ in range(world)]
        dist.all_gather(parts, part) if world > 1 else parts[0].copy_(part)
        flat, start = torch.cat(parts), 0
        for weight in model.parameters():
            weight.copy_(flat[start : start + weight.numel()].view_as(weight))
            start += weight.numel()
        model.zero_grad()
        return optimizer


def padded(tensors: list[torch.Tensor]) -> torch.Tensor:
    """Tensors one behind another in FP32, with zeros so that all ranks get parts of one size."""
    flat = torch.cat([one.flatten().float() for one in tensors])
    world = dist.get_world_size() if dist.is_initialized() else 1
    return nn.functional.pad(flat, (0, -len(flat) % world))


def own_part(tensors: list[torch.Tensor]) -> torch.Tensor:
    """This rank's part of these tensors."""
    if not dist.is_initialized():
        return padded(tensors)
    return padded(tensors).chunk(dist.get_world_size())[dist.get_rank()].clone()


NARROW = Path(__file__).parent / "wide_copies.py"
WIDE = Sharded(weights=torch.bfloat16, sums=torch.float32)
COARSE = Sharded(weights=torch.bfloat16, sums=torch.bfloat16)
REPORTS: list[Report] = [
    seen(
        "pytorch/torchtitan#1028",
        "FSDP2 on 3 ranks that reduces gradients of BF16 weights in BF16, beside FP32",
        "a precision policy that differs",
        COARSE,
        WIDE,
        verdict("precision_policy", words=("bfloat16",)),
        sound_ranks=3,
    ),
    seen(
        "allenai/OLMo#280",
        "the same the other way round: the baseline reduces in BF16",
        "a precision policy that differs, with the buffers that need FP32",
        WIDE,
        COARSE,
        verdict("precision_policy", words=("need float32",)),
        sound_ranks=3,
        quick=True,
    ),
    seen(
        "pytorch/pytorch#118298",
        "FSDP2 that reduces behind the last micro-batch alone, beside one process",
        "no bug: the order of sums",
        ReducesLast(),
        SOUND,
        HEALTHY,
    ),
    seen(
        "pytorch/torchtitan#1710",
        "the same, with a flag that is never set again, so that no gradient is reduced",
        "bug: no update",
        ReducesLast(never=True),
        SOUND,
        verdict("bug", words=("makes no update",)),
    ),
    seen(
        "pytorch/pytorch#129286",
        "gradients are summed with a divisor of 1, and the loss is divided by the ranks",
        "no bug",
        SumsMean(),
        SOUND,
        HEALTHY,
    ),
    seen(
        "pytorch/pytorch#155903",
        "gradients are summed with a divisor of 1, and the loss is not divided by the ranks",
        "bug: gradients are 3 times the baseline's, by the data-parallel ranks",
        SumsOnly(),
        SOUND,
        verdict("bug", words=("data-parallel ranks",)),
    ),
    seen(
        "verl-project/verl-SpeCo#29",
        "the loss is divided by the ranks, and gradients are averaged over them",
        "bug: gradients are a third of the baseline's, by the data-parallel ranks",
        DividedTwice(),
        SOUND,
        verdict("bug", words=("number of data-parallel ranks",)),
    ),
    seen(
        "NVIDIA/Megatron-LM#800",
        "FSDP2 over BF16 weights, stepped by FP32 masters of each rank's shards, beside one process",
        "no bug",
        ShardedMasters(),
        Masters(),
        HEALTHY,
        model="built_narrow",
        file=NARROW,
        quick=True,
    ),
    seen(
        "NVIDIA/Megatron-LM#1335",
        "each rank steps its part of one flat FP32 copy of all BF16 weights, which is then gathered",
        "no bug",
        FlatMasters(),
        Masters(),
        HEALTHY,
        model="built_narrow",
        file=NARROW,
    ),
]
