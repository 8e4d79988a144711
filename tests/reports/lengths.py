"""Runs that pad their sequences to other lengths: to the longest of a micro-batch, to a multiple, to one length."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.nn import functional

from tests.reports.report import Answer, Report
from tests.reports.trained import IGNORED, LENGTH, Trainer, sequences
from tests.reports.wrong import HEALTHY, seen, verdict

PAD = 0


@dataclass(frozen=True)
class Lengths(Trainer):
    """Sequences are padded to `multiple`, in each micro-batch by itself; the loss is over all tokens that count.

    `counts` lets padding count, `own` divides by each micro-batch's own tokens.
    """

    padded: bool = True
    multiple: int = 1
    ranks: int = 1
    counts: bool = False
    own: bool = False

    def batches(self, step: int, rank: int, world: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
        made = []
        for given, due in super().batches(step, rank, world):
            ends = (due != IGNORED).sum(1)
            more = -(-int(ends.max()) // self.multiple) * self.multiple - given.shape[1]
            ids = given.masked_fill(torch.arange(given.shape[1]) >= ends[:, None], PAD)
            fill = PAD if self.counts else IGNORED
            labels = functional.pad(due.masked_fill(due == IGNORED, fill), (0, more), value=fill)
            made.append((functional.pad(ids, (0, more), value=PAD), labels))
        return made

    def loss(self, logits: torch.Tensor, labels: torch.Tensor, step: int) -> torch.Tensor:
        if self.own or self.counts:
            return super().loss(logits, labels, step)
        whole = int((sequences(step, padded=True)[1] != IGNORED).sum())
        flat = logits.flatten(0, 1).float()
        return functional.cross_entropy(flat, labels.flatten(), ignore_index=IGNORED, reduction="sum") * (
            self.ranks / whole
        )


LONG = Lengths(multiple=LENGTH - 1)


def _seen(
    source: str,
    input_: str,
    expected: str,
    trainer: Trainer,
    judge: Callable[[Answer], str],
    sound: Trainer = LONG,
    **more: bool,
) -> Report:
    return seen(source, input_, expected, trainer, sound, judge, **more)


REPORTS: list[Report] = [
    _seen(
        "deepspeedai/DeepSpeedExamples#849",
        "each micro-batch is padded to its own longest sequence on 3 ranks, to one length in one process",
        "no bug",
        Lengths(ranks=3),
        HEALTHY,
        quick=True,
    ),
    _seen(
        "dask/dask-examples#149",
        "the same padding, and each micro-batch divides by its own tokens",
        "bug: a mean of means",
        Lengths(own=True),
        verdict("bug", words=("mean of the means",)),
    ),
    _seen(
        "EleutherAI/aria#40",
        "the same padding, which counts",
        "bug: padding counts",
        Lengths(counts=True),
        verdict("bug", words=("positions count",)),
    ),
]
