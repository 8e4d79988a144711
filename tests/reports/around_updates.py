"""Runs that go wrong around the optimiser's step, or only seem to: skipped, cleared, clipped, resumed, stale."""

import contextlib
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional

from numerics import watch
from tests.reports.report import Report
from tests.reports.trained import (
    MICRO,
    STEPS,
    Trainer,
    built,
    built_recomputing,
    built_with_momentum,
    sequences,
)
from tests.reports.wrong import HEALTHY, Batches, seen, verdict

SKIPPED = 1


@dataclass(frozen=True)
class Steps(Trainer):
    """The trainer as one step after another, from step `first` of its record on; a report replaces one of them."""

    momentum: bool = False
    first: int = 0

    def model(self) -> tuple[nn.Module, torch.optim.Optimizer]:
        return built_with_momentum() if self.momentum else built()

    def train(self, rank: int, world: int, out: Path) -> None:
        model, optimizer = self.model()
        wrapped = self.wrapped(model)
        for step in range(STEPS):
            if step == self.first:
                self.restored(optimizer)
                watcher = watch(wrapped, optimizer, micro_batches=MICRO, out=out, level="tensors")
            for number, (ids, labels) in enumerate(self.batches(step, rank, world)):
                self.backward(wrapped, optimizer, ids, labels, step, number)
            self.update(model, optimizer, step, rank)
        watcher.close()

    def restored(self, optimizer: torch.optim.Optimizer) -> None:
        """What a checkpoint loses of the optimizer."""

    def backward(
        self,
        wrapped: nn.Module,
        optimizer: torch.optim.Optimizer,
        ids: torch.Tensor,
        labels: torch.Tensor,
        step: int,
        number: int,
    ) -> None:
        """One micro-batch."""
        self.loss(wrapped(ids), labels, step).backward()  # type: ignore[no-untyped-call]

    def update(self, model: nn.Module, optimizer: torch.optim.Optimizer, step: int, rank: int) -> None:
        """The update of a step."""
        optimizer.step()
        optimizer.zero_grad()


@dataclass(frozen=True)
class Skips(Steps):
    """A guard skips the update of a step on all ranks; the optimizer's state is lost there, or kept."""

    loses: bool = False

    def update(self, model: nn.Module, optimizer: torch.optim.Optimizer, step: int, rank: int) -> None:
        if step != SKIPPED:
            optimizer.step()
        elif self.loses:
            optimizer.state.clear()
        optimizer.zero_grad()


class Clips(Steps):
    """Gradients are clipped once, before the update."""

    def update(self, model: nn.Module, optimizer: torch.optim.Optimizer, step: int, rank: int) -> None:
        nn.utils.clip_grad_norm_(model.parameters(), 0.3)
        super().update(model, optimizer, step, rank)


class ClipsEach(Steps):
    """Gradients are clipped behind each micro-batch."""

    def backward(
        self,
        wrapped: nn.Module,
        optimizer: torch.optim.Optimizer,
        ids: torch.Tensor,
        labels: torch.Tensor,
        step: int,
        number: int,
    ) -> None:
        super().backward(wrapped, optimizer, ids, labels, step, number)
        nn.utils.clip_grad_norm_(wrapped.parameters(), 0.3)


@dataclass(frozen=True)
class LastGroup(Steps):
    """The last step of an epoch has one micro-batch, and its loss is divided by two all the same, or not."""

    usual: bool = True

    def batches(self, step: int, rank: int, world: int) -> Batches:
        if step != SKIPPED:
            return super().batches(step, rank, world)
        ids, labels = (part[:6].chunk(world)[rank] for part in sequences(step))
        return [(ids, labels)]

    def loss(self, logits: torch.Tensor, labels: torch.Tensor, step: int) -> torch.Tensor:
        count = MICRO if self.usual or step != SKIPPED else 1
        return functional.cross_entropy(logits.flatten(0, 1), labels.flatten()) / count


