"""Runs whose scale, state, data, weights or random numbers are not what they were, or not alike on all ranks."""

from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import nn

from tests.reports.between_ranks import own_rank
from tests.reports.in_both import CP, DP, InBoth, Shares
from tests.reports.in_both import SOUND as SHARED
from tests.reports.in_tensor import MODEL, WHOLE, InTensor
from tests.reports.report import Report
from tests.reports.tensor_layers import Column, Decoder
from tests.reports.trained import WIDTH, Trainer, built, built_dropping
from tests.reports.wrong import SOUND, Batches, seen, verdict


class OwnScales(Trainer):
    """Each rank scales its loss by a number of its own, and takes that out of the reduced gradients."""

    def scale(self) -> float:
        """The scale of this rank."""
        return 1024.0 * 2 ** (own_rank() % 2)

    def loss(self, logits: torch.Tensor, labels: torch.Tensor, step: int) -> torch.Tensor:
        return super().loss(logits, labels, step) * self.scale()

    def before_update(self, model: nn.Module, optimizer: torch.optim.Optimizer, step: int, rank: int) -> None:
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter.grad.div_(self.scale())


class OneSkips(InBoth):
    """The first rank alone finds a value in its gradients that is not finite, and skips its update of step 1."""

    def update(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, shares: Shares | None, peers: Any
    ) -> None:
        if shares is None:
            super().update(model, optimizer, shares, peers)
            return
        shares.reduce(DP * CP, None)
        state = shares.optimizer.state.get(shares.share, {})
        skips = shares.rank == 0 and state.get("step") == 1 and not hasattr(shares, "skipped")
        with patch.object(shares.optimizer, "step", lambda: None) if skips else nullcontext():
            shares.step()
        if skips:
            shares.skipped = True


class OtherOrder(Trainer):
    """Behind step 0 the optimizer's state is loaded in another order: blocks get each other's moments."""

    def after_update(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, step: int, world: int
    ) -> torch.optim.Optimizer:
        if step == 0:
            named = dict(model.named_parameters())
            for name in [name for name in named if name.startswith("blocks.0.")]:
                one, other = named[name], named[name.replace("blocks.0.", "blocks.1.")]
                optimizer.state[one], optimizer.state[other] = optimizer.state[other], optimizer.state[one]
        return optimizer


class ReadsAgain(Trainer):
    """The run was stopped behind step 0 and goes on with all of its state, but reads its data from the beginning."""

    def batches(self, step: int, rank: int, world: int) -> Batches:
        return super().batches(max(step - 1, 0), rank, world)


class OwnStart(Trainer):
    """Each rank draws its own weights, and gradients are averaged over ranks, but weights are never sent."""

    def model(self) -> tuple[nn.Module, torch.optim.Optimizer]:
        model, optimizer = built()
        torch.manual_seed(3 + own_rank())
        for module in model.modules():
            if hasattr(module, "reset_parameters"):
                module.reset_parameters()
        return model, optimizer

    def wrapped(self, model: nn.Module) -> nn.Module:
        return model

    def before_update(self, model: nn.Module, optimizer: torch.optim.Optimizer, step: int, rank: int) -> None:
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()


@dataclass(frozen=True)
class Drops(Trainer):
    """Dropout in each block, drawn again in each step, or as it was `captured` in the first one."""

    captured: bool = False

    def model(self) -> tuple[nn.Module, torch.optim.Optimizer]:
        return built_dropping()

    def batches(self, step: int, rank: int, world: int) -> Batches:
        torch.manual_seed(900 + (0 if self.captured else step))
        return super().batches(step, rank, world)


class Interleaved(Trainer):
    """The rows of queries and keys are in the order of another implementation of rotary positions."""

    def model(self) -> tuple[nn.Module, torch.optim.Optimizer]:
        model, optimizer = built()
        order = torch.arange(WIDTH).view(2, WIDTH // 2).T.flatten()
        order = torch.cat([order, order + WIDTH, torch.arange(2 * WIDTH, 3 * WIDTH)])
        with torch.no_grad():
            for block in model.blocks:
                block.qkv.weight.copy_(block.qkv.weight[order].clone())
        return model, optimizer


class AlikeParts(InTensor):
    """Ranks of tensor parallelism draw their parts of weights from one seed, so that all parts are alike."""

    def parted(self, model: Decoder) -> set[str]:
        names = super().parted(model)
        for column in (module for module in model.modules() if isinstance(module, Column)):
            dist.broadcast(column.weight.data, 0)
        return names


REPORTS: list[Report] = [
    seen(
        "pytorch/pytorch#136009",
        "each of 3 ranks scales its loss by a number of its own, and divides reduced gradients by it",
        "bug: gradients of ranks differ by factors of their own",
        OwnScales(),
        SOUND,
        verdict("bug", words=("factor", "times")),
    ),
    seen(
        "pytorch/pytorch#115710",
        "dp 2 and cp 3, each rank steps its share of all weights; the first alone skips its update of step 1",
        "bug: no update of the first rank's share in step 1",
        OneSkips(),
        SHARED,
        verdict("bug", words=("no update", "not updated", "skip")),
        model="built_turned",
        file=Path(__file__).parent / "in_both.py",
        ranks=DP * CP,
    ),
    seen(
        "facebookresearch/fairscale#380",
        "behind step 0 the optimizer's state is loaded in another order: two blocks get each other's moments",
        "bug: the optimizer's state of the blocks",
        OtherOrder(),
        SOUND,
        verdict("bug", words=("state", "moment", "exp_avg")),
    ),
    seen(
        "KempnerInstitute/KempnerForge#51",
        "a run goes on behind step 0 with all of its state, and reads its data from the beginning",
        "bug: the sequences of step 0 again",
        ReadsAgain(),
        SOUND,
        verdict("bug", words=("of step 0",)),
        ranks=1,
    ),
    seen(
        "pytorch/torchtitan#166",
        "each of 3 ranks begins with its own weights, and gradients alone are averaged",
        "bug: ranks begin with unequal weights",
        OwnStart(),
        SOUND,
        verdict("bug", words=("init, step -1",)),
    ),
    seen(
        "baidu-baige/LoongForge#49",
        "a captured graph of all of a step drops the same elements in each step",
        "bug: steps drop the same elements",
        Drops(captured=True),
        Drops(),
        verdict("bug", words=("very elements",), must_say=True),
        ranks=1,
        model="built_dropping",
    ),
    seen(
        "huggingface/nanotron#427",
        "queries and keys begin with the rows of another convention of rotary positions",
        "bug: the first weights of queries and keys, with rows in another order",
        Interleaved(),
        SOUND,
        verdict("bug", words=("same numbers in another order",)),
        ranks=1,
    ),
    seen(
        "modelscope/ms-swift#7944",
        "3 ranks of tensor parallelism draw their parts of weights from one seed",
        "bug: the first weights, with equal parts on all ranks",
        AlikeParts(pieces=False),
        WHOLE,
        verdict("bug", words=("equal parts",)),
        model="build",
        file=MODEL,
    ),
]
