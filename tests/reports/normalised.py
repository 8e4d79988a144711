"""Runs whose loss is divided by each rank's, micro-batch's or piece's own count of tokens, or by that of all."""

from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn import functional

from numerics import watch
from tests.reports.report import Report
from tests.reports.trained import IGNORED, STEPS, Decoder, Trainer, sequences
from tests.reports.wrong import HEALTHY, OverTokens, seen, verdict


def counted(step: int, world: int = 1, rank: int = 0) -> int:
    """How many labels of a rank's share of a step are not ignored."""
    return int((sequences(step, padded=True)[1].chunk(world)[rank] != IGNORED).sum())


@dataclass(frozen=True)
class OverOwnTokens(Trainer):
    """The step's sum of losses over the tokens of each rank, not over those of all; DDP averages over ranks."""

    padded: bool = True

    def loss(self, logits: torch.Tensor, labels: torch.Tensor, step: int) -> torch.Tensor:
        own = counted(step, dist.get_world_size(), dist.get_rank())
        flat = logits.flatten(0, 1).float()
        return functional.cross_entropy(flat, labels.flatten(), ignore_index=IGNORED, reduction="sum") / own


@dataclass(frozen=True)
class Smoothed(Trainer):
    """Smoothed labels and a loss of the logits' denominators, divided by all tokens or by those of a micro-batch."""

    padded: bool = True
    ranks: int = 1
    whole: bool = True

    def loss(self, logits: torch.Tensor, labels: torch.Tensor, step: int) -> torch.Tensor:
        flat, known = logits.flatten(0, 1).float(), labels.flatten() != IGNORED
        each = functional.cross_entropy(
            flat, labels.flatten(), ignore_index=IGNORED, reduction="none", label_smoothing=0.1
        )
        total = ((each + 1e-2 * flat.logsumexp(-1).square()) * known).sum()
        return total * self.ranks / counted(step) if self.whole else total / known.sum() / self.micro


@dataclass(frozen=True)
class CountsPadding(OverTokens):
    """Rank 1 counts its padding: it leaves out no label."""

    def batches(self, step: int, rank: int, world: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
        made = super().batches(step, rank, world)
        return [(ids, labels.clamp_min(0)) for ids, labels in made] if rank == 1 else made


@dataclass(frozen=True)
class Sharded(OverOwnTokens):
    """The same under FSDP2."""

    def wrapped(self, model: nn.Module) -> nn.Module:
        for block in model.blocks:  # type: ignore[union-attr]
            fully_shard(block)
        return fully_shard(model)

    def optimizer(self, wrapped: nn.Module, made: torch.optim.Optimizer) -> torch.optim.Optimizer:
        return torch.optim.AdamW(wrapped.parameters(), lr=0.01)


class Judging(Decoder):
    """A decoder that gives its loss itself: the mean over a micro-batch, or the sum over a given number of tokens."""

    def forward(  # type: ignore[override]
        self, ids: torch.Tensor, labels: torch.Tensor, tokens: float | None = None
    ) -> torch.Tensor:
        flat = super().forward(ids).flatten(0, 1)
        total = functional.cross_entropy(flat, labels.flatten(), ignore_index=IGNORED, reduction="sum")
        return total / ((labels != IGNORED).sum() if tokens is None else tokens)


def built_judging() -> tuple[nn.Module, torch.optim.Optimizer]:
    """The decoder that gives its loss, and its optimizer."""
    torch.manual_seed(3)
    model = Judging()
    return model, torch.optim.AdamW(model.parameters(), lr=0.01)


@dataclass(frozen=True)
class JudgesItself(Trainer):
    """The model gives its loss, divided by `micro` for each micro-batch, or by the number of all tokens."""

    padded: bool = True
    whole: bool = False

    def model(self) -> tuple[nn.Module, torch.optim.Optimizer]:
        return built_judging()

    def train(self, rank: int, world: int, out: Path) -> None:
        model, optimizer = self.model()
        wrapped = self.wrapped(model)
        watcher = watch(wrapped, optimizer, micro_batches=self.micro, out=out, level="tensors")
        for step in range(STEPS):
            for ids, labels in self.batches(step, rank, world):
                given = (counted(step) / world,) if self.whole else ()
                loss = wrapped(ids, labels, *given)
                (loss if self.whole else loss / self.micro).backward()
            optimizer.step()
            optimizer.zero_grad()
        watcher.close()


HERE = Path(__file__)
REPORTS: list[Report] = [
    seen(
        "huggingface/transformers#34242",
        "padded sequences, each of 3 ranks divides by its own tokens and DDP averages, beside one over all tokens",
        "bug: a mean of means over data-parallel ranks",
        OverOwnTokens(),
        OverTokens(),
        verdict("bug", words=("means over data-parallel ranks",)),
    ),
    seen(
        "huggingface/trl#3231",
        "the same means of micro-batches in one process and on 3 ranks",
        "no bug: both weigh tokens alike",
        Trainer(padded=True),
        Trainer(padded=True, micro=6),
        HEALTHY,
    ),
    seen(
        "modelscope/ms-swift#10165",
        "smoothed labels and a loss of denominators, divided by each micro-batch's tokens, beside all tokens",
        "bug: a mean of means over micro-batches",
        Smoothed(whole=False),
        Smoothed(),
        verdict("bug", words=("means over micro-batches",)),
    ),
    seen(
        "huggingface/transformers#34373",
        "smoothed labels and a loss of denominators, divided by the tokens of all ranks, on 3 ranks and on one",
        "no bug",
        Smoothed(ranks=3),
        Smoothed(),
        HEALTHY,
    ),
    seen(
        "ruimalheiro/gradient-garden#113",
        "the model gives the mean loss of a micro-batch itself, and labels are ignored unevenly",
        "bug: a mean of means over micro-batches",
        JudgesItself(),
        JudgesItself(whole=True),
        verdict("bug", words=("means over micro-batches",)),
        model="built_judging",
        file=HERE,
        quick=True,
    ),
    seen(
        "meta-pytorch/torchtune#1917",
        "the model gives its loss, divided by the tokens of all ranks and micro-batches, on 3 ranks and on one",
        "no bug",
        JudgesItself(whole=True),
        JudgesItself(whole=True),
        HEALTHY,
        model="built_judging",
        file=HERE,
    ),
    seen(
        "allenai/open-instruct#632",
        "rank 1 of 3 leaves out no label, so that its padding counts",
        "bug: positions of rank 1 count",
        CountsPadding(ranks=3),
        OverTokens(),
        verdict("bug", words=("positions count in the run's loss",)),
    ),
]