class Resumed(Steps):
    """The record begins behind a checkpoint of the same training on as many ranks, without the optimizer's state."""

    def restored(self, optimizer: torch.optim.Optimizer) -> None:
        optimizer.state.clear()


@dataclass(frozen=True)
class Casts(Steps):
    """BF16 by `torch.autocast`: around each forward, or around the whole training, so that old casts are kept."""

    outside: bool = False

    def train(self, rank: int, world: int, out: Path) -> None:
        with torch.autocast("cpu", torch.bfloat16) if self.outside else contextlib.nullcontext():
            super().train(rank, world, out)

    def backward(
        self,
        wrapped: nn.Module,
        optimizer: torch.optim.Optimizer,
        ids: torch.Tensor,
        labels: torch.Tensor,
        step: int,
        number: int,
    ) -> None:
        with contextlib.nullcontext() if self.outside else torch.autocast("cpu", torch.bfloat16):
            logits = wrapped(ids)
        self.loss(logits.float(), labels, step).backward()  # type: ignore[no-untyped-call]


@dataclass(frozen=True)
class Recomputes(Steps):
    """Trains that model."""

    reentrant: bool = False

    def model(self) -> tuple[nn.Module, torch.optim.Optimizer]:
        model, optimizer = built_recomputing()
        model.reentrant = self.reentrant  # type: ignore[assignment]
        return model, optimizer


REPORTS: list[Report] = [
    seen(
        "Haian-Jin/LVSM#19",
        "a guard skips one update on all 3 ranks, as in the baseline; SGD with momentum",
        "no bug",
        Skips(momentum=True),
        Skips(momentum=True),
        HEALTHY,
        model="built_with_momentum",
    ),
    seen(
        "marin-community/levanter#973",
        "the same, and the momentum is lost in the skipped step",
        "bug: the optimizer's state behind the skipped update",
        Skips(momentum=True, loses=True),
        Skips(momentum=True),
        verdict("bug", words=("state", "momentum")),
        model="built_with_momentum",
    ),
    seen(
        "NVIDIA-NeMo/Automodel#2257",
        "a step's gradients are dropped without an update, and the baseline makes one",
        "bug: the update of step 1 is missing",
        Skips(),
        Steps(),
        verdict("bug", words=("no update",)),
    ),
    seen(
        "facebookresearch/lingua#59",
        "gradients are clipped behind each micro-batch, in the baseline once before the update",
        "bug: gradients are not the clipped sum of the micro-batches",
        ClipsEach(),
        Clips(),
        verdict("bug", words=("clip", "not the sum")),
    ),
    seen(
        "huggingface/transformers#38872",
        "the last group of an epoch has one micro-batch, and its loss is divided by two",
        "bug, or open and that the group is divided by the usual number",
        LastGroup(),
        LastGroup(usual=False),
        verdict("bug", words=("1 of 2 micro-batches",), must_say=True),
    ),
    seen(
        "diliadis/DeepMTP#34",
        "the same group divided by its own number, on 3 ranks and on one",
        "no bug",
        LastGroup(usual=False),
        LastGroup(usual=False),
        HEALTHY,
    ),
    seen(
        "deepspeedai/DeepSpeed#7786",
        "a run on 3 ranks goes on from its own checkpoint without moments, beside one process that never stopped",
        "bug: the optimizer's state",
        Resumed(first=SKIPPED),
        Steps(),
        verdict("bug", words=("state was not restored",)),
    ),
    seen(
        "X-GenGroup/Flow-Factory#186",
        "`torch.autocast` around the whole training keeps the casts of old weights",
        "bug: outputs are not those of the weights, from step 1 on",
        Casts(outside=True),
        Casts(),
        verdict("bug", words=("step 1",)),
    ),
    seen(
        "mlfoundations/open_clip#573",
        "reentrant recomputation on frozen embeddings: the blocks get no gradients; one process each",
        "bug: parameters of the blocks get no gradient",
        Recomputes(reentrant=True),
        Recomputes(),
        verdict("bug", words=("none in any step",)),
        ranks=1,
        model="built_recomputing",
    ),
]
