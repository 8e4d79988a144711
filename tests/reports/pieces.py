"""Runs with context parallelism whose ranks divide the loss by their own piece's tokens, or by those of all pieces."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional

from numerics import Placed, Watcher, watch
from numerics.record.placement import boxes_of
from tests.numerics.local.context_trainers import CUTS, LENGTH, SEQUENCES, WORDS, build
from tests.reports.report import Report
from tests.reports.trained import IGNORED, STEPS, Trainer
from tests.reports.wrong import HEALTHY, seen, verdict

MICRO = 2


def given(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A step's sequences and labels, (SEQUENCES, LENGTH); prompts of several lengths are ignored."""
    generator = torch.Generator().manual_seed(70 + step)
    words, labels = torch.randint(0, WORDS, (2, SEQUENCES, LENGTH), generator=generator)
    prompts = torch.randint(3, 9, (SEQUENCES,), generator=generator)
    labels[torch.arange(LENGTH) < prompts[:, None]] = IGNORED
    return words, labels


@dataclass(frozen=True)
class InPieces(Trainer):
    """Each rank holds two chunks of every sequence, as head and tail; gradients are averaged over the ranks.

    The loss is divided by a rank's own tokens of a micro-batch, or by `whole`, a third of those of all ranks and
    micro-batches.
    """

    whole: bool = True
    placed: bool = True

    def train(self, rank: int, world: int, out: Path) -> None:
        model, optimizer = build()
        held, watcher = watched(model, optimizer, rank, world, out, placed=self.placed)
        for step in range(STEPS):
            every = int((given(step)[1] != IGNORED).sum())
            for words, labels in zip(*(part.chunk(MICRO) for part in given(step)), strict=True):
                flat, own = model(words[:, held]).flatten(0, 1), labels[:, held].flatten()
                total = functional.cross_entropy(flat, own, ignore_index=IGNORED, reduction="sum")
                count = every / world if self.whole else MICRO * max(int((own != IGNORED).sum()), 1)
                (total / count).backward()
            step_together(model, optimizer, world, world)
        watcher.close()


def watched(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    rank: int,
    world: int,
    out: Path,
    *,
    placed: bool = True,
) -> tuple[list[int], Watcher]:
    """The positions that the rank holds, with `model` cut so where there are several ranks, and its recorder."""
    held = list(range(LENGTH))
    if world > 1:
        model.cut = CUTS["zigzag"]
        held = model.cut[rank]
    return held, watch(
        model,
        optimizer,
        micro_batches=MICRO,
        out=out,
        level="tensors",
        dp=(0, 1),
        coords={"cp": rank},
        place=placing(held) if world > 1 and placed else None,
    )


def step_together(model: nn.Module, optimizer: torch.optim.Optimizer, world: int, divisor: int) -> None:
    """Step by the sum of all ranks' gradients over a divisor."""
    for parameter in model.parameters() if world > 1 else ():
        dist.all_reduce(parameter.grad)
        parameter.grad /= divisor
    optimizer.step()
    optimizer.zero_grad()


def placing(held: list[int]) -> Callable[[str, torch.Tensor], Placed | None]:
    """What `watch(place=...)` gets from a rank that holds these positions of each sequence."""

    def place(_name: str, value: torch.Tensor) -> Placed | None:
        if value.dim() < 2 or value.shape[:2] != (SEQUENCES // MICRO, len(held)):
            return None
        shape = (len(value), LENGTH, *value.shape[2:])
        kept = [torch.arange(size) for size in shape]
        return Placed(value, shape, boxes_of([kept[0], torch.tensor(held), *kept[2:]]))

    return place


MODEL = Path(__file__).parents[1] / "numerics" / "local" / "context_trainers.py"
REPORTS: list[Report] = [
    seen(
        "huggingface/transformers#41832",
        "each of 3 context ranks divides by the tokens of its own piece, with prompts that are ignored",
        "bug: a mean of means over pieces of the sequences, cp",
        InPieces(whole=False),
        InPieces(),
        verdict("bug", words=("'axis': 'cp'",)),
        model="build",
        file=MODEL,
    ),
    seen(
        "NVIDIA-NeMo/Megatron-Bridge#374",
        "the same, divided by the tokens of all pieces",
        "no bug",
        InPieces(),
        InPieces(),
        HEALTHY,
        model="build",
        file=MODEL,
    ),
]
