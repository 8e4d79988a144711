"""Runs in which each rank steps its share of one flat FP32 copy of BF16 weights, as ZeRO-1 and 2 do."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn

from tests.reports.report import Answer, Report
from tests.reports.trained import Trainer
from tests.reports.wide_copies import built_narrow
from tests.reports.wrong import HEALTHY, seen, verdict


@dataclass(frozen=True)
class Buffered(Trainer):
    """Weights are views of one BF16 buffer, last layer first, their gradients of an FP32 one.

    Gradients are reduced and scattered in equal shares. Each rank steps an FP32 copy of each piece of a weight in its
    share, matrices with decay and the rest without, writes it into the buffer, and all ranks gather the buffer.
    """

    decay: float = 0.1

    def model(self) -> tuple[nn.Module, torch.optim.Optimizer]:
        return built_narrow()

    def wrapped(self, model: nn.Module) -> nn.Module:
        weights = list(model.parameters())[::-1]
        world = _world()
        size = -(-sum(w.numel() for w in weights) // (16 * world)) * 16 * world
        buffer, grads, at = torch.zeros(size, dtype=torch.bfloat16), torch.zeros(size), 0
        places = []
        for weight in weights:
            places.append((weight, at))
            buffer[at : at + weight.numel()] = weight.detach().reshape(-1)
            weight.data = buffer[at : at + weight.numel()].view_as(weight)
            _adds_into(weight, grads[at : at + weight.numel()].view_as(weight))
            at += weight.numel()
        model.buffer, model.grads, model.places = buffer, grads, places
        return model

    def optimizer(self, wrapped: nn.Module, made: torch.optim.Optimizer) -> torch.optim.Optimizer:
        share = wrapped.buffer.numel() // _world()
        begin = _rank() * share
        pieces = []
        for weight, at in wrapped.places:
            first, end = max(at, begin), min(at + weight.numel(), begin + share)
            if first < end:
                flat = weight.detach().reshape(-1)[first - at : end - at]
                pieces.append((weight.dim() > 1, nn.Parameter(flat.float().clone()), first, end))
        wrapped.pieces = pieces
        groups = [
            {"params": [p for large, p, _, _ in pieces if large is kind], "weight_decay": self.decay * kind}
            for kind in (True, False)
        ]
        return torch.optim.AdamW([group for group in groups if group["params"]], lr=0.01)

    def before_update(self, model: nn.Module, optimizer: torch.optim.Optimizer, step: int, rank: int) -> None:
        grads: torch.Tensor = model.grads
        world = _world()
        share = torch.empty(grads.numel() // world)
        if world > 1:
            dist.reduce_scatter_single(share, grads)
        else:
            share.copy_(grads)
        share /= world
        for _, piece, first, end in model.pieces:
            at = rank * len(share)
            piece.grad = share[first - at : end - at].clone()
        grads.zero_()

    @torch.no_grad()
    def after_update(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, step: int, world: int
    ) -> torch.optim.Optimizer:
        buffer: torch.Tensor = model.buffer
        for _, piece, first, end in model.pieces:
            buffer[first:end] = piece
        if world > 1:
            self.gather(buffer, step)
        return optimizer

    def gather(self, buffer: torch.Tensor, step: int) -> None:
        """Every rank gets the shares of all."""
        parts = list(torch.empty_like(buffer).chunk(dist.get_world_size()))
        dist.all_gather(parts, buffer.chunk(dist.get_world_size())[_rank()].clone())
        buffer.copy_(torch.cat(parts))


def _world() -> int:
    return dist.get_world_size() if dist.is_initialized() else 1


def _rank() -> int:
    return dist.get_rank() if dist.is_initialized() else 0


def _adds_into(weight: nn.Parameter, total: torch.Tensor) -> None:
    def add(one: torch.Tensor) -> None:
        assert one.grad is not None
        total.add_(one.grad)
        one.grad = None

    weight.register_post_accumulate_grad_hook(add)


class GathersLate(Buffered):
    """The gather reads the buffer before the last share has been written: it is one update behind on other ranks."""

    def gather(self, buffer: torch.Tensor, step: int) -> None:
        own = buffer.clone()
        super().gather(buffer, step)
        if step == 1 and _rank() != 2:
            share = len(buffer) // dist.get_world_size()
            buffer[2 * share :] = own[2 * share :]


class GathersOtherwise(Buffered):
    """Shares are put back in another order than they were cut."""

    def gather(self, buffer: torch.Tensor, step: int) -> None:
        super().gather(buffer, step)
        buffer.copy_(torch.cat(buffer.chunk(dist.get_world_size())[::-1]))


class ReducesEarly(Buffered):
    """The buffer of gradients is cleared between the two micro-batches."""

    def before_forward(self, wrapped: nn.Module, number: int) -> None:
        if number == 1:
            wrapped.grads.mul_(0)


def built_decaying() -> tuple[nn.Module, torch.optim.Optimizer]:
    """The model in BF16 and AdamW with decay on matrices alone."""
    model, _ = built_narrow()
    large = [p for p in model.parameters() if p.dim() > 1]
    small = [p for p in model.parameters() if p.dim() < 2]
    groups = [{"params": large, "weight_decay": 0.1}, {"params": small, "weight_decay": 0.0}]
    return model, torch.optim.AdamW(groups, lr=0.01)


class LoadsItsShare(Buffered):
    """The run goes on from its masters; each rank writes its share into the buffer, and none gathers the others'."""

    def optimizer(self, wrapped: nn.Module, made: torch.optim.Optimizer) -> torch.optim.Optimizer:
        found = super().optimizer(wrapped, made)
        with torch.no_grad():
            parts = wrapped.buffer.chunk(_world())
            for other in (part for number, part in enumerate(parts) if number != _rank()):
                other.mul_(0.5)
        return found


def _seen(
    source: str, input_: str, expected: str, trainer: Trainer, judge: Callable[[Answer], str], **more: bool
) -> Report:
    return seen(
        source, input_, expected, trainer, Buffered(), judge, model="built_decaying", file=__file__, **more
    )


REPORTS: list[Report] = [
    _seen(
        "deepspeedai/DeepSpeed#966",
        "BF16 weights in one buffer; each of 3 ranks steps FP32 copies of the pieces in its share, beside one process",
        "no bug",
        Buffered(),
        HEALTHY,
        quick=True,
    ),
    _seen(
        "NVIDIA/Megatron-LM#950",
        "the same, and in step 1 two of the ranks compute with the last share as it was before the update",
        "bug: ranks hold unequal weights from step 2 on",
        GathersLate(),
        verdict("bug", words=("hold the same part",)),
    ),
    _seen(
        "axonn-ai/distrib-dl-tutorial#17",
        "the same, and each rank puts the gathered shares back in another order",
        "bug: the weights are not what the optimizer left",
        GathersOtherwise(),
        verdict("bug", words=("not what the optimiser left",)),
    ),
    _seen(
        "NVIDIA/Megatron-LM#6920",
        "the same; masters are loaded and written into each rank's own share, which no rank gathers",
        "bug: ranks begin with unequal weights",
        LoadsItsShare(),
        verdict("bug", words=("hold the same part", "other weights")),
    ),
    _seen(
        "deepspeedai/DeepSpeed#1488",
        "the same, and the buffer of gradients is cleared before the second micro-batch",
        "bug: gradients lack the first micro-batch",
        ReducesEarly(),
        verdict("bug", words=("micro-batch 0",)),
    ),
]
