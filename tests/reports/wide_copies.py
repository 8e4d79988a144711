"""Runs that train BF16 weights by FP32 masters, with gradients summed in FP32 or in BF16."""

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn

from tests.reports.between_ranks import own_rank
from tests.reports.report import Report
from tests.reports.trained import Decoder, Trainer, built
from tests.reports.wrong import HEALTHY, seen, verdict


def built_narrow() -> tuple[nn.Module, torch.optim.Optimizer]:
    """The model in BF16, and an optimizer with the settings of the one that steps its masters."""
    model, _ = built()
    model.to(torch.bfloat16)
    return model, torch.optim.AdamW(model.parameters(), lr=0.01)


@dataclass(frozen=True)
class Masters(Trainer):
    """DDP in BF16; each rank steps FP32 masters by the reduced gradients and copies them back."""

    def model(self) -> tuple[nn.Module, torch.optim.Optimizer]:
        return built_narrow()

    def optimizer(self, wrapped: nn.Module, made: torch.optim.Optimizer) -> torch.optim.Optimizer:
        masters = [nn.Parameter(p.detach().float().clone()) for p in wrapped.parameters()]
        return torch.optim.AdamW(masters, lr=0.01)

    def masters(self, optimizer: torch.optim.Optimizer) -> list[nn.Parameter]:
        """The masters, in the order of the model's parameters."""
        masters: list[nn.Parameter] = optimizer.param_groups[0]["params"]
        return masters

    def before_update(self, model: nn.Module, optimizer: torch.optim.Optimizer, step: int, rank: int) -> None:
        for weight, master in zip(model.parameters(), self.masters(optimizer), strict=True):
            assert weight.grad is not None
            master.grad = weight.grad.float()

    @torch.no_grad()
    def after_update(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, step: int, world: int
    ) -> torch.optim.Optimizer:
        for weight, master in zip(model.parameters(), self.masters(optimizer), strict=True):
            weight.copy_(master)
        model.zero_grad()
        return optimizer


class NotCopiedBack(Masters):
    """The masters move and the weights do not."""

    def after_update(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, step: int, world: int
    ) -> torch.optim.Optimizer:
        model.zero_grad()
        return optimizer


class NotStepped(Masters):
    """The masters get no gradient from step 1 on, so that they do not move."""

    def before_update(self, model: nn.Module, optimizer: torch.optim.Optimizer, step: int, rank: int) -> None:
        if step == 0:
            super().before_update(model, optimizer, step, rank)


class StaleMasters(Masters):
    """Each rank makes masters of the weights that it drew, before those of rank 0 replace them."""

    def optimizer(self, wrapped: nn.Module, made: torch.optim.Optimizer) -> torch.optim.Optimizer:
        torch.manual_seed(3 + own_rank())
        return super().optimizer(Decoder(), made)


@dataclass(frozen=True)
class SummedWide(Masters):
    """Each backward is added to a buffer of the masters, which is reduced before the update; in FP32 or BF16."""

    sums: torch.dtype = torch.float32

    def wrapped(self, model: nn.Module) -> nn.Module:
        def add(weight: torch.Tensor) -> None:
            assert weight.grad is not None
            weight.main_grad += weight.grad  # type: ignore[attr-defined]
            weight.grad = None

        for weight in model.parameters():
            weight.main_grad = torch.zeros_like(weight, dtype=self.sums)  # type: ignore[attr-defined]
            weight.register_post_accumulate_grad_hook(add)
        return model

    def before_update(self, model: nn.Module, optimizer: torch.optim.Optimizer, step: int, rank: int) -> None:
        for weight, master in zip(model.parameters(), self.masters(optimizer), strict=True):
            if dist.is_initialized():
                dist.all_reduce(weight.main_grad)
                weight.main_grad /= dist.get_world_size()
            master.grad = weight.main_grad.float()
            weight.main_grad = torch.zeros_like(weight.main_grad)  # type: ignore[attr-defined]


REPORTS: list[Report] = [
    seen(
        "NVIDIA/apex#507",
        "BF16 weights under DDP on 3 ranks, stepped by FP32 masters that are copied back, beside one process",
        "no bug",
        Masters(),
        Masters(),
        HEALTHY,
        model="built_narrow",
        file=__file__,
    ),
    seen(
        "NVIDIA/Megatron-LM#502",
        "BF16 weights with FP32 masters; each backward is added in FP32 and reduced in FP32, on 3 ranks and on one",
        "no bug",
        SummedWide(),
        SummedWide(),
        HEALTHY,
        model="built_narrow",
        file=__file__,
    ),
    seen(
        "deepspeedai/DeepSpeed#2768",
        "the same with backwards added and reduced in BF16, beside sums in FP32",
        "a precision policy that differs, with the buffers that need FP32",
        SummedWide(sums=torch.bfloat16),
        SummedWide(),
        verdict("precision_policy", words=("need fp32",)),
        sound_ranks=3,
        model="built_narrow",
        file=__file__,
    ),
]
